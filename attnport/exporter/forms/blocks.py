"""Local attention by blocks: each block of queries with the keys of its own window, so that the cost is linear in T.

The M = B N blocks of C queries become items of the batch, `[M,H,C,D]`, so that one attention operator of the runtime
computes them all. Block n has the queries n C .. n C + C - 1 and the keys from `before` positions earlier to
`after` positions later; a place outside of the sequence repeats a row of it, which the mask hides. Every size is
computed at run time. A short sequence is a single block without neighbours, since blocks are slower there.

(Longformer: Beltagy et al., 2020, has the same idea in kernels of its own; here it is four `Gather` of plain ONNX.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.fusion.formula import Bound, bound, is_of_keys
from attnport.exporter.fusion.recognise import Attention
from attnport.onnx_graph import attributes_of, dims_of, ir, known_size, made_by, passes, perm_of

WIDEST = 512
"""A wider window is left as it is, unless the usual length is known to be longer than its blocks need."""
_LEAST_BLOCK = 64
_BY_HEADS = [0, 2, 1, 3]


@dataclass(frozen=True)
class Window:
    """How far before and after its query's position an allowed key can be."""

    before: int
    after: int

    @property
    def block(self) -> int:
        """Queries in a block: smaller ones read keys more often, larger ones compute more scores that are hidden."""
        return max(_LEAST_BLOCK, max(self.before, self.after) // 2)

    @property
    def short(self) -> int:
        """The longest sequence that is a single block."""
        return 2 * (self.block + self.before + self.after)


def window_of(attention: Attention, usual: int | None) -> tuple[Window | None, str]:
    """The window by which an attention can be computed in blocks; or None, and the reason if it has a window.

    Args:
        usual: The usual key length, if it is known.
    """
    bounds = [found for factor in attention.mask.factors if (found := bound(factor.keep, None)) is not None]
    later = [found.by for found in bounds if found.later]
    before = [found.by for found in bounds if not found.later]
    if not later or not before:
        return None, ""
    window = Window(max(min(before), 0), max(min(later), 0))
    return (None, reason) if (reason := _why_not(attention, window, usual)) else (window, "")


def _why_not(attention: Attention, window: Window, usual: int | None) -> str:
    q, k, v = (dims_of(value) or [None] * 4 for value in (attention.q, attention.k, attention.v))
    if max(window.before, window.after) > WIDEST and (usual or 0) <= window.short:
        return f"its window of {max(window.before, window.after)} is not much shorter than the usual input"
    if isinstance(q[2], int) and q[2] <= window.short:
        return f"its length {q[2]} is not much longer than its window"
    if attention.mask.biases or attention.sink is not None:
        return "it has a bias, whose rows and columns would have to be moved into blocks too"
    if any(not is_of_keys(factor.keep) and bound(factor.keep, None) is None for factor in attention.mask.factors):
        return "its mask has a condition on pairs of tokens besides the window"
    if q[2] is None or q[2] != v[2] or k[2] != v[2]:
        return "it has not as many queries as keys"
    if not all(isinstance(dims[axis], int) for dims in (q, k, v) for axis in (1, 3)):
        return "its head count or head dim is not fixed"
    return ""


@dataclass(frozen=True)
class Local:
    """An attention that is written for the whole sequence, and is to be computed in blocks.

    Attributes:
        keys: Where each condition on keys alone holds, bool `[B|1,1,1|S,T]`.
        additive: Whether the operator's mask is zero and -inf, or bool.
    """

    attention: Attention
    node: ir.Node
    window: Window
    keys: tuple[ir.Value, ...]
    additive: bool


def local(masks: MaskWriter, attention: Attention, output: ir.Value, window: Window, *, additive: bool) -> Local:
    """What `to_blocks` needs of an attention whose `Attention` operator computes `output`."""
    node = output.producer()
    assert node is not None
    keys = tuple(masks.factor(factor, attention) for factor in attention.mask.factors if is_of_keys(factor.keep))
    return Local(attention, node, window, keys, additive)


def to_blocks(model: ir.Model, locals_: Sequence[Local]) -> None:
    """Lets `Attention` operators compute in blocks, in place; each keeps its name and its attributes.

    This comes last, since what is proved of an attention is proved of the operator for the whole sequence.
    """
    build = Builder(model)
    masks = MaskWriter(build)
    for each in locals_:
        build.before, build.scope = each.node, each.attention.name
        _write(build, masks, each)
    passes.TopologicalSortPass()(model)


def _write(build: Builder, masks: MaskWriter, each: Local) -> None:
    node = each.node
    q, k, v = node.inputs[:3]
    assert q is not None
    assert k is not None
    assert v is not None
    blocks = _Blocks(build, masks, replace(each.attention, q=q, k=k, v=v), each.window)
    heads, groups = (_whole_size(value, 1) for value in (q, v))
    mask = blocks.keep(each.keys)
    if each.additive:
        assert q.dtype is not None
        mask = masks.additive(mask, q.dtype)
    rows = blocks.rows(q, heads, "i"), blocks.rows(k, groups, "j"), blocks.rows(v, groups, "j")
    output = build.op("Attention", *rows, mask, dtype=q.dtype, **attributes_of(node))
    made = output.producer()
    assert made is not None
    node.name, made.name = f"{node.name}/whole", node.name
    result = blocks.back(output, heads, _whole_size(v, 3))
    for user, _ in list(node.outputs[0].uses()):
        if user.op_type == "Transpose" and perm_of(user, 4) == _BY_HEADS and not user.outputs[0].is_graph_output():
            build.replace(user.outputs[0], result)
    if node.outputs[0].uses() or node.outputs[0].is_graph_output():
        build.replace(node.outputs[0], build.op("Transpose", result, name="blocks/out_BHSD", perm=_BY_HEADS))


def _whole_size(value: ir.Value, axis: int) -> int:
    """A size that `_why_not` saw to be a number."""
    size = known_size(value, axis)
    assert isinstance(size, int)
    return size


class _Blocks:
    """The indices of blocks, each written once for all attentions with the same window and length."""

    def __init__(self, build: Builder, masks: MaskWriter, attention: Attention, window: Window) -> None:
        self.build, self.masks, self.attention, self.window = build, masks, attention, window
        self.length = masks.length(attention, "j")
        self.batch = masks.length(attention, "b")
        self.is_short = self._op("LessOrEqual", self.length, self._int(window.short), name="is_short", bools=True)
        whole = self._op("Max", self.length, self._int(1))
        self.block = self._op("Where", self.is_short, whole, self._int(window.block), name="block")
        self.before = self._op("Where", self.is_short, self._int(0), self._int(window.before), name="before")
        after = self._op("Where", self.is_short, self._int(0), self._int(window.after), name="after")
        self.keys = self._op("Add", self._op("Add", self.block, self.before), after, name="keys")
        most = self._op("Sub", self._op("Add", self.length, self.block), self._int(1))
        self.count = self._op("Div", most, self.block, name="count")
        self.items = self._range(self._op("Mul", self.batch, self.count), 1)

    def _int(self, number: int | Sequence[int] | Sequence[Sequence[int]]) -> ir.Value:
        return self.build.const(number, np.int64)

    def _op(
        self, op_type: str, *inputs: ir.Value, name: str = "", bools: bool = False, axis: int | None = None
    ) -> ir.Value:
        """One node of index arithmetic, shared by its operands."""

        def write() -> ir.Value:
            dtype = ir.DataType.BOOL if bools else ir.DataType.INT64
            more: dict[str, Any] = {} if axis is None else {"axis": axis}
            return self.build.op(op_type, *inputs, name=f"blocks/{name or op_type.lower()}", dtype=dtype, **more)

        return self.build.once((op_type, inputs, axis), write)

    def _range(self, end: ir.Value, *axes: int) -> ir.Value:
        """`0 .. end - 1`, with new axes of size 1."""
        steps = self._op("Range", self._int(0), end, self._int(1), name="range")
        return self._op("Unsqueeze", steps, self._int(axes), name="range") if axes else steps

    def _within(self, axis: str) -> ir.Value:
        """The place of each query or key from its block's first query on, `[C]` or `[K]`."""
        if axis == "i":
            return self._range(self.block)
        return self._op("Sub", self._range(self.keys), self.before, name="places")

    def _places(self, axis: str) -> ir.Value:
        """The position of each query or key of each block, `[M,C]` or `[M,K]`; it may be outside of the sequence."""
        starts = self._op("Mul", self._op("Mod", self.items, self.count), self.block, name="starts")
        return self._op("Add", starts, self._within(axis), name="places")

    def _inside(self, axis: str) -> ir.Value:
        """The nearest position that is in the sequence."""
        last = self._op("Sub", self.length, self._int(1), name="last")
        return self._op("Max", self._op("Min", self._places(axis), last), self._int(0), name="inside")

    def _item(self) -> ir.Value:
        """The item of each block, `[M,1]`."""
        return self._op("Div", self.items, self.count, name="item")

    def keep(self, of_keys: Sequence[ir.Value]) -> ir.Value:
        """The mask of the blocks, bool `[M,1,C,K]`; equal ones of several attentions are one."""
        at = self._places("j")
        keys = self._op("LessOrEqual", self._int(0), at, name="from_start", bools=True)
        keys = self._op("And", keys, self._op("Less", at, self.length, name="to_end", bools=True), bools=True)
        for part in of_keys:
            keys = self._op("And", keys, self._of_keys(part), name="keys_keep", bools=True)
        queries = self._op("Unsqueeze", self._within("i"), self._int([1]))
        bounds = [bound(factor.keep, None) for factor in self.attention.mask.factors]
        near: ir.Value | None = None
        for found in filter(None, bounds):
            part = self._near(found, queries, self._within("j"))
            near = part if near is None else self._op("And", near, part, bools=True)
        assert near is not None
        keys = self._op("Unsqueeze", keys, self._int([1, 2]), name="keys_keep", bools=True)
        return self._op("And", keys, near, name="keep", bools=True)

    def _near(self, found: Bound, queries: ir.Value, keys: ir.Value) -> ir.Value:
        """Where a key is near enough to a query of the same block, `[C,K]`."""
        distance = self._op("Sub", *((keys, queries) if found.later else (queries, keys)), name="distance")
        return self._op("LessOrEqual", distance, self._int(found.by), name="near", bools=True)

    def _of_keys(self, keep: ir.Value) -> ir.Value:
        """A condition on keys alone, `[B|1,1,1|S,T]`, as `[M,K]`."""
        zeros, ones, axes = (self._int(numbers) for numbers in ([0, 0], [1, 1], [1, 2]))
        # A mask from the graph itself may have equal rows for all queries; one row is enough.
        row = self._op("Slice", keep, zeros, ones, axes, name="keys_row", bools=True)
        row = self._op("Squeeze", row, axes, name="keys_row", bools=True)
        sizes = [self._op("Unsqueeze", size, self._int([0])) for size in (self.batch, self.length)]
        shape = self._op("Concat", *sizes, name="keys_shape", axis=0)
        row = self._op("Reshape", self._op("Expand", row, shape, bools=True), self._int([-1]), bools=True)
        index = self._op("Add", self._op("Mul", self._item(), self.length), self._inside("j"), name="keys_index")
        return self._op("Gather", row, index, name="keys_keep", bools=True, axis=0)

    def rows(self, value: ir.Value, heads: int, axis: str) -> ir.Value:
        """q, k or v, `[B,H,T,D]`, as `[M,H,C,D]` or `[M,H,K,D]`: one copy, even if `value` was transposed."""
        depth = _whole_size(value, 3)
        node = made_by(value, "Transpose")
        turned = node is not None and perm_of(node, 4) == _BY_HEADS
        source = node.inputs[0] if turned and node is not None else value
        assert source is not None
        table = self.build.op("Reshape", source, self._int([-1, depth]), name="blocks/table")
        index = self._index(heads, axis, token_first=turned)
        shape = [None, heads, None, depth]
        return self.build.op("Gather", table, index, name="blocks/rows", dtype=value.dtype, shape=shape, axis=0)

    def _heads(self, heads: int) -> ir.Value:
        """`0 .. heads - 1`, `[heads,1]`: a constant, so that OpenVINO knows how many there are."""
        return self._int([[head] for head in range(heads)])

    def _index(self, heads: int, axis: str, *, token_first: bool) -> ir.Value:
        """The row of a table `[B*T*H, D]` or `[B*H*T, D]` for each block, head and place, `[M,H,C]` or `[M,H,K]`."""
        places = self._op("Unsqueeze", self._inside(axis), self._int([1]), name="places")
        first = self._op("Mul", self._item(), self._op("Mul", self.length, self._int(heads)), name="item_rows")
        first = self._op("Unsqueeze", first, self._int([1]), name="item_rows")
        if token_first:  # (b T + t) H + h
            rest = self._op("Add", self._op("Mul", places, self._int(heads)), self._heads(heads))
        else:  # (b H + h) T + t
            rest = self._op("Add", self._op("Mul", self._heads(heads), self.length), places)
        return self._op("Add", first, rest, name="rows_index")

    def back(self, output: ir.Value, heads: int, depth: int) -> ir.Value:
        """The output of all blocks, `[M,H,C,Dv]`, as `[B,T,H,Dv]`."""
        index = self._back_index(heads)
        table = self.build.op("Reshape", output, self._int([-1, depth]), name="blocks/out_table")
        shape = [None, None, heads, depth]
        return self.build.op("Gather", table, index, name="blocks/out", dtype=output.dtype, shape=shape, axis=0)

    def _back_index(self, heads: int) -> ir.Value:
        """`((b N + t / C) H + h) C + t % C`, `[B,T,H]`."""
        at, items = self._range(self.length, 1), self._range(self.batch, 1, 2)
        block = self._op("Add", self._op("Mul", items, self.count), self._op("Div", at, self.block), name="of_block")
        of_head = self._op("Add", self._op("Mul", block, self._int(heads)), self._int([*range(heads)]), name="of_head")
        within = self._op("Mod", at, self.block)
        return self._op("Add", self._op("Mul", of_head, self.block), within, name="out_index")
