"""Reads attention that is written out: walks both ways from a softmax, and reads scale, mask and bias as algebra."""

from __future__ import annotations

from collections.abc import Collection

from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op, axes_of, op
from attnport.exporter.fusion.indices import (
    DEPTH,
    KEY,
    ROW,
    Index,
    Layout,
    Located,
    at_product,
    bringable,
    is_canonical,
    key_and_value,
    layout_of,
    query,
    reshaped,
)
from attnport.exporter.fusion.mask import MaskReader
from attnport.exporter.fusion.recognise import (
    MIXED,
    NotRecognised,
    Probabilities,
    Recognised,
    Scores,
    Zeroed,
    comes_from,
    is_weight,
    of_every_key,
    product_of,
    read_probabilities,
    read_scores,
)
from attnport.masks import MaskSpec
from attnport.onnx_graph import attribute, dims_of, ir

OP_TYPE = "Softmax"
MAX_SPLITS = 4
"""The largest number of leading axes of an attention that may be two axes merged."""
_BETWEEN = frozenset(
    (
        *("Cast", "Identity", "Dropout", "Where", "IsNaN", "Mul", "Div", "Add", "Sub"),
        *("Neg", "Pow", "Sqrt", "Abs", "Log", "Exp", "Relu", "Max", "Min", "Clip", "CumSum", "Round", "Trilu"),
        *("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Slice", "Concat", "Expand", "Split", "Pad", "Gather"),
    )
)
"""Operators between a softmax and a product for it to be a possible attention. More than `product_of` goes through: one
that it does not go through gives a reason why the attention is not recognised."""


def applies(node: ir.Node) -> bool:
    """A softmax whose result reaches a matrix product."""
    pending, seen = [node.outputs[0]], set()
    while pending:
        value = pending.pop()
        for user in value.consumers():
            if user in seen:
                continue
            seen.add(user)
            if user.op_type in ("MatMul", "Gemm", "Einsum"):
                return True
            if user.op_type in _BETWEEN:
                pending.extend(user.outputs)
    return False


def match(node: ir.Node, masks: Collection[MaskSpec]) -> Recognised:
    """Reads the attention around a softmax.

    Raises:
        NotRecognised: a step is not that of an attention; the message names it.
    """
    product = product_of(node)
    p, values = product.inputs
    transposed = not comes_from(p, node)  # `v^T p^T`, as in channels-first code
    if transposed:
        p, values = values, p
    assert p is not None
    assert values is not None
    layout = layout_of(product.outputs[0], values)
    for _ in range(MAX_SPLITS):
        if layout is None:
            raise NotRecognised("the sizes of the leading axes of the product with v are not known")
        try:
            return _read(node, product, p, values, transposed, layout, MaskReader(layout, masks))
        except Unsplit as err:
            layout = layout.split(err.axis, err.size)
    raise NotRecognised("its tensors are merged and split in too many ways")


class Unsplit(Exception):
    """A tensor is indexed by a part of a leading axis, so that axis is two axes merged."""

    def __init__(self, axis: Axis, size: Expr) -> None:
        super().__init__(axis.name)
        self.axis, self.size = axis, size


def _read(
    node: ir.Node, product: ir.Node, p: ir.Value, values: ir.Value, transposed: bool, layout: Layout, reader: MaskReader
) -> Recognised:
    """Reads the attention for one layout; raises Unsplit if a leading axis has to be split into two."""
    v = at_product(values, layout.raw, *((DEPTH, KEY) if transposed else (KEY, DEPTH)))
    probabilities = at_product(p, layout.raw, *((KEY, ROW) if transposed else (ROW, KEY)))
    if v is None or probabilities is None:
        raise NotRecognised("the product with v is not one of matrices of known rank")
    between = read_probabilities(probabilities, node)
    _check_axis(node, between, values)
    scores = read_scores(node, between.index, reader)
    if between.drops_one is not (scores.sink is not None):
        raise NotRecognised("a key's probability is dropped that is not a sink's, or a sink's probability is kept")
    _check_zeroed(between.zeroed, reader)
    q, k = _operands(scores)
    if set().union(*map(axes_of, between.index[:-1])) - set().union(*map(axes_of, scores.index)):
        raise NotRecognised("the product of q and k is broadcast by a mask or a bias", "expand q before it")
    _check_sizes(Located(node.outputs[0], between.index), q, k if scores.sink is None else None)
    if len({at.value.dtype for at in (q, k, v)} - {None}) > 1:
        raise NotRecognised("q, k and v are not of one type", "cast them to one")
    k, v = key_and_value(layout, k, v)
    q = query(layout, q)
    mask = reader.read(q, k)
    tensors = [(q, (ROW, DEPTH)), (k, (KEY, DEPTH)), (v, (KEY, DEPTH)), *((f.at, (ROW, KEY)) for f in scores.factors)]
    tensors += [(factor.origin.at, (ROW, KEY)) for factor in mask.factors if factor.origin is not None]
    tensors += [(bias.at, (ROW, KEY)) for bias in mask.biases]
    tensors += [(scores.sink, (ROW, KEY))] if scores.sink is not None else []
    for at, last in tensors:
        if not bringable(layout, at, *last):
            _check_split(layout, at)
            raise NotRecognised(f"{at.value.name} has a layout that cannot be brought to rank 4")
    at_output, last_node = _output(layout, product, transposed)
    return Recognised(
        "", node, last_node, layout, q, k, v, scores.scale, mask, at_output, scores.softcap, scores.sink,
        tuple(scores.factors),
    )  # fmt: skip


