"""Which nodes work on each token alone: row `[b, t]` of their results depends on row `[b, t]` of their operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from attnport.onnx_graph import CONTRIB, attribute, constant_of, dims_of, ir, is_constant, node_axes, node_axis, perm_of

ELEMENTWISE = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "Min", "Max", "Sum", "Mean", "PRelu"),
    *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Sigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "Selu"),
    *("Celu", "Gelu", "Mish", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Clip", "Sin"),
    *("Cos", "Floor", "Ceil", "Round", "Sign", "Cast", "Identity", "QuickGelu", "FastGelu", "BiasGelu", "Swish"),
}
"""Operators that compute each element from the elements at its place; operands are broadcast."""
NORMS = {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
SKIP_NORMS = {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
SOFTMAXES = {"Softmax", "LogSoftmax", "LpNormalization"}
REDUCTIONS = {
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp"),
    *("ReduceSumSquare", "ReduceLogSum"),
}
MOVES = {"Reshape", "Transpose", "Unsqueeze", "Squeeze", "Split", "Slice", "Concat"}
"""Operators that only give elements other places."""
DOMAINS = {"", CONTRIB}
_FEW = 16
"""Rows of a table shorter than this are not worth leaving out."""


@dataclass(frozen=True)
class Tokens:
    """The names of the two dims of a padding mask, items and tokens, and of their product; "" = it does not occur.

    Attributes:
        turned: The values whose rows go position by position, `[seq, batch, ...]` or `[seq*batch, ...]`, as those of
            torch's own layers do.
    """

    batch: str
    seq: str
    flat: str = ""
    turned: frozenset[ir.Value] = frozenset()

    def lead(self, value: ir.Value | None) -> int:
        """How many axes of a value count tokens: 2 for `[batch, seq, ...]`, 1 for `[batch*seq, ...]`, or 0.

        All other sizes have to be known. The axes may be turned.
        """
        dims = sizes_of(value)
        both = dims[:2] in ((self.batch, self.seq), (self.seq, self.batch))
        lead = 2 if both else int(bool(self.flat) and dims[:1] == (self.flat,))
        return lead if all(isinstance(dim, int) and dim > 0 for dim in dims[lead:]) else 0

    def axes(self, value: ir.Value) -> tuple[int, int, bool]:
        """Where items and tokens are among the axes of a value, and whether one axis of both is turned."""
        turned, lead = value in self.turned, self.lead(value)
        return (0, 0, turned) if lead == 1 else (int(turned), int(not turned), False)


def tokens_of(graph: ir.Graph, mask: ir.Value) -> Tokens:
    """The dims of a mask `[batch, seq]`; their product is the first size behind a `Reshape` of rows that stay whole."""
    batch, seq = map(str, sizes_of(mask))
    tokens = _named(graph, Tokens(batch, seq))
    turned: set[ir.Value] = set()
    for node in graph:
        for value in node.outputs:
            dims, rows = sizes_of(value), [each for each in node.inputs if each is not None and tokens.lead(each)]
            if dims[:2] == (tokens.seq, tokens.batch) or (tokens.lead(value) == 1 and turned & set(rows)):
                turned.add(value)
    turned |= {value for value in graph.inputs if sizes_of(value)[:2] == (tokens.seq, tokens.batch)}
    return replace(tokens, turned=frozenset(turned))


def _named(graph: ir.Graph, tokens: Tokens) -> Tokens:
    """The tokens with the name of the product of their dims."""
    for node in graph:
        if node.op_type == "Reshape" and node.domain == "" and tokens.lead(node.inputs[0]):
            (_, _, *row), (first, *rest) = sizes_of(node.inputs[0]), sizes_of(node.outputs[0]) or (None,)
            whole = [dim for dim in rest if isinstance(dim, int)]
            same = math.prod(whole) == math.prod(dim for dim in row if isinstance(dim, int))
            if isinstance(first, str) and len(whole) == len(rest) and same:
                return Tokens(tokens.batch, tokens.seq, first)
    return tokens


def sizes_of(value: ir.Value | None) -> tuple[int | str | None, ...]:
    """A value's dims: numbers, names, or None; () also where they are not known."""
    return tuple(dims_of(value) or ())


def works_on_tokens(node: ir.Node, tokens: Tokens) -> bool:
    """Whether a node works on each token alone, and its results are rows of floats for tokens.

    Nodes of truths and whole numbers are left as they are: they cost nothing and tell padding from tokens.
    """
    rule = _RULES.get(node.op_type)
    if node.domain not in DOMAINS or rule is None or not node.outputs:
        return False
    used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    floats = all(value.dtype is not None and value.dtype.is_floating_point() for value in node.outputs)
    if not used or not floats or not all(tokens.lead(value) for value in node.outputs):
        return False
    turned = {value in tokens.turned for value in (*node.inputs, *node.outputs) if value and tokens.lead(value)}
    if len(turned) > 1 and node.op_type != "Transpose":
        return False  # rows in two orders
    first = tokens.lead(node.inputs[0])
    if node.op_type not in (*ELEMENTWISE, "Gather", "Reshape") and first != tokens.lead(node.outputs[0]):
        return False
    return rule(node, tokens)


