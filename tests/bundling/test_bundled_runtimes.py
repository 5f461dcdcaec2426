"""The runtimes that the format knows: each one is opened, written and described everywhere that has to know it."""

from __future__ import annotations

import dataclasses
import re
import sys
import traceback
from pathlib import Path

import onnxruntime
import pytest
import tiny_attention as tiny

import attnport.bundling
from attnport.artifacts import Capabilities, Form
from attnport.bundling import readme_cpp, write
from attnport.errors import UsageError
from attnport.exporter.targets import base as lowerings
from attnport.folder.workspace import open_folder
from attnport.reporting.choice import Choice, Deployable
from attnport.verbs import bundle as verb
from attnport.verbs.bundle import bundle
from attnport_bundle import RuntimeMissing, load
from attnport_bundle.format.manifest import ENGINES, RUNTIMES
from attnport_bundle.runtimes import OLDEST
from attnport_bundle.search import Search, tokenizer_of

BUNDLING = Path(attnport.bundling.__file__).parent


def test_every_runtime_of_the_format_is_opened_and_comes_from_a_target() -> None:
    assert set(RUNTIMES) == {*OLDEST, *ENGINES}
    assert set(RUNTIMES) == {runtime for runtime, _ in write.RUNS.values()}
    assert set(write.RUNS) <= {*lowerings.names()}


def test_the_format_and_the_cpp_reader_name_the_same_runtimes() -> None:
    stated = re.search(r"`runtime` \(([a-z_, ]+)\)", (BUNDLING / "FORMAT.md").read_text())
    source = (BUNDLING / "cpp/src/format/manifest.cpp").read_text()
    parsed = re.search(r'at\["runtime"\]\.one_of\(\{([^}]+)\}\)', source)
    assert stated
    assert parsed
    assert tuple(stated[1].split(", ")) == RUNTIMES
    assert tuple(re.findall(r'"(\w+)"', parsed[1])) == RUNTIMES
    assert tuple(readme_cpp.RUNTIMES) == RUNTIMES


def test_a_form_of_a_target_that_no_reader_runs_is_refused_with_those_it_runs(artifact: Path, tmp_path: Path) -> None:
    form = Form("somewhere", "fp32", "model.onnx", 23)
    tiny.edit_manifest(artifact, lambda m: dataclasses.replace(m, forms={**m.forms, "somewhere": form}))
    with pytest.raises(UsageError, match=r"for somewhere; a bundle's reader runs .*ort_cpu") as caught:
        bundle(artifact, tmp_path / "app", forms=["somewhere"])
    assert caught.value.hint == "Bundle a form for one of these targets."


def test_a_bundle_that_cannot_run_where_it_is_made_is_written_and_this_is_told(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    bundle(artifact, tmp_path / "app", tell=told.append)
    (contents,) = told
    assert "ort_cpu (fp32)" in contents
    assert contents.endswith("pip install numpy onnxruntime")
    told.clear()
    monkeypatch.setattr(onnxruntime, "__version__", "1.0")
    assert bundle(artifact, tmp_path / "old", tell=told.append).is_dir()
    line, _ = told
    assert "golden cases were not all run" in line
    assert "ort_cpu: got onnxruntime 1.0; expected 1.28 or later" in line


@pytest.mark.parametrize(
    ("name", "available", "plans", "wanted", "said"),
    [
        ("openvino.bf16", True, ("fp32", "bf16"), "openvino.bf16", "which is recommended"),
        ("openvino.bf16", True, ("fp32",), "ort_cpu", "it computes in fp32 here, not in bf16"),
        ("openvino.bf16", False, (), "ort_cpu", "cannot run here: none is there"),
        ("", True, (), "ort_cpu", "as parity was not checked"),
    ],
)
def test_without_a_name_the_recommended_form_is_bundled_where_it_runs(
    name: str,
    available: bool,
    plans: tuple[str, ...],
    wanted: str,
    said: str,
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = open_folder(artifact)
    assert verb.usual(artifact, manifest) == (("ort_cpu",), ", as nothing was timed")
    best = Deployable(name, "openvino", "bf16", {}, "PASS", "", name) if name else None
    found = {"openvino": Capabilities("openvino", available, "" if available else "none is there", plans=plans)}
    monkeypatch.setattr(verb, "recommended", lambda *given: Choice(best, reason="parity was not checked"))
    monkeypatch.setattr(verb, "probe_all", lambda *given: found)
    timed = dataclasses.replace(manifest, files={**manifest.files, "latency.json": ""})
    forms, why = verb.usual(artifact, timed)
    assert forms == (wanted,)
    assert said in why


def test_a_package_that_is_missing_is_told_in_one_traceback(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, said in (
        ("onnxruntime", r"onnxruntime is not installed; pip install"),
        ("attnport_bundle.runtimes.onnxruntime", r"opens the forms of that bundle alone: .* has none for onnxruntime"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(RuntimeMissing, match=said) as caught:
                load(app)
        assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_what_the_copy_of_another_bundle_lacks_is_told_with_what_reads_both(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "attnport_bundle.text", None)
    with load(app) as model, pytest.raises(RuntimeMissing, match=r"has none for text\. .* install the package"):
        tokenizer_of(app / "tokenizer.json", model.io, None, Search(), "")


def test_a_bundle_for_cpp_says_what_its_reader_needs(artifact: Path, tmp_path: Path) -> None:
    told: list[str] = []
    bundle(artifact, tmp_path / "app", lang=["cpp"], tell=told.append)
    assert "cpp/README.md" in told[-1]
    assert "tokenizer" not in told[-1]
