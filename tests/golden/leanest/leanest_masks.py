"""The leanest form known for each mask, written by hand: `benchmarks/engine_forms.py` measures what else was tried."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from attention_block import BOOL, HALF, INT32, INT64, Block, Sizes, Write

WINDOW, CAP, BUCKETS = 256, 30.0, 32


def _causal(b: Block) -> ir.Value:
    return b.op("LessOrEqual", b.index("j"), b.index("i"))


def _window(b: Block, first: ir.Value, second: ir.Value) -> ir.Value:
    """`first - second <= WINDOW`."""
    return b.op("LessOrEqual", b.op("Sub", first, second), b.const(WINDOW, np.int32))


def _where(b: Block, keep: ir.Value) -> ir.Value:
    return b.products(b.hidden(keep, b.scores()))


def _lengths(b: Block) -> ir.Value:
    return b.operator(b.op("Less", b.index("j"), b.int32(b.input("n", INT64, "batch"), 1, 2, 3)))


def _symmetric_window(b: Block) -> ir.Value:
    i, j = b.index("i"), b.index("j")
    return _where(b, b.op("And", _window(b, i, j), _window(b, j, i)))


def _causal_window(b: Block) -> ir.Value:
    return b.op("And", _causal(b), _window(b, b.index("i"), b.index("j")))


def _prefix(b: Block) -> ir.Value:
    early = b.op("Less", b.index("j"), b.int32(b.input("p", INT64, "batch"), 1, 2, 3))
    return _where(b, b.mapped(b.op("Or", _causal(b), early)))


def _same_document(b: Block) -> ir.Value:
    documents = b.input("documents", INT64, "batch", "seq")
    return b.op("Equal", b.int32(documents, 1, 3), b.int32(documents, 1, 2))


def _local_global(b: Block) -> ir.Value:
    i, j = b.index("i"), b.index("j")
    chosen = b.op("Cast", b.input("global", INT64, "batch", "seq"), to=BOOL)
    either = b.op("Or", b.op("Unsqueeze", chosen, b.ints(1, 3)), b.op("Unsqueeze", chosen, b.ints(1, 2)))
    return _where(b, b.mapped(b.op("Or", b.op("And", _window(b, i, j), _window(b, j, i)), either)))


def _slopes(b: Block) -> ir.Value:
    """ALiBi's bias, `slope (j - i)`."""
    distance = b.op("Cast", b.op("Sub", b.index("j"), b.index("i")), to=HALF)
    return b.op("Mul", distance, b.const(2.0 ** -np.arange(1.0, b.sizes.heads + 1).reshape(1, -1, 1, 1)))


def _alibi_in_one(b: Block, keep: ir.Value) -> ir.Value:
    """The mask within the bias: nothing is written to memory, and no tile is skipped."""
    return b.products(b.op("Add", b.scores(), b.op("Where", keep, _slopes(b), b.const(-np.inf))))


def _gathered(b: Block) -> ir.Value:
    """T5's bias: a table gathered by bucket, written to memory for all heads; causal. Buckets are of one step here."""
    distance = b.op("Sub", b.index("i"), b.index("j"))
    bucket = b.op("Min", b.op("Max", distance, b.const(0, np.int32)), b.const(BUCKETS - 1, np.int32))
    bias = b.op("Gather", b.weight(b.sizes.heads, BUCKETS), b.op("Squeeze", bucket, b.ints(0, 1)), axis=1)
    scores = b.hidden(_causal(b), b.op("Add", b.scores(), b.op("Unsqueeze", bias, b.ints(0))))
    b.anchors = ("qk", "softmax", "pv")
    weights = b.op("Softmax", scores, name="softmax", axis=-1)
    return b.op("MatMul", b.op("Where", b.op("IsNaN", weights), b.const(0.0), weights), b.v, name="pv")


def _softcap(b: Block) -> ir.Value:
    """`c tanh(s / c)` as `c - 2 c / (exp(2 s / c) + 1)`, in float32."""

    def number(value: float) -> ir.Value:
        return b.const(value, np.float32)

    scores = b.op("Cast", b.scores(), to=ir.DataType.FLOAT)
    power = b.op("Exp", b.op("Mul", scores, number(2 / CAP)))
    capped = b.op("Sub", number(CAP), b.op("Div", number(2 * CAP), b.op("Add", power, number(1))))
    weights = b.op("Softmax", b.op("Where", b.padding(), capped, number(-np.inf)), name="softmax", axis=-1)
    b.anchors = ("qk", "softmax", "pv")
    output = b.op("MatMul", b.op("Cast", weights, to=HALF), b.v, name="pv")
    return b.op("Where", b.op("IsNaN", output), b.const(0.0), output)


