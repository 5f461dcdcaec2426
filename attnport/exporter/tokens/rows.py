"""Which nodes work on each token alone: row `[b, t]` of their results depends on row `[b, t]` of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

ELEMENTWISE = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "Min", "Max", "Sum", "Mean", "PRelu"),
    *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Sigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "Selu"),
    *("Celu", "Gelu", "Mish", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Clip", "Sin"),
    *("Cos", "Floor", "Ceil", "Round", "Sign", "Cast", "Identity", "QuickGelu", "FastGelu", "BiasGelu", "Swish"),
}
"""Operators that compute each element from the elements at its place; operands are broadcast."""
NORMS = {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
SOFTMAXES = {"Softmax", "LogSoftmax", "LpNormalization"}
REDUCTIONS = {
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp"),
    *("ReduceSumSquare", "ReduceLogSum"),
}
DOMAINS = {"", "com.microsoft"}
_FEW = 16
"""Rows of a table shorter than this are not worth leaving out."""


@dataclass(frozen=True)
class Tokens:
    """The names of the two dims of a padding mask: items and tokens."""

    batch: str
    seq: str

    def leads(self, value: ir.Value | None) -> bool:
        """Whether a value has a row for each token, `[batch, seq, ...]`, of a known size."""
        dims = dims_of(value)
        return dims[:2] == (self.batch, self.seq) and all(isinstance(dim, int) and dim > 0 for dim in dims[2:])


def dims_of(value: ir.Value | None) -> tuple[int | str | None, ...]:
    """A value's dims: numbers, names, or None; () also where they are not known."""
    if value is None or value.shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def numbers(value: ir.Value | None) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
    """The elements of a constant of at most 64; None if it is not one."""
    import onnx_ir as ir

    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return tensor.numpy() if tensor is not None and tensor.size <= 64 else None


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is known before any input is."""
    import onnx_ir as ir

    return value is not None and ir.convenience.get_const_tensor(value) is not None


def axes_of(node: ir.Node, rank: int, at: int = 1) -> list[int] | None:
    """The axes in an attribute or in the input at `at`, none of them negative; None if they are not known."""
    if "axes" in node.attributes:
        given = list(node.attributes["axes"].as_ints())
    else:
        found = numbers(node.inputs[at]) if len(node.inputs) > at else None
        if found is None:
            return None
        given = [int(axis) for axis in found.reshape(-1)]
    return [axis % rank if axis < 0 else axis for axis in given]


def axis_of(node: ir.Node, rank: int, default: int) -> int:
    """The attribute `axis`, not negative."""
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else default
    return axis % rank if axis < 0 else axis


def works_on_tokens(node: ir.Node, tokens: Tokens) -> bool:
    """Whether a node works on each token alone, and its results are `[batch, seq, ...]` of floats.

    Nodes of truths and whole numbers are left as they are: they cost nothing and tell padding from tokens.
    """
    rule = _RULES.get(node.op_type)
    if node.domain not in DOMAINS or rule is None or not node.outputs:
        return False
    used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    return (
        bool(used)
        and all(tokens.leads(value) and value.dtype is not None and _is_float(value) for value in node.outputs)
        and rule(node, tokens)
    )


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def operand_fits(value: ir.Value, rank: int, tokens: Tokens) -> bool:
    """Whether an operand of an element-wise node can be given for the real tokens alone.

    Its shape has to say what it is along both dims: every token's own, an item's, a position's, or one for all.
    """
    dims = dims_of(value)
    if value.shape is None or len(dims) > rank:
        return False
    if len(dims) < rank - 1:
        return True
    if len(dims) == rank - 1:
        return dims[0] in (1, tokens.seq)
    return dims[0] in (1, tokens.batch) and dims[1] in (1, tokens.seq) and all(isinstance(dim, int) for dim in dims[2:])


def _elementwise(node: ir.Node, tokens: Tokens) -> bool:
    rank = len(dims_of(node.outputs[0]))
    return all(operand_fits(value, rank, tokens) for value in node.inputs if value is not None)


def _matmul(node: ir.Node, tokens: Tokens) -> bool:
    left, right = node.inputs
    return tokens.leads(left) and len(dims_of(left)) > 2 and right is not None and len(dims_of(right)) == 2


def _gather(node: ir.Node, tokens: Tokens) -> bool:
    """Rows of a table by the ids of tokens."""
    table, ids = node.inputs
    return axis_of(node, 2, 0) == 0 and is_constant(table) and dims_of(ids) == (tokens.batch, tokens.seq)


def _norm(node: ir.Node, tokens: Tokens) -> bool:
    return tokens.leads(node.inputs[0]) and axis_of(node, len(dims_of(node.inputs[0])), -1) >= 2


def _skip_norm(node: ir.Node, tokens: Tokens) -> bool:
    return tokens.leads(node.inputs[0]) and tokens.leads(node.inputs[1])


def _softmax(node: ir.Node, tokens: Tokens) -> bool:
    rank = len(dims_of(node.inputs[0]))
    return tokens.leads(node.inputs[0]) and axis_of(node, rank, -1) >= 2


def _reduction(node: ir.Node, tokens: Tokens) -> bool:
    axes = axes_of(node, len(dims_of(node.inputs[0])))
    return tokens.leads(node.inputs[0]) and axes is not None and min(axes, default=0) >= 2


def _reshape(node: ir.Node, tokens: Tokens) -> bool:
    return tokens.leads(node.inputs[0])


def _transpose(node: ir.Node, tokens: Tokens) -> bool:
    return tokens.leads(node.inputs[0]) and list(node.attributes["perm"].as_ints()[:2]) == [0, 1]


def _along(at: int) -> Callable[[ir.Node, Tokens], bool]:
    """A rule for nodes whose axes, in the input at `at`, are all behind the tokens'."""

    def rule(node: ir.Node, tokens: Tokens) -> bool:
        axes = axes_of(node, len(dims_of(node.outputs[0])) if node.op_type == "Unsqueeze" else
                       len(dims_of(node.inputs[0])), at)  # fmt: skip
        return tokens.leads(node.inputs[0]) and axes is not None and min(axes, default=0) >= 2

    return rule


def _split(node: ir.Node, tokens: Tokens) -> bool:
    return tokens.leads(node.inputs[0]) and axis_of(node, len(dims_of(node.inputs[0])), 0) >= 2


def _concat(node: ir.Node, tokens: Tokens) -> bool:
    return all(tokens.leads(value) for value in node.inputs) and axis_of(node, len(dims_of(node.outputs[0])), 0) >= 2


_RULES: dict[str, Callable[[ir.Node, Tokens], bool]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(NORMS, _norm),
    **dict.fromkeys(SOFTMAXES, _softmax),
    **dict.fromkeys(REDUCTIONS, _reduction),
    "MatMul": _matmul,
    "Gather": _gather,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _along(1),
    "Squeeze": _along(1),
    "Slice": _along(3),
    "Split": _split,
    "Concat": _concat,
}


def is_heavy(node: ir.Node) -> bool:
    """Whether leaving out padding is worth it for this node by itself."""
    if node.op_type == "Gather":
        return all(isinstance(dim, int) and dim >= _FEW for dim in dims_of(node.outputs[0])[2:])
    return node.op_type == "MatMul" or node.op_type in NORMS
