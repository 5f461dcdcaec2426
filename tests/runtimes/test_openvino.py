"""Evidence of fusion on OpenVINO, and that it computes in the precision that was asked for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import UnavailableError
from attnport.runtimes.base import Opening
from attnport.runtimes.openvino import RUNTIME, covering_layers, mark

ov = pytest.importorskip("openvino")

HEADS = "<perm=[0,2,1,3]>"
INPUTS = "float[B,S,4,32] q, float[B,S,4,32] k, float[B,S,4,32] v, {}[B,1,1,S] m, float[B,1,S,S] f"
LAYOUT = f"qt = Transpose{HEADS}(q) kt = Transpose{HEADS}(k) vt = Transpose{HEADS}(v) "
SCORES = "kT = Transpose<perm=[0,1,3,2]>(kt) qs = Mul(qt, scale) [qk] s = MatMul(qs, kT) "
OUT = f" y = Transpose{HEADS}(o)"
BODIES = {
    "operator, bool mask": ("bool", "[one] o = Attention(qt, kt, vt, m)", ("one",)),
    "operator, float mask": ("float", "[one] o = Attention(qt, kt, vt, m)", ("one",)),
    "keys that a product computes": ("bool", "k2 = MatMul(g, kt) [one] o = Attention(qt, k2, vt, m)", ("one",)),
    "a bias that a product computes": ("float", "b = MatMul(g, f) [one] o = Attention(qt, kt, vt, b)", ("one",)),
    "decomposed, Add": (
        "float",
        SCORES + "b = Add(s, m) [softmax] p = Softmax<axis=-1>(b) [pv] w = MatMul(p, vt) n = IsNaN(w) "
        "o = Where(n, zero, w)",
        ("qk", "softmax", "pv"),
    ),
    "decomposed, Where": (
        "bool",
        SCORES + "b = Where(m, s, low) [softmax] p = Softmax<axis=-1>(b) [pv] o = MatMul(p, vt)",
        ("qk", "softmax", "pv"),
    ),
}
GUARDED = SCORES + "[softmax] p = Softmax<axis=-1>(s) n = IsNaN(p) z = Where(n, zero, p) [pv] o = MatMul(z, vt)"


def saved(folder: Path, kind: str, body: str) -> Path:
    text = (
        f'<ir_version: 10, opset_import: ["" : 23]> g ({INPUTS.format(kind)}) => (float[B,S,4,32] y) '
        "<float zero = {0}, float low = {-3e38}, float scale = {0.17}> "
        f"{{ g = Softmax<axis=-1>(f) {LAYOUT}{body}{OUT} }}"
    )
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.mark.parametrize("form", BODIES)
def test_an_attention_that_becomes_one_layer_is_evidence(tmp_path: Path, form: str) -> None:
    kind, body, anchors = BODIES[form]
    found = RUNTIME.fusion_evidence(saved(tmp_path, kind, body), {"layer": anchors})
    assert found["layer"].kernel in ("Subgraph", "ScaledDotProductAttention", "MHA")
    assert "Softmax" in found["layer"].text or found["layer"].kernel != "Subgraph"


def test_an_attention_that_stays_several_layers_is_not_fused(tmp_path: Path) -> None:
    assert RUNTIME.fusion_evidence(saved(tmp_path, "bool", GUARDED), {"layer": ("qk", "softmax", "pv")}) == {}


def test_anchors_that_are_no_attention_or_not_there_are_not_fused(tmp_path: Path) -> None:
    kind, body, anchors = BODIES["decomposed, Add"]
    path = saved(tmp_path, kind, body)
    wrong = {"gone": ("no such node",), "half": ("qk", "softmax", "gone"), "right": anchors}
    assert list(RUNTIME.fusion_evidence(path, wrong)) == ["right"]


def test_two_attentions_are_told_apart(tmp_path: Path) -> None:
    """The first is one layer, the second is kept apart by the guard on its probabilities."""
    first = "[one] x = Attention(qt, kt, vt, m) kT = Transpose<perm=[0,1,3,2]>(kt) [qk] s = MatMul(x, kT) "
    second = "[softmax] p = Softmax<axis=-1>(s) n = IsNaN(p) z = Where(n, zero, p) [pv] o = MatMul(z, vt)"
    path = saved(tmp_path, "bool", first + second)
    found = RUNTIME.fusion_evidence(path, {"second": ("qk", "softmax", "pv"), "first": ("one",)})
    assert list(found) == ["first"]


class _Layer:
    """A layer of a compiled model as far as the evidence reads it."""

    def __init__(self, kind: str, originals: str, *sources: _Layer) -> None:
        self.info = {"layerType": kind, "originalLayersNames": originals, "primitiveType": "jit"}
        self.sources = sources

    def get_rt_info(self) -> dict[str, object]:
        class Text(str):
            def astype(self, _: type) -> str:
                return str(self)

        return {key: Text(value) for key, value in self.info.items()}

    def get_friendly_name(self) -> str:
        return self.info["originalLayersNames"]

    def input_values(self) -> list[object]:
        return [type("Value", (), {"get_node": lambda _, source=source: source})() for source in self.sources]


def _compiled(*layers: _Layer) -> object:
    return type("Model", (), {"get_ops": lambda self: list(layers)})()


def test_a_layer_that_lacks_a_part_of_the_attention_is_no_evidence() -> None:
    whole = "0.0@attnport:ScaledDotProductAttention"
    names = {"layer": {whole}}
    product = _Layer("MatMul", "MatMul_1")
    scaled = _Layer("Eltwise", "Add_1", product)
    bias = _Layer("Reshape", "Reshape_1", _Layer("MatMul", "relative,Multiply_1"))
    products = {"relative", whole}
    good = _Layer("Subgraph", f"Softmax_1,{whole},", _Layer("Input", "q"))
    for layer in (good, _Layer("Subgraph", f"Softmax_1,{whole},", bias)):
        assert list(covering_layers(_compiled(layer), names, products)) == ["layer"]
    for layer in (
        _Layer("Subgraph", f"Multiply_1,{whole},", _Layer("Input", "q")),  # the softmax is elsewhere
        _Layer("Subgraph", f"Softmax_1,{whole},", scaled),  # its scores come from a product of their own
        _Layer("Subgraph", f"Softmax_1,{whole},", bias, scaled),
        _Layer("MatMul", whole),  # the last product alone
        _Layer("Subgraph", "Softmax_1,"),
    ):
        assert covering_layers(_compiled(layer), names, products) == {}
    assert covering_layers(_compiled(good), {"layer": {whole, "0.1@attnport:Softmax"}}, products) == {}


def test_marking_finds_the_operator_behind_what_the_reader_adds(tmp_path: Path) -> None:
    kind, body, anchors = BODIES["operator, bool mask"]
    graph = ov.Core().read_model(str(saved(tmp_path, kind, body)))
    (names,) = mark(graph, {"layer": anchors}, {"one": "o"}).values()
    assert [name.split(":")[1] for name in names] == ["ScaledDotProductAttention"]
    assert names <= {op.get_friendly_name() for op in graph.get_ops()}


def test_another_precision_than_the_one_asked_for_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = IOContract(
        (TensorSpec("q", "float32", ("B", "S")),), (TensorSpec("y", "float32", ("B", "S")),), (Dim("B", 1, 1, 8),)
    )
    path = tmp_path / "model.onnx"
    text = '<ir_version: 10, opset_import: ["" : 23]> g (float[B,S] q) => (float[B,S] y) { y = Relu(q) }'
    onnx.save(onnx.parser.parse_model(text), path)
    session = RUNTIME.open(Opening(io, model=path))
    assert session.ran.precision == "fp32"
    compile_model = ov.Core.compile_model
    monkeypatch.setattr(
        ov.Core,
        "compile_model",
        lambda self, graph, device, settings: compile_model(
            self, graph, device, settings | {"INFERENCE_PRECISION_HINT": "dynamic"}
        ),
    )
    with pytest.raises(UnavailableError, match="asked for f32"):
        RUNTIME.open(Opening(io, model=path))


INTERRUPTED = """
import os, signal, sys, time
from pathlib import Path
from attnport.jsonfile import read
from attnport.artifacts import Manifest
from attnport.runtimes import base
folder = Path(sys.argv[1])
io = read(Manifest, folder / "attnport.json").io
opening = base.Opening(io, model=folder / "model.onnx")
first, second = (base.get("openvino").open(opening) for _ in range(2))
first.close()
second.close()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    sys.exit(42)
"""


def test_an_interrupt_after_models_that_closed_out_of_order_is_an_interrupt(tiny_artifact: Path) -> None:
    # OpenVINO leaves the thread with a signal stack that is freed; see the reader's `signal_stack`.
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", INTERRUPTED, str(tiny_artifact)],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        check=False,
    )
    assert run.returncode == 42