def _check_split(layout: Layout, at: Located) -> None:
    leads = [lead.axis for lead in (*layout.batch, *layout.heads)]
    for entry in at.index:
        part = entry.args if isinstance(entry, Op) and entry.name in ("FloorDiv", "FloorMod") else ()
        if part and isinstance(part[0], Axis) and part[0] in leads:
            raise Unsplit(part[0], part[1])


def _check_axis(node: ir.Node, between: Probabilities, values: ir.Value) -> None:
    """Refuses a softmax over another axis than the keys of `values`."""
    axis = attribute(node, "axis", -1)
    at = between.index[axis % len(between.index)]
    if at != KEY and not (between.drops_one and at == op("Add", KEY, Const(1))):
        if is_weight(values):
            raise NotRecognised(MIXED.format("probabilities", "before the product with v"))
        raise NotRecognised(f"the softmax runs over axis {axis}, not over the keys")


def _check_zeroed(zeroed: tuple[Zeroed, ...], reader: MaskReader) -> None:
    for step in zeroed:
        hidden = reader.zeroes(step.at, hides=step.hides, number=step.number)
        empty = of_every_key(step.at) if step.hides else None
        if step.number and not hidden:
            raise NotRecognised(
                "after the softmax the probabilities are multiplied by a tensor, not by v",
                "where the factor is the same for every key, multiply the output with it",
            )
        if not hidden and (empty is None or not reader.zeroes(empty, hides=True)):
            raise NotRecognised(
                "after the softmax, probabilities become zero that no mask before it hides",
                "hide these keys before the softmax",
            )


def _operands(scores: Scores) -> tuple[Located, Located]:
    """The product's operands q and k, in either order, over the leading axes."""
    *leads, row, column = scores.index
    # A product of one row, as of one token with its cache, is often squeezed away.
    row, column = (ROW if column == KEY and row == ZERO else row), (ROW if row == KEY and column == ZERO else column)
    left, right = scores.product.inputs
    if (row, column) == (ROW, KEY):
        q, k = at_product(left, tuple(leads), ROW, DEPTH), at_product(right, tuple(leads), DEPTH, KEY)
    elif (row, column) == (KEY, ROW):
        k, q = at_product(left, tuple(leads), KEY, DEPTH), at_product(right, tuple(leads), DEPTH, ROW)
    else:
        raise NotRecognised("the rows and columns of the first product are not the queries and keys of the second")
    if q is None or k is None:
        raise NotRecognised("the product of q and k is not one of matrices of known rank")
    return q, k


def _check_sizes(scores: Located, q: Located, k: Located | None) -> None:
    """Refuses a product of one row, or of one key, that a mask or a bias makes many of."""
    for at, axis in ((q, ROW), (k, KEY)):
        if at is not None and _size(at, axis) == 1 != _size(scores, axis):
            raise NotRecognised(
                "one row of the product of q and k is broadcast by a mask or a bias", "expand q to all rows before it"
            )


def _size(at: Located, axis: Expr) -> int | str | None:
    """The size of an axis; 1 where it was squeezed away."""
    dims = dims_of(at.value)
    return 1 if axis not in at.index else dims[at.index.index(axis)] if dims is not None else None


def _output(layout: Layout, product: ir.Node, transposed: bool) -> tuple[Located, ir.Node]:
    """What a lowered form replaces: the product, or the reshape after it that brings it to `[B,H,S,Dv]`."""
    value = product.outputs[0]
    here = Located(value, (*layout.raw, *((DEPTH, ROW) if transposed else (ROW, DEPTH))))
    if is_canonical(layout, here):
        return here, product
    users = [use.node for use in value.uses()] if not value.is_graph_output() else []
    if len(users) == 1 and users[0].op_type == "Reshape":
        after, before = dims_of(users[0].outputs[0]), dims_of(value)
        wanted: Index = (layout.batch_index, layout.head_index, ROW, DEPTH)
        if after is not None and before is not None and len(after) == 4:
            reshaped_value = Located(users[0].outputs[0], wanted)
            if is_canonical(layout, reshaped_value) and reshaped(wanted, after, before) == here.index:
                return reshaped_value, users[0]
    return here, product
