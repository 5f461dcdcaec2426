"""Evidence of fusion on ONNX Runtime, and that a fallback is noticed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import ArtifactError, IntegrityError, UnavailableError, UsageError
from attnport.runtimes import _ort
from attnport.runtimes.base import Opening
from attnport.runtimes.ort_cpu import PROVIDER, RUNTIME
from attnport_bundle.runtimes.onnxruntime import OnnxRuntimeSession

onnxruntime = pytest.importorskip("onnxruntime")

IO = IOContract(
    (TensorSpec("q", "float32", ("B", 2, "S", 8)),),
    (TensorSpec("y", "float32", ("B", 2, "S", 8)),),
    (Dim("B", 1, 2, 8), Dim("S", 1, 8, 32)),
)


def saved(folder: Path, body: str, *, opset: str = '"" : 23') -> Path:
    text = (
        f"<ir_version: 10, opset_import: [{opset}]> g (float[B,2,S,8] q) => (float[B,2,S,8] y) "
        f"<float zero = {{0}}, float low = {{-3e38}}> {{ {body} }}"
    )
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_an_attention_operator_that_runs_as_one_kernel_is_evidence(tmp_path: Path) -> None:
    path = saved(tmp_path, "[a] r = Relu(q) [att] y = Attention(r, r, r)")
    found = RUNTIME.fusion_evidence(path, {"layer": ("att",), "wrong operator": ("a",), "no such node": ("b",)})
    assert list(found) == ["layer"]
    assert found["layer"].kernel == "Attention"
    assert PROVIDER in found["layer"].text
    assert "att_kernel_time" in found["layer"].text


def test_a_decomposed_attention_is_not_fused(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        "t = Transpose<perm=[0,1,3,2]>(q) [qk] s = MatMul(q, t) "
        "[softmax] p = Softmax<axis=-1>(s) [pv] y = MatMul(p, q)",
    )
    assert RUNTIME.fusion_evidence(path, {"layer": ("qk", "softmax", "pv")}) == {}


def test_an_attention_that_is_taken_apart_is_not_fused(tmp_path: Path) -> None:
    """A function that happens to be called Attention: the session inlines its body."""
    body = "[att] y = local.Attention(q)"
    path = saved(tmp_path, body, opset='"" : 23, "local" : 1')
    model = onnx.load(path)
    text = '<domain: "local", opset_import: ["" : 23]> Attention (q) => (y) { s = Softmax(q) y = Mul(s, q) }'
    model.functions.append(onnx.parser.parse_function(text))
    onnx.save(model, path)
    assert RUNTIME.fusion_evidence(path, {"layer": ("att",)}) == {}


def test_evidence_leaves_weights_beside_the_model_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, "m = MatMul(q, w) [att] y = Attention(m, m, m)")
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    copies: list[int] = []
    read = onnx.load_model

    def spy(file: Path, **options: bool) -> onnx.ModelProto:
        copies.append(sum(each.stat().st_size for each in Path(file).parent.glob("*.bin")))
        return read(file, **options)

    monkeypatch.setattr(onnx, "load_model", spy)
    assert "layer" in RUNTIME.fusion_evidence(path, {"layer": ("att",)})
    assert copies[0] > 0  # beside the model
    assert copies[-1] == 0  # beside the optimised model


def test_a_model_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    path = saved(tmp_path, "c = Constant<value_ints=[7]>() r = Expand(q, c) [att] y = Attention(r, r, r)")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        RUNTIME.fusion_evidence(path, {"layer": ("att",)})


def test_a_fallback_to_another_provider_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime as ort

    path = saved(tmp_path, "y = Relu(q)")
    RUNTIME.open(Opening(IO, model=path)).close()
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda self: ["AzureExecutionProvider", PROVIDER])
    with pytest.raises(UnavailableError, match="Azure"):
        RUNTIME.open(Opening(IO, model=path))


@pytest.mark.parametrize("place", ["../weights.bin", "/etc/hostname", "a/../../b"])
def test_external_data_outside_the_folder_is_refused_before_the_runtime_sees_it(tmp_path: Path, place: str) -> None:
    path = saved(tmp_path, "y = Add(q, w)")
    model = onnx.load(path)
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[8])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(IntegrityError, match="outside"):
        RUNTIME.open(Opening(IO, model=path))


def test_missing_weights_are_an_error_that_names_the_model(tmp_path: Path) -> None:
    path = saved(tmp_path, "y = Add(q, w)")
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(8, np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        RUNTIME.open(Opening(IO, model=path))


@pytest.mark.parametrize("left", ["", '[{"cat": "Session"', None], ids=["empty", "cut", "missing"])
def test_a_profile_that_a_full_disk_cut_short_is_told(left: str | None, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    if left is not None:
        profile.write_text(left)
    with pytest.raises(UsageError, match="missing or was cut short") as caught:
        _ort._events(profile)
    assert "TMPDIR" in caught.value.hint
    profile.write_text('[{"cat": "Node"}]')
    assert _ort._events(profile) == [{"cat": "Node"}]


def test_residuals_are_added_and_normalised_by_two_kernels(tmp_path: Path) -> None:
    """By itself, ONNX Runtime takes its one kernel for both, which is slower."""
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> g (float[1,n,8] x, float[1,n,8] y) => (float[1,n,8] z) '
        "<float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}> { s = Add(x, y) z = LayerNormalization<axis=-1>(s, w, w) }"
    )
    model, left = tmp_path / "model.onnx", tmp_path / "left.onnx"
    onnx.save(onnx.parser.parse_model(text), model)

    def options() -> Any:
        found = _ort.options(1)
        found.optimized_model_filepath = str(left)
        return found

    def kernels() -> set[str]:
        return {node.op_type for node in onnx.load(left).graph.node}

    onnxruntime.InferenceSession(model, options())
    assert kernels() == {"SkipLayerNormalization"}
    _ort.open_session(model, options(), PROVIDER)
    assert kernels() == {"Add", "LayerNormalization"}
    left.unlink()
    module = SimpleNamespace(
        get_available_providers=onnxruntime.get_available_providers,
        SessionOptions=options,
        InferenceSession=onnxruntime.InferenceSession,
        __version__=onnxruntime.__version__,
    )
    OnnxRuntimeSession(module, model, SimpleNamespace(provider=PROVIDER), 1)  # all that it reads
    assert kernels() == {"Add", "LayerNormalization"}
