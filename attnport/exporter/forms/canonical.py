"""Brings an attention's tensors, which may have any rank in the graph, to rank 4, and its result back.

The sizes of its leading axes are numbers if the graph has them, otherwise they are computed at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from attnport.exporter.builder import Builder, CannotLower
from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op
from attnport.exporter.fusion.indices import (
    DEPTH,
    KEY,
    ROW,
    Layout,
    Lead,
    Located,
    components,
    depth_first,
    is_canonical,
)
from attnport.exporter.fusion.recognise import Attention, Multiplier, Recognised
from attnport.onnx_graph import dims_of, ir, known_size, scalar

Size: TypeAlias = "int | ir.Value | None"
"""A number, an int64 tensor of one element, or None if only a reshape can infer it."""


class LeadSizes:
    """The sizes for one attention.

    Args:
        operands: q, k and v, whose shapes are read at run time.
    """

    def __init__(self, build: Builder, layout: Layout, operands: Sequence[Located]) -> None:
        self.build = build
        self.leads = (*layout.batch, *layout.heads)
        self.operands = operands

    def lead(self, axis: Expr) -> Lead:
        """The leading axis with an index variable."""
        return next(lead for lead in self.leads if lead.axis == axis)

    def of(self, lead: Lead) -> Size:
        """The size of a leading axis."""
        if isinstance(lead.dim, int):
            return lead.dim
        for operand in self.operands:
            if lead.axis in operand.index:
                return self.build.size(operand.value, operand.index.index(lead.axis))
        named = None if lead.dim is None else self.build.named_size(lead.dim)
        return self._quotient(lead) if named is None else named

    def of_axis(self, value: ir.Value, axis: int) -> Size:
        """The size of one axis of a tensor."""
        dims = dims_of(value)
        dim = dims[axis] if dims else None
        return dim if isinstance(dim, int) else self.build.size(value, axis)

    def product(self, sizes: Sequence[Size]) -> Size:
        """The product of sizes; None if one of them is None."""
        total: Size = 1
        for size in sizes:
            if size is None or total is None:
                return None
            if isinstance(total, int) and isinstance(size, int):
                total *= size
            elif total == 1:
                total = size
            else:
                total = self.build.op("Mul", self._as_value(total), self._as_value(size), name="size", shape=[1])
        return total

    def shape(self, sizes: Sequence[Size]) -> ir.Value:
        """A shape as int64 tensor; an unknown size is -1, which the reshape infers.

        Raises:
            CannotLower: more than one size is unknown.
        """
        if sum(size is None for size in sizes) > 1:
            raise CannotLower("the sizes of its leading axes are merged, and nothing in the graph has them apart")
        if all(size is None or isinstance(size, int) for size in sizes):
            return self.build.const([-1 if size is None else size for size in sizes], np.int64)
        return self.build.op("Concat", *map(self._as_value, sizes), name="shape", axis=0, shape=[len(sizes)])

    def reshaped(self, value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
        """`value` reshaped to `sizes`."""
        known = [size if isinstance(size, int) else None for size in sizes]
        return self.build.op("Reshape", value, self.shape(sizes), name="laid_out", shape=known)

    def _quotient(self, lead: Lead) -> Size:
        """The size of the first of several merged axes, from the size of the merged axis and those of the others."""
        for operand in self.operands:
            for position, entry in enumerate(operand.index):
                first, *others = components((entry,)) or (entry,)
                if first == lead.axis and len(others) == 1:
                    merged = self._before_merge(known_size(operand.value, position), self.lead(others[0]).dim)
                    if merged is not None:
                        return merged
                by = self.product([self.of(self.lead(axis)) for axis in others]) if first == lead.axis else None
                if by is not None:
                    whole, one = self.build.size(operand.value, position), self.build.const([1], np.int64)
                    # A division by zero may end a runtime's process, and a dim may be empty.
                    by = by if isinstance(by, int) else self.build.op("Max", by, one, name="size", shape=[1])
                    return self.build.op("Div", whole, self._as_value(by), name="size", shape=[1])
        return None

    def _before_merge(self, whole: int | str | None, second: int | str | None) -> ir.Value | None:
        """The size that was merged with `second` into `whole`, read before a reshape that does this.

        TensorRT-RTX has no attention kernel where a mask's shape is computed by a division.
        """
        for node in self.build.model.graph if whole is not None and second is not None else ():
            if node is self.build.before:
                break
            if node.op_type == "Reshape" and (merged := node.inputs[0]) is not None:
                before, after = dims_of(merged) or [], dims_of(node.outputs[0]) or []
                at = after.index(whole) if whole in after else len(after)
                if before[at + 1 :] == [second, *after[at + 1 :]] and before[:at] == after[:at]:
                    return self.build.size(merged, at)
        return None

    def _as_value(self, size: Size) -> ir.Value:
        if isinstance(size, int) or size is None:
            return self.build.const([-1 if size is None else size], np.int64)
        return size


Dim = int | str | None


def attention_of(build: Builder, recognised: Recognised) -> Attention:
    """The attention with q, k, v (and sink) of rank 4; nodes that change their layout are added if needed."""
    layout = recognised.layout
    lay = Layouts(build, layout, (recognised.q, recognised.k, recognised.v))
    q = lay.operand(recognised.q, ROW, DEPTH, groups=False)
    for factor in recognised.factors:
        q = _multiplied(build, lay, q, factor)
    order = (DEPTH, KEY) if depth_first(recognised.k) else (KEY, DEPTH)
    groups = _same_heads(recognised.k, recognised.v)
    k = lay.operand(recognised.k, *order, groups=groups)
    v = lay.operand(recognised.v, KEY, DEPTH, groups=groups)
    k, v = _for_each_head(build, k, v), _for_each_head(build, v, k)
    sink = None if recognised.sink is None else _sink(build, lay, recognised.sink, q)
    k_itself, k_transposed = (k, None) if order == (KEY, DEPTH) else (None, k)
    return Attention(
        recognised.name, recognised.last, lambda at: lay.bring(at, ROW, KEY), q, k_itself, k_transposed, v,
        recognised.scale, recognised.mask, recognised.softcap, sink,
    )  # fmt: skip


def _sink(build: Builder, lay: Layouts, at: Located, q: ir.Value) -> ir.Value:
    number = scalar(at.value)
    if number is None:
        return lay.bring(at, ROW, KEY)
    assert q.dtype is not None
    return build.const(np.full((1, 1, 1, 1), number), q.dtype.numpy())


def _same_heads(k: Located, v: Located) -> bool:
    """Whether k and v have equal head counts, so that both can keep fewer heads than q."""
    k_dims, v_dims = dims_of(k.value) or [], dims_of(v.value) or []
    return k.index[:-2] == v.index[:-2] and k_dims[:-2] == v_dims[:-2]


def _for_each_head(build: Builder, value: ir.Value, other: ir.Value) -> ir.Value:
    """Keys or values of rank 4; one head for all, as values have in a temporal fusion transformer, for each of the
    other's."""
    dims, heads = dims_of(value), (dims_of(other) or [None] * 4)[1]
    if dims is None or dims[1] != 1 or not isinstance(heads, int) or heads == 1:
        return value
    shape = [dims[0], heads, *dims[2:]]
    return build.op("Expand", value, build.const([1, heads, 1, 1], np.int64), name="each_head", shape=shape)


