"""`--layout ovms` and `--layout hub`: what is written, and that OpenVINO and ONNX Runtime read it as servers do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import text_artifact
import tiny_attention as tiny
from bundle_folders import tree

from attnport.artifacts import Form, ParityReport
from attnport.bundling.layouts import hub
from attnport.errors import SpecError, UsageError
from attnport.folder.workspace import change
from attnport.verbs import bundle as verb
from attnport.verbs.bundle import bundle

openvino = pytest.importorskip("openvino")
IN_F32 = {"INFERENCE_PRECISION_HINT": "f32"}


def with_openvino(folder: Path) -> Path:
    """Adds a form for OpenVINO that is the same graph, and a parity that passed."""
    with change(folder) as edit:
        edit.path("model.openvino.onnx").write_bytes((folder / "model.ort_cpu.onnx").read_bytes())
        forms = {**edit.manifest.forms, "openvino": Form("openvino", "fp32", "model.openvino.onnx", 23)}
        edit.manifest = dataclasses.replace(edit.manifest, forms=forms)
        edit.finish("fuse", "2")
    passed = tiny.parity().runtimes["ort_cpu"]
    both = {"ort_cpu": passed, "openvino": passed}
    return tiny.judged(folder, ParityReport("PASS", both, both))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, exported: Path, arrays: dict[str, Any]) -> Path:
    return with_openvino(text_artifact.make(tmp_path_factory.mktemp("openvino") / "out", exported, arrays))


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Path]:
    """What the source's folder has beside its weights."""
    found = {}
    for name in ("config.json", "1_Pooling/config.json"):
        found[name] = tmp_path / "source" / name
        found[name].parent.mkdir(parents=True, exist_ok=True)
        found[name].write_text(f'{{"of": "{name}"}}')
    monkeypatch.setattr(verb, "_described", lambda manifest: found)
    return found


def pooled_in_openvino(path: Path, arrays: dict[str, Any], settings: Mapping[str, str]) -> Any:
    made = openvino.Core().compile_model(str(path), "CPU", dict(settings))
    given = {name: arrays[f"golden-0/in/{own}"] for own, name in (("ids", "input_ids"), ("attention_mask",) * 2)}
    return made(given)["sentence_embedding"]


def test_openvino_reads_what_the_configuration_of_its_server_names(
    out: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    folder = bundle(out, tmp_path / "served", layout="ovms")
    assert set(tree(folder)) == {"config.json", "tiny/1/model.onnx", "tiny/1/weights.bin"}
    (entry,) = json.loads((folder / "config.json").read_text())["model_config_list"]
    assert entry == {
        "config": {"name": "tiny", "base_path": "tiny", "target_device": "CPU", "plugin_config": IN_F32},
    }
    got = pooled_in_openvino(folder / entry["config"]["base_path"] / "1" / "model.onnx", arrays, IN_F32)
    np.testing.assert_allclose(got, arrays["golden-0/out/pooled"], atol=1e-6)


def test_a_folder_of_the_hub_has_the_forms_in_place_of_the_weights(
    out: Path, described: Mapping[str, Path], arrays: dict[str, Any], tmp_path: Path
) -> None:
    folder = bundle(out, tmp_path / "hub", layout="hub", forms=["ort_cpu", "openvino"])
    written = {"onnx/model.onnx", "openvino/openvino_model.xml", "openvino/openvino_model.bin"}
    assert set(tree(folder)) == written | set(described)
    assert (folder / "1_Pooling/config.json").read_text() == '{"of": "1_Pooling/config.json"}'
    got = pooled_in_openvino(folder / "openvino" / "openvino_model.xml", arrays, IN_F32)
    np.testing.assert_allclose(got, arrays["golden-0/out/pooled"], atol=1e-6)
    (folder / "onnx" / "model.onnx").rename(tmp_path / "alone.onnx")
    assert len(onnxruntime.InferenceSession(str(tmp_path / "alone.onnx")).get_outputs()) == 2


def test_weights_that_one_file_cannot_hold_stand_beside_it_under_their_usual_name(
    out: Path, described: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LARGEST_FILE", 0)
    folder = bundle(out, tmp_path / "hub", layout="hub")
    assert set(tree(folder / "onnx")) == {"model.onnx", "model.onnx_data"}
    model = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False)
    named = {entry.value for one in model.graph.initializer for entry in one.external_data if entry.key == "location"}
    assert named == {"model.onnx_data"}


@pytest.mark.parametrize("forms", [["ort_cpu", "onnx"], ["openvino", "ort_cpu", "onnx"]], ids=" ".join)
def test_two_forms_for_one_runtime_are_refused(
    out: Path, described: Mapping[str, Path], tmp_path: Path, forms: list[str]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for name, data in tree(out).items():
        (folder / name).write_bytes(data)
    tiny.edit_manifest(
        folder, lambda m: dataclasses.replace(m, forms={**m.forms, "onnx": Form("onnx", "fp32", "model.onnx", 23)})
    )
    passed = tiny.parity().runtimes["ort_cpu"]
    known = dict.fromkeys(("ort_cpu", "openvino", "onnx"), passed)
    tiny.judged(folder, ParityReport("PASS", known, known))
    with pytest.raises(UsageError, match="of these, two would be"):
        bundle(folder, tmp_path / "hub", layout="hub", forms=forms)


def test_a_model_without_the_vectors_of_its_tokens_is_refused(
    exported: Path,
    arrays: dict[str, Any],
    described: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(text_artifact.NAMES, "hidden", "token_vectors")
    folder = text_artifact.make(tmp_path / "out", exported, arrays)
    with pytest.raises(
        UsageError, match=r"the first output of tiny is token_vectors.*takes last_hidden_state"
    ) as caught:
        bundle(folder, tmp_path / "hub", layout="hub")
    assert "without --outputs and --part" in caught.value.hint
    assert not (tmp_path / "hub").exists()


def test_a_model_that_is_of_no_hf_folder_is_refused(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tiny is not the whole of an hf: folder") as caught:
        bundle(out, tmp_path / "hub", layout="hub")
    assert "the readers of a bundle take any inputs by their names" in caught.value.hint
    assert not (tmp_path / "hub").exists()


def test_an_hf_folder_that_is_gone_is_said(exported: Path, arrays: dict[str, Any], tmp_path: Path) -> None:
    folder = text_artifact.make(tmp_path / "out", exported, arrays)
    tiny.edit_source(folder, text=f"hf:{tmp_path}/gone")
    with pytest.raises(SpecError, match="gone is not a folder"):
        bundle(folder, tmp_path / "hub", layout="hub")