def operand_fits(value: ir.Value, like: ir.Value, tokens: Tokens) -> bool:
    """Whether an operand of an element-wise node can be given for the real tokens alone.

    Its shape has to say what it is along the dims of tokens: every token's own, an item's, a position's, or one for
    all.
    """
    dims, rank, lead = sizes_of(value), len(sizes_of(like)), tokens.lead(like)
    own = ((1, tokens.batch), (1, tokens.seq)) if lead == 2 else ((1, tokens.flat),)
    if lead == 2 and like in tokens.turned:
        own = own[::-1]
    along = len(dims) - (rank - lead)
    if value.shape is None or len(dims) > rank:
        return False
    return along <= 0 or (
        all(dim in known for dim, known in zip(dims[:along], own[lead - along :], strict=True))
        and all(isinstance(dim, int) for dim in dims[along:])
    )


def _elementwise(node: ir.Node, tokens: Tokens) -> bool:
    return all(operand_fits(value, node.outputs[0], tokens) for value in node.inputs if value is not None)


def _matmul(node: ir.Node, tokens: Tokens) -> bool:
    left, right = node.inputs
    return len(sizes_of(left)) > tokens.lead(left) and len(sizes_of(right)) == 2


def _gemm(node: ir.Node, tokens: Tokens) -> bool:
    """`[batch*seq, K]` times a matrix, with a bias that is the same for every row."""
    bias = sizes_of(node.inputs[2]) if len(node.inputs) > 2 else ()
    return not attribute(node, "transA", 0) and (len(bias) < 2 or bias[0] == 1)


def _gather(node: ir.Node, tokens: Tokens) -> bool:
    """Rows of a table by the ids of tokens."""
    table, ids = node.inputs
    lead = tokens.lead(ids)
    return node_axis(node, 2, 0) == 0 and is_constant(table) and lead > 0 and len(sizes_of(ids)) == lead


def _reshape(node: ir.Node, tokens: Tokens) -> bool:
    return tokens.lead(node.inputs[0]) > 0


def _skip_norm(node: ir.Node, tokens: Tokens) -> bool:
    return tokens.lead(node.inputs[1]) == tokens.lead(node.inputs[0])


def _by_axis(node: ir.Node, tokens: Tokens) -> bool:
    """Works along one axis, which has to be behind those of tokens."""
    rank = len(sizes_of(node.inputs[0]))
    same = all(tokens.lead(value) == tokens.lead(node.inputs[0]) for value in node.inputs)
    default = 0 if node.op_type in ("Split", "Concat") else -1
    if node.op_type in NORMS and any(not _is_of_features(value, rank, tokens, node) for value in node.inputs[1:]):
        return False
    return (same or node.op_type != "Concat") and node_axis(node, rank, default) >= tokens.lead(node.inputs[0])


def _is_of_features(value: ir.Value | None, rank: int, tokens: Tokens, node: ir.Node) -> bool:
    """Whether a norm's scale or bias is the same for every token."""
    dims = sizes_of(value)
    known = value is None or (value.shape is not None and all(isinstance(dim, int) for dim in dims))
    return known and all(dim == 1 for dim in dims[: max(0, len(dims) - (rank - tokens.lead(node.inputs[0])))])


def _by_axes(at: int) -> Callable[[ir.Node, Tokens], bool]:
    """A rule for nodes with several axes, in the input at `at`, all behind those of tokens."""

    def rule(node: ir.Node, tokens: Tokens) -> bool:
        ranked = node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0]
        axes = node_axes(node, len(sizes_of(ranked)), at)
        return axes is not None and min(axes, default=0) >= tokens.lead(node.inputs[0])

    return rule


def _tile(node: ir.Node, tokens: Tokens) -> bool:
    repeats = constant_of(node.inputs[1])
    return repeats is not None and bool((repeats[: tokens.lead(node.inputs[0])] == 1).all())


def _transpose(node: ir.Node, tokens: Tokens) -> bool:
    lead, first = tokens.lead(node.inputs[0]), node.inputs[0]
    turns = (first in tokens.turned) != (node.outputs[0] in tokens.turned)
    return perm_of(node, len(sizes_of(first)))[:lead] == ([1, 0] if turns else list(range(lead)))


_RULES: dict[str, Callable[[ir.Node, Tokens], bool]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys({*NORMS, *SOFTMAXES, "Split", "Concat"}, _by_axis),
    **dict.fromkeys({*REDUCTIONS, "Unsqueeze", "Squeeze"}, _by_axes(1)),
    "Slice": _by_axes(3),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Gather": _gather,
    **dict.fromkeys(SKIP_NORMS, _skip_norm),
    "Reshape": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
}
"""By operator, whether it works on rows of tokens alone. What `padding` asks of operators is another question: there
tokens may be along any axes, and operands that hold no padding may be anything."""


def is_heavy(node: ir.Node) -> bool:
    """Whether leaving out padding is worth it for this node by itself."""
    if node.op_type == "Gather":
        return any(isinstance(dim, int) and dim >= _FEW for dim in sizes_of(node.outputs[0])[-1:])
    return node.op_type in ("MatMul", "Gemm") or node.op_type in NORMS