def _multiplied(build: Builder, lay: Layouts, q: ir.Value, factor: Multiplier) -> ir.Value:
    by = build.cast(lay.bring(factor.at, ROW, KEY), q.dtype) if q.dtype is not None else lay.bring(factor.at, ROW, KEY)
    return build.op("Div" if factor.divides else "Mul", q, by, name="scale_q", shape=dims_of(q))


class Layouts:
    """Moves tensors between an attention's own layout and rank 4.

    Args:
        operands: q, k and v, from which the sizes of the leading axes are taken at run time.
    """

    def __init__(self, build: Builder, layout: Layout, operands: Sequence[Located]) -> None:
        self.build = build
        self.layout = layout
        self.leads = (*layout.batch, *layout.heads)
        self.sizes = LeadSizes(build, layout, operands)

    def operand(self, at: Located, row: Axis, column: Axis, *, groups: bool) -> ir.Value:
        """q, k or v as `[B,H,.,.]`, or as `[B,G,.,.]` if `groups` allows fewer heads."""
        heads = {lead.axis for lead in self.layout.heads}
        few = groups and heads and not set(components(at.index) or ()) >= heads
        return self.bring(at, row, column, full_batch=True, full_heads=not few)

    def bring(
        self, at: Located, row: Axis, column: Axis, *, full_batch: bool = False, full_heads: bool = False
    ) -> ir.Value:
        """A tensor over the leading axes and `row`, `column` as `[B|1,H|1,row,column]`, broadcastable to the scores."""
        if is_canonical(self.layout, at) and at.index[2:] == (row, column):
            return at.value
        if len(at.index) == 4 and self._broadcasts(at, row, column) and not (full_batch or full_heads):
            return at.value
        wanted = [lead.axis for lead in self.leads] + [row, column]
        value = at.value
        several = max(len(self.layout.batch), len(self.layout.heads)) > 1
        if components(at.index) == tuple(wanted) and (several or any(isinstance(entry, Op) for entry in at.index)):
            rows = [self.sizes.of_axis(value, at.index.index(axis)) for axis in (row, column)]
            result = self._merged(
                value, *([self.sizes.of(lead) for lead in group] for group in self._groups), rows=rows
            )
        else:
            value, index = self._split(value, at.index)
            value, index = self._permuted(value, index, wanted)
            value = self._unsqueezed(value, index, wanted)
            present = {entry for entry in index if isinstance(entry, Axis)}
            result = self._grouped(value, present, full_batch, full_heads)
        return self._named(result, at, row, column)

    def _named(self, result: ir.Value, at: Located, row: Axis, column: Axis) -> ir.Value:
        """The tensor with the graph's names for its sizes, so that equal sizes are known to be equal."""
        dims, dims_in_graph = dims_of(result), dims_of(at.value)
        if dims is not None and dims_in_graph is not None and len(dims) == 4:
            names = [lead[0].dim if len(lead) == 1 else None for lead in (self.layout.batch, self.layout.heads)]
            names += [dims_in_graph[at.index.index(axis)] if axis in at.index else 1 for axis in (row, column)]
            result.shape = ir.Shape([name if dim is None else dim for dim, name in zip(dims, names, strict=True)])
        return result

    def back(self, output: ir.Value, at: Located) -> ir.Value:
        """`[B,H,S,Dv]` in the layout that the output has in the graph."""
        if at.index[-2:] == (DEPTH, ROW):
            turned = self.build.op("Transpose", output, name="turned_out", perm=[0, 1, 3, 2])
            return self._back(turned, at)
        return self._back(output, at)

    def _back(self, output: ir.Value, at: Located) -> ir.Value:
        if is_canonical(self.layout, at):
            return output
        dims = dims_of(at.value) or []
        if not self.layout.heads and len(dims) == 2 + len(self.layout.batch) and len(self.layout.batch) < 2:
            axes = [1] if self.layout.batch else [0, 1]
            return self.build.op("Squeeze", output, self.build.const(axes, np.int64), name="one_head_out")
        order = [lead.axis for lead in self.leads]
        if components(at.index[:-2]) == tuple(order):
            return self.sizes.reshaped(output, [*self._own_leads(at), *self._rows(output, 2)])
        # The heads are in another order than the one in which they are counted (repeats before groups).
        apart = self.sizes.reshaped(output, [*map(self.sizes.of, self.leads), *self._rows(output, 2)])
        perm = [order.index(entry) for entry in at.index[:-2] if isinstance(entry, Axis)]
        return self.build.op("Transpose", apart, name="heads_out", perm=[*perm, len(order), len(order) + 1])

    def _broadcasts(self, at: Located, row: Axis, column: Axis) -> bool:
        """Whether a tensor of rank 4 has the canonical layout, except for axes of size 1."""
        wanted = (self.layout.batch_index, self.layout.head_index, row, column)
        return all(entry in (ZERO, want) for entry, want in zip(at.index, wanted, strict=True))

    def _split(self, value: ir.Value, index: tuple[Expr, ...]) -> tuple[ir.Value, list[Expr]]:
        """Splits merged axes."""
        if not any(isinstance(entry, Op) for entry in index):
            return value, list(index)
        parts: list[Expr] = []
        shape: list[Size] = []
        for position, entry in enumerate(index):
            axes = components((entry,)) or (entry,)
            parts.extend(axes)
            if len(axes) > 1:
                shape.extend(self.sizes.of(self.sizes.lead(part)) for part in axes)
            else:
                shape.append(self.sizes.of_axis(value, position))
        return self.sizes.reshaped(value, shape), parts

    def _permuted(self, value: ir.Value, index: list[Expr], wanted: Sequence[Axis]) -> tuple[ir.Value, list[Expr]]:
        """Removes axes at index zero and puts the others in order."""
        gone = [position for position, entry in enumerate(index) if isinstance(entry, Const)]
        dims = dims_of(value)
        if gone:
            left = [d for position, d in enumerate(dims or []) if position not in gone]
            value = self.build.op(
                "Squeeze", value, self.build.const(gone, np.int64), name="squeezed", shape=left if dims else None
            )
            dims = left if dims else None
        entries = [entry for entry in index if not isinstance(entry, Const)]
        order = sorted(range(len(entries)), key=lambda position: wanted.index(entries[position]))
        if order != [*range(len(entries))]:
            shape = [dims[position] for position in order] if dims else None
            value = self.build.op("Transpose", value, name="permuted", perm=order, shape=shape)
        return value, [entries[position] for position in order]

    def _unsqueezed(self, value: ir.Value, index: list[Expr], wanted: Sequence[Axis]) -> ir.Value:
        missing = [position for position, axis in enumerate(wanted) if axis not in index]
        extra = [] if self.layout.batch else [0]
        at = len(self.layout.batch) + len(extra)
        dims: list[Dim] = list(dims_of(value) or [])
        axes = [position + len(extra) for position in missing] + extra
        if not self.layout.heads:
            axes = [axis + 1 if axis >= at else axis for axis in axes] + [at]
        if not axes:
            return value
        for axis in sorted(axes):
            dims.insert(axis, 1)
        return self.build.op("Unsqueeze", value, self.build.const(sorted(axes), np.int64), name="rank_4", shape=dims)

    def _grouped(self, value: ir.Value, present: set[Axis], full_batch: bool, full_heads: bool) -> ir.Value:
        """Merges the batch axes and the head axes; the value has all of them, with size 1 where it does not vary."""
        full: list[Size] = []
        for leads, whole in zip(self._groups, (full_batch, full_heads), strict=True):
            some = any(lead.axis in present for lead in leads)
            # Grouped key/value heads have an axis of groups; the axis of repeats stays at size 1.
            groups = leads is self.layout.heads and not whole and not any(lead.axis in present for lead in leads[1:])
            for number, lead in enumerate(leads or (None,)):
                wanted = lead is not None and (whole or (some and len(leads) > 1 and not (groups and number)))
                missing = lead is not None and wanted and lead.axis not in present and lead.dim != 1
                full.append(self.sizes.of(lead) if missing and lead is not None else 1)
        if any(size != 1 for size in full):
            value = self._expanded(value, [*full, 1, 1])
        batch, heads = (max(len(leads), 1) for leads in self._groups)
        if batch == heads == 1:
            return value
        of_leads = [self.sizes.of_axis(value, position) for position in range(batch + heads)]
        return self._merged(value, of_leads[:batch], of_leads[batch:], rows=self._rows(value, batch + heads))

    def _expanded(self, value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
        if None in sizes:
            raise CannotLower("the size of one of its leading axes is in no tensor of the graph")
        dims = dims_of(value)
        known = [a if b == 1 else b if isinstance(b, int) else None for a, b in zip(dims or [], sizes, strict=False)]
        return self.build.op("Expand", value, self.sizes.shape(sizes), name="whole", shape=known if dims else None)

    def _merged(
        self, value: ir.Value, batch: Sequence[Size], heads: Sequence[Size], *, rows: Sequence[Size]
    ) -> ir.Value:
        """Merges batch axes and head axes to `[B,H,*rows]`; the reshape infers the batch if it is not a number."""
        whole = self.sizes.product(batch) if all(isinstance(size, int) for size in batch) else None
        return self.sizes.reshaped(value, [whole, self.sizes.product(heads), *rows])

    def _rows(self, value: ir.Value, start: int) -> list[Size]:
        return [self.sizes.of_axis(value, start), self.sizes.of_axis(value, start + 1)]

    def _own_leads(self, at: Located) -> list[Size]:
        """The sizes of the leading axes of a value of the graph."""
        sizes: list[Size] = []
        for entry, dim in zip(at.index[:-2], dims_of(at.value) or [], strict=False):
            if isinstance(dim, int):
                sizes.append(dim)
            else:
                sizes.append(self.sizes.of(self.sizes.lead(entry)) if isinstance(entry, Axis) else None)
        return sizes

    @property
    def _groups(self) -> tuple[tuple[Lead, ...], tuple[Lead, ...]]:
        return self.layout.batch, self.layout.heads
