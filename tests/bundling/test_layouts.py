"""`attnport bundle --layout`: what is written for servers, what is refused, and that a folder appears whole or not."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny_attention as tiny
from bundle_folders import tree
from killing import Armed, in_child
from onnx import helper

from attnport.bundling.layouts import base, triton
from attnport.bundling.layouts.triton import Constant, pbtxt
from attnport.dims import Dim
from attnport.errors import MissingDependency, ParityFailed, UsageError
from attnport.verbs.bundle import bundle
from attnport_bundle import load
from attnport_bundle.format import manifest

CONFIG = """\
# tiny.py:module, form ort_cpu: onnxruntime 1.28 or later
name: "tiny"
max_batch_size: 8
backend: "onnxruntime"
default_model_filename: "model.onnx"
input {
  name: "ids"
  data_type: TYPE_INT64
  dims: [ -1 ]
}
input {
  name: "attention_mask"
  data_type: TYPE_INT64
  dims: [ -1 ]
}
output {
  name: "hidden"
  data_type: TYPE_FP32
  dims: [ -1, 8 ]
}
output {
  name: "pooled"
  data_type: TYPE_FP32
  dims: [ 8 ]
}
instance_group {
  count: 1
  kind: KIND_CPU
}
dynamic_batching {}
"""


def no_browser(model: Path, beside: Mapping[str, Path]) -> Any:
    raise AssertionError(f"{model} is not for a browser")


def packed(app: Path, told: list[str] | None = None) -> base.Packed:
    return base.Packed(app, manifest.read(app), dict, (told if told is not None else []).append, no_browser)


def shuffled(exported: Path, folder: Path) -> Path:
    """The tiny attention, each item's `hidden` with a share of its neighbours: items are not independent."""
    folder.mkdir()
    model = onnx.load(exported / "model.onnx")
    last = next(node for node in model.graph.node if "hidden" in node.output)
    for node in model.graph.node:
        node.input[:] = ["own" if name == "hidden" else name for name in node.input]
    last.output[:] = ["own" if name == "hidden" else name for name in last.output]
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [0])
    model.graph.initializer.append(axes)
    model.graph.node.append(helper.make_node("ReduceMean", ["own", "axes"], ["shared"]))
    model.graph.node.append(helper.make_node("Add", ["own", "shared"], ["hidden"]))
    onnx.save_model(
        model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=200
    )
    return folder


def of_shuffled(arrays: dict[str, Any]) -> dict[str, Any]:
    """The goldens of that model."""
    return {
        name: array + array.mean(0, keepdims=True) if name.endswith("/hidden") and "/valid/" not in name else array
        for name, array in arrays.items()
    }


def test_a_model_repository_holds_the_model_and_its_configuration_and_nothing_else(
    made_artifact: Path, tmp_path: Path
) -> None:
    repository = bundle(made_artifact, tmp_path / "repository", layout="triton")
    assert set(tree(repository)) == {"tiny/config.pbtxt", "tiny/1/model.onnx", "tiny/1/weights.bin"}
    assert (repository / "tiny" / "config.pbtxt").read_text() == CONFIG