def _sink(b: Block) -> ir.Value:
    """A zero key and value in front; its score is a product of two small tensors. Causal with padding."""
    first = b.ints(0, 0, 1, 0, 0, 0, 0, 0)
    i = b.index("i")
    size = b.op("Shape", b.k, start=2, end=3)
    b.k, b.v = b.op("Pad", b.k, first), b.op("Pad", b.v, first)
    others = b.op("Expand", b.const(np.zeros((1, 1, 1, 1))), b.op("Concat", b.ints(1, 1, 1), size, axis=0))
    at_first = b.op("Concat", b.const(np.ones((1, 1, 1, 1))), others, axis=3)
    scores = b.op("Add", b.scores(), b.op("Mul", b.weight(1, b.sizes.heads, 1, 1), at_first))
    mask = b.op("Cast", b.input("mask", INT64, "batch", "seq"), to=INT32)
    mask = b.op("Cast", b.op("Pad", mask, b.ints(0, 1, 0, 0), b.const(1, np.int32)), to=BOOL)
    causal = b.op("LessOrEqual", b.op("Sub", b.index("j"), b.const(1, np.int32)), i)
    keep = b.op("And", causal, b.op("Unsqueeze", mask, b.ints(1, 2)))
    return b.products(b.hidden(b.mapped(keep), scores))


def _grouped(b: Block) -> ir.Value:
    """Causal with padding: the query heads of a group as rows of one head."""
    rows, queries = b.ints(0, b.sizes.groups, -1, b.sizes.depth), b.op("Shape", b.q, start=2, end=3)
    b.q = b.op("Reshape", b.q, rows)
    query = b.op("Mod", b.index("i"), b.op("Squeeze", b.op("Cast", queries, to=INT32)))
    keep = b.op("And", b.op("LessOrEqual", b.index("j"), query), b.padding())
    return b.op("Reshape", _where(b, b.mapped(keep)), b.ints(0, b.sizes.heads, -1, b.sizes.value_depth))


def _padded_values(b: Block) -> ir.Value:
    """v as wide as q and k, the output cut back."""
    lacking = b.sizes.depth - b.sizes.value_depth
    b.v = b.op("Pad", b.v, b.ints(0, 0, 0, 0, 0, 0, 0, lacking))
    return b.op("Slice", b.operator(b.padding()), b.ints(0), b.ints(b.sizes.value_depth), b.ints(3))


LEANEST: dict[str, tuple[Write, Sizes]] = {
    "none": (lambda b: b.operator(), Sizes()),
    "padding": (lambda b: b.operator(b.padding()), Sizes()),
    "lengths": (_lengths, Sizes()),
    "causal": (lambda b: b.operator(is_causal=1), Sizes()),
    "causal_padding": (lambda b: _where(b, b.mapped(b.op("And", _causal(b), b.padding()))), Sizes()),
    "window": (_symmetric_window, Sizes()),
    "window_causal": (lambda b: _where(b, _causal_window(b)), Sizes()),
    "window_causal_padding": (lambda b: _where(b, b.mapped(b.op("And", _causal_window(b), b.padding()))), Sizes()),
    "prefix": (_prefix, Sizes()),
    "documents": (lambda b: _where(b, b.mapped(_same_document(b))), Sizes()),
    "documents_causal": (lambda b: _where(b, b.mapped(b.op("And", _causal(b), _same_document(b)))), Sizes()),
    "local_global": (_local_global, Sizes()),
    "explicit": (lambda b: _where(b, b.input("allowed", BOOL, "batch", 1, "seq", "seq")), Sizes()),
    "bias": (lambda b: b.products(b.op("Add", b.scores(), b.input("bias", HALF, "batch", 1, "seq", "seq"))), Sizes()),
    "alibi": (lambda b: b.products(b.hidden(b.padding(), b.op("Add", b.scores(), _slopes(b)))), Sizes()),
    "alibi_causal": (lambda b: _alibi_in_one(b, _causal(b)), Sizes()),
    "alibi_causal_padding": (lambda b: _alibi_in_one(b, b.op("And", _causal(b), b.padding())), Sizes()),
    "gathered": (_gathered, Sizes(4, 4, 64, 64)),
    "softcap": (_softcap, Sizes()),
    "sink": (_sink, Sizes()),
    "grouped": (lambda b: b.operator(), Sizes(groups=2)),
    "grouped_padding": (lambda b: b.operator(b.padding()), Sizes(groups=2)),
    "grouped_causal": (lambda b: b.operator(is_causal=1), Sizes(groups=2)),
    "grouped_causal_padding": (_grouped, Sizes(groups=2)),
    "one_head": (lambda b: _where(b, b.padding()), Sizes(1, 1, 64, 64)),
    "narrow_values": (_padded_values, Sizes(4, 4, 64, 32)),
}
"""By kind of mask: how the attention is written, and its sizes."""
