"""Finds out which ways to write an attention a runtime supports, by running a tiny graph of each on it."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import AttnportError, UnavailableError, first_line
from attnport.runtimes.base import Opening, Runtime

if TYPE_CHECKING:
    import onnx

FUSED, RUNS, REFUSED = "fused", "runs, not fused", "refused"
"""One kernel covers the attention from QK^T to PV; several do, or one without proof; the runtime's answer follows."""

_LOW = {"float": "-inf", "float16": "64512"}
"""Minus infinity in ONNX's text form, which takes the bits of a float16."""
_WHOLE, _PARTS = ("one",), ("qk", "softmax", "pv")
_WRITTEN_OUT = "t = Transpose<perm=[0,1,3,2]>(k) [qk] s = MatMul(q, t) {} [softmax] p = Softmax<axis=-1>({}) "
_MASKED = _WRITTEN_OUT.format("b = Where(m, s, low)", "b")


@dataclass(frozen=True)
class Spelling:
    """One way to write an attention, as a graph with inputs q, k, v and optionally a mask m, and the output y.

    Attributes:
        body: Nodes in ONNX's text form; those of the attention have names in brackets.
        anchors: These names, see `artifacts.Form.anchors`.
        mask: The declaration of the mask m; "" = none.
        qkv: The declarations of q, k and v.
        output: The declaration of y.
        contrib: Whether it uses ONNX Runtime's own operators.
    """

    body: str
    anchors: tuple[str, ...] = _WHOLE
    mask: str = ""
    qkv: str = "float[B,4,S,32] q, float[B,4,T,32] k, float[B,4,T,32] v"
    output: str = "float[B,4,S,32] y"
    contrib: bool = False

    def model(self, opset: int = 23, dtype: str = "float") -> onnx.ModelProto:
        """The graph as a model; `dtype` is the name in ONNX's text form."""
        import onnx.parser

        inputs = ", ".join(filter(None, (self.qkv, self.mask))).replace("float[", f"{dtype}[")
        output = self.output.replace("float[", f"{dtype}[")
        domains = f'"" : {opset}' + (', "com.microsoft" : 1' if self.contrib else "")
        return onnx.parser.parse_model(
            f"<ir_version: 10, opset_import: [{domains}]> g ({inputs}) => ({output}) "
            f"<{dtype} low = {{{_LOW[dtype]}}}, {dtype} zero = {{0}}> {{ {self.body} }}"
        )


_WITH_MASK = "[one] y = Attention(q, k, v, m)"
_PACKED = "float[B,S,128] q, float[B,S,128] k, float[B,S,128] v"
FORMS = {
    "Attention": Spelling("[one] y = Attention(q, k, v)"),
    "Attention, causal": Spelling("[one] y = Attention<is_causal=1>(q, k, v)"),
    "Attention, grouped heads": Spelling(
        "[one] y = Attention(q, k, v)", qkv="float[B,4,S,32] q, float[B,2,T,32] k, float[B,2,T,32] v"
    ),
    **{
        f"Attention, {word} mask {shape}": Spelling(_WITH_MASK, mask=f"{kind}{shape} m")
        for word, kind in (("bool", "bool"), ("float", "float"))
        for shape in ("[B,1,S,T]", "[B,1,1,T]")
    },
    "decomposed": Spelling(_WRITTEN_OUT.format("", "s") + "[pv] y = MatMul(p, v)", _PARTS),
    "decomposed, rows zeroed on the output": Spelling(
        _MASKED + "[pv] o = MatMul(p, v) n = IsNaN(o) y = Where(n, zero, o)", _PARTS, "bool[B,1,1,T] m"
    ),
    "decomposed, rows zeroed on the probabilities": Spelling(
        _MASKED + "n = IsNaN(p) z = Where(n, zero, p) [pv] y = MatMul(z, v)", _PARTS, "bool[B,1,1,T] m"
    ),
    "MultiHeadAttention (com.microsoft)": Spelling(
        "[one] y = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, v)",
        qkv=_PACKED,
        output="float[B,S,128] y",
        contrib=True,
    ),
}


def tried(runtime: Runtime, plans: Collection[str]) -> dict[str, str]:
    """How the runtime takes each form: `fused`, `runs, not fused`, or `refused: ` with the runtime's answer.

    Args:
        runtime: An available runtime; the result is empty for one that opens no ONNX file.
        plans: The precision plans that it can run here.
    """
    return {name: _tried(runtime, form, plans) for name, form in FORMS.items()} if runtime.opens == "onnx" else {}


def _tried(runtime: Runtime, form: Spelling, plans: Collection[str]) -> str:
    import onnx

    from attnport.runtimes._onnx_file import small_feeds
    from attnport.runtimes._ort import runtime_answer

    # Some runtimes compute only in half precision, and refuse a graph that is all float32.
    plan, dtype = ("fp32", "float") if "fp32" in plans else ("fp16", "float16")
    model = form.model(dtype=dtype)
    with tempfile.TemporaryDirectory(prefix="attnport-form-") as scratch:
        path = Path(scratch, "form.onnx")
        onnx.save_model(model, path)
        try:
            try:
                if "" in runtime.fusion_evidence(path, {"": form.anchors}, plan):
                    return FUSED
            except UnavailableError:  # the runtime gives no evidence, but may run the graph
                pass
            session = runtime.open(Opening(_contract(model), plan, path, threads=1))
            try:
                session.run(small_feeds(model))
            finally:
                session.close()
        except AttnportError as err:
            return f"{REFUSED}: {runtime_answer(err)}"
        except Exception as err:  # a runtime's own exceptions share no base
            return f"{REFUSED}: {first_line(err)}"
    return RUNS


def _contract(model: onnx.ModelProto) -> IOContract:
    import onnx

    def spec(value: onnx.ValueInfoProto) -> TensorSpec:
        tensor = value.type.tensor_type
        dims = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
        return TensorSpec(value.name, str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)), dims)

    inputs, outputs = (tuple(map(spec, side)) for side in (model.graph.input, model.graph.output))
    dim_names = sorted({dim for tensor_spec in (*inputs, *outputs) for dim in tensor_spec.dims if isinstance(dim, str)})
    return IOContract(inputs, outputs, tuple(Dim(name, 1, 2, 2) for name in dim_names))