def test_the_model_of_a_repository_gives_the_goldens_in_plain_onnxruntime(
    made_artifact: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    repository = bundle(made_artifact, tmp_path / "repository", layout="triton")
    session = onnxruntime.InferenceSession(str(repository / "tiny" / "1" / "model.onnx"))
    given = {spec.name: arrays[f"golden-0/in/{spec.name}"] for spec in tiny.IO.inputs}
    (pooled,) = session.run(["pooled"], given)
    np.testing.assert_allclose(pooled, arrays["golden-0/out/pooled"], atol=1e-6)


def test_what_was_laid_out_is_told_with_its_size_and_what_opens_it(made_artifact: Path, tmp_path: Path) -> None:
    told: list[str] = []
    out = bundle(made_artifact, tmp_path / "repository", layout="triton", tell=told.append)
    assert re.fullmatch(
        r"ort_cpu \(fp32\); \S+ MiB in 3 files: tiny/1/model\.onnx \(\S+ MiB\).*; "
        rf"next: tritonserver --model-repository {re.escape(str(out))}",
        told[-1],
    )
    assert told[:-1] == ["ort_cpu: golden cases were run in ONNX Runtime and are within the bound"]


def test_what_the_proof_of_a_layout_lacks_is_told_once_with_what_installs_it(made_bundle: Path, tmp_path: Path) -> None:
    told: list[str] = []
    of = packed(made_bundle, told)

    def opened() -> Any:
        raise MissingDependency("onnxruntime-web is nowhere.", hint="npm install onnxruntime-web")

    assert of.proved("ort_cpu", "onnxruntime-web", opened) is of.proved("ort_cpu", "onnxruntime-web", opened) is None
    assert told == [
        "what was written for onnxruntime-web was not run here: onnxruntime-web is nowhere. npm install onnxruntime-web"
    ]


def test_transformers_js_gets_a_file_for_each_precision_that_there_is() -> None:
    there = ("openvino", "ort_cpu", "ort_cpu.fp16", "ort_cpu.int8")
    assert base.get("web").usual(there) == ("ort_cpu", "ort_cpu.fp16", "ort_cpu.int8")
    assert base.get("hub").usual(there) == base.get("web").usual(()) == ("ort_cpu",)
    forms = {name: SimpleNamespace(plan=plan) for name, plan in (("ort_cpu", "fp32"), ("ort_cpu.int8", "int8"))}
    outputs = (SimpleNamespace(name="last_hidden_state"),)
    manifest: Any = SimpleNamespace(order=tuple(forms), forms=forms, io=SimpleNamespace(decoder=None, outputs=outputs))
    line = base.get("web").next(manifest, Path("/served/models/minilm"))
    assert line == (
        "pipeline('feature-extraction', 'minilm', { dtype: 'fp32' or 'q8' }), with /served/models as env.localModelPath"
    )


def test_laying_out_twice_gives_equal_bytes(made_artifact: Path, tmp_path: Path) -> None:
    one, other = (bundle(made_artifact, tmp_path / name, layout="triton") for name in ("one", "other"))
    assert tree(one) == tree(other)


def test_requests_are_joined_only_where_each_item_alone_gives_the_same(
    exported: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    made = of_shuffled(arrays)
    folder = tiny.make(tmp_path / "out", shuffled(exported, tmp_path / "shuffled"), made, tiny.parity())
    text = (bundle(folder, tmp_path / "repository", layout="triton") / "tiny" / "config.pbtxt").read_text()
    assert "max_batch_size: 0\n" in text
    assert "dims: [ -1, -1, 8 ]" in text
    assert "dynamic_batching" not in text


def test_items_are_independent_only_by_proof(app: Path) -> None:
    given = packed(app)
    with load(app, threads=1) as model:
        assert given.items("ort_cpu", model.run) == Dim("batch", 1, 2, 8)

        def otherwise(**feeds: Any) -> dict[str, Any]:
            found = model.run(**feeds)
            return {name: array + (1e-2 if len(array) == 1 else 0) for name, array in found.items()}

        assert given.items("ort_cpu", otherwise) is None
        more = tuple(Dim(dim.name, 2, 2, 8) if dim.name == "batch" else dim for dim in given.io.dims)
        io = dataclasses.replace(given.io, dims=more)
        at_least_two = dataclasses.replace(given, manifest=dataclasses.replace(given.manifest, io=io))
        assert at_least_two.items("ort_cpu", model.run) is None


def test_what_computes_other_numbers_as_its_readers_open_it_is_not_written(app: Path) -> None:
    given = packed(app)
    with load(app, threads=1) as model:

        def off(**feeds: Any) -> dict[str, Any]:
            return {name: array + np.float32(1e-2) for name, array in model.run(**feeds).items()}

        assert given.proved("ort_cpu", "a server", lambda: model.run) == model.run
        with pytest.raises(ParityFailed, match="a server computes other numbers: golden-0 hidden: RMS error"):
            given.proved("ort_cpu", "a server", lambda: off)


def test_a_layout_that_fails_leaves_nothing(
    made_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(*arguments: Any) -> None:
        raise ParityFailed("planted")

    monkeypatch.setattr(triton, "in_onnxruntime", off)
    with pytest.raises(ParityFailed, match="planted"):
        bundle(made_artifact, tmp_path / "repository", layout="triton")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", range(1, 5))
def test_a_kill_leaves_no_half_of_a_repository(made_artifact: Path, tmp_path: Path, at: int) -> None:
    """At each move of a file out of the bundle, and where the whole folder appears."""
    out = tmp_path / "repository"

    def act() -> None:
        Armed(at).install(("rename",))
        bundle(made_artifact, out, layout="triton")

    assert in_child(act) == (-signal.SIGKILL if at < 4 else 0)
    if at < 4:
        assert not out.exists()
        bundle(made_artifact, out, layout="triton")
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]
    assert (out / "tiny" / "config.pbtxt").read_text() == CONFIG


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lang": ["python", "cpp"]}, "--lang python cpp: layout triton has no reader"),
        ({"sign": Path("key.pem")}, "--sign: layout triton has no bundle.json"),
        ({"unverified": True}, "--unverified: nothing in a folder of layout triton says"),
        ({"force": True}, "--force: a folder of layout triton is not replaced"),
    ],
    ids=["lang", "sign", "unverified", "force"],
)
def test_what_only_a_bundle_has_is_refused(
    made_artifact: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        bundle(made_artifact, tmp_path / "repository", layout="triton", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_layout_is_refused_with_all_that_there_are(made_artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layout 'tritn': there is none; expected one of hub, ovms, triton"):
        bundle(made_artifact, tmp_path / "app", layout="tritn")


def test_a_folder_that_holds_something_is_never_replaced(made_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not an empty folder; it was not changed"):
        bundle(made_artifact, tmp_path / "repository", layout="triton")
    assert tree(tmp_path / "repository") == {"mine.txt": b"mine"}


def test_a_bundle_is_not_taken_for_an_empty_folder(made_artifact: Path, app: Path) -> None:
    before = tree(app)
    with pytest.raises(UsageError, match="not an empty folder"):
        bundle(made_artifact, app, layout="triton")
    assert tree(app) == before


@pytest.mark.parametrize("layout", ["ovms", "hub"])
def test_a_form_that_the_readers_of_a_layout_cannot_open_is_refused(
    made_artifact: Path, tmp_path: Path, layout: str
) -> None:
    with pytest.raises(UsageError) as caught:
        bundle(made_artifact, tmp_path / "out", forms=["ort_cpu"], layout=layout)
    said = {
        "ovms": "form ort_cpu is for onnxruntime; what reads layout ovms opens forms for openvino.",
        "hub": "tiny takes ids, attention_mask; what reads layout hub gives input_ids, attention_mask, token_type_ids",
    }
    assert said[layout] in str(caught.value)
    if layout == "hub":  # to rename inputs would lead to the next refusal
        assert "other names would not make one of it. Without --layout, the readers of a bundle" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_messages_are_written_as_protobufs_text() -> None:
    written = pbtxt(
        {"a": 'quo"te', "kind": Constant("K"), "sizes": [-1, 8], "none": [], "many": [{"x": 1}, {"x": True}]}
    )
    assert written == ('a: "quo\\"te"\nkind: K\nsizes: [ -1, 8 ]\nnone: [ ]\nmany {\n  x: 1\n}\nmany {\n  x: true\n}\n')


def test_a_name_is_safe_in_a_path(app: Path) -> None:
    found = json.loads((app / "bundle.json").read_text())
    (app / "bundle.json").write_text(json.dumps({**found, "name": "../a model/ü"}))
    assert packed(app).name == "_a_model__"
    shutil.rmtree(app)
