"""Brings an attention's tensors, of whatever rank the graph has them, to rank 4, and its result back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.attention import Attention, Multiplier, Recognised
from attnport.exporter.fusion.elements import scalar
from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op
from attnport.exporter.fusion.indices import components
from attnport.exporter.fusion.layout import DEPTH, KEY, ROW, Layout, Lead, Located
from attnport.exporter.fusion.moves import dims_of
from attnport.exporter.fusion.operands import depth_first, is_canonical

if TYPE_CHECKING:
    import onnx_ir as ir

Dim = int | str | None


def attention_of(build: Builder, found: Recognised) -> Attention:
    """The attention with q, k, v (and sink) of rank 4; nodes that change their layout are added where need be."""
    layout = found.layout
    lay = Layouts(build, layout, (found.q, found.k, found.v))
    q = lay.operand(found.q, ROW, DEPTH, groups=False)
    for factor in found.factors:
        q = _multiplied(build, lay, q, factor)
    order = (DEPTH, KEY) if depth_first(found.k) else (KEY, DEPTH)
    groups = _same_heads(found.k, found.v)
    k = lay.operand(found.k, *order, groups=groups)
    v = lay.operand(found.v, KEY, DEPTH, groups=groups)
    sink = None if found.sink is None else _sink(build, lay, found.sink, q)
    k_itself, k_transposed = (k, None) if order == (KEY, DEPTH) else (None, k)
    return Attention(
        found.name, found.last, lambda at: lay.bring(at, ROW, KEY), q, k_itself, k_transposed, v, found.scale,
        found.mask, found.softcap, sink,
    )  # fmt: skip


def _sink(build: Builder, lay: Layouts, at: Located, q: ir.Value) -> ir.Value:
    number = scalar(at.value)
    if number is None:
        return lay.bring(at, ROW, KEY)
    assert q.dtype is not None
    return build.const(np.full((1, 1, 1, 1), number), q.dtype.numpy())


def _same_heads(k: Located, v: Located) -> bool:
    """Whether k and v have equal head counts, so that both may keep fewer heads than q."""
    k_dims, v_dims = dims_of(k.value) or [], dims_of(v.value) or []
    return k.index[:-2] == v.index[:-2] and k_dims[:-2] == v_dims[:-2]


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
        self.operands = operands

    def operand(self, at: Located, row: Axis, column: Axis, *, groups: bool) -> ir.Value:
        """q, k or v as `[B,H,.,.]`; as `[B,G,.,.]` where `groups` allows fewer heads."""
        few = groups and self.layout.heads and not set(_axes(at)) >= {lead.axis for lead in self.layout.heads}
        return self.bring(at, row, column, full_batch=True, full_heads=not few)

    def bring(
        self, at: Located, row: Axis, column: Axis, *, full_batch: bool = False, full_heads: bool = False
    ) -> ir.Value:
        """A tensor over the leading axes and `row`, `column` as `[B|1,H|1,row,column]`, broadcastable to the scores."""
        if is_canonical(self.layout, at) and at.index[2:] == (row, column):
            return at.value
        if len(at.index) == 4 and self._broadcasts(at, row, column) and not (full_batch or full_heads):
            return at.value
        wanted = [lead.axis for lead in self._leads] + [row, column]
        value = at.value
        several = max(len(self.layout.batch), len(self.layout.heads)) > 1
        if components(at.index) == tuple(wanted) and (several or any(isinstance(entry, Op) for entry in at.index)):
            made = self._reshape(value, self._merged_dims(value, at, row, column))
        else:
            value, index = self._split(value, at.index)
            value, index = self._permuted(value, index, wanted)
            value = self._unsqueezed(value, index, wanted)
            present = {entry for entry in index if isinstance(entry, Axis)}
            made = self._grouped(value, present, full_batch, full_heads)
        return self._named(made, at, row, column)

    def _named(self, made: ir.Value, at: Located, row: Axis, column: Axis) -> ir.Value:
        """`made` with the names of the sizes that the graph knows, so that equal sizes are known to be equal."""
        import onnx_ir as ir

        dims, own = dims_of(made), dims_of(at.value)
        if dims is not None and own is not None and len(dims) == 4:
            names = [lead[0].dim if len(lead) == 1 else None for lead in (self.layout.batch, self.layout.heads)]
            names += [own[at.index.index(axis)] if axis in at.index else 1 for axis in (row, column)]
            made.shape = ir.Shape([name if dim is None else dim for dim, name in zip(dims, names, strict=True)])
        return made

    def back(self, output: ir.Value, at: Located) -> ir.Value:
        """`[B,H,S,Dv]` in the layout in which the graph has it."""
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
        order = [lead.axis for lead in self._leads]
        if components(at.index[:-2]) == tuple(order):
            return self._reshape(output, self._own_dims(output, at))
        # Heads that lie in another order than they are counted in (repeats before groups): split, permute.
        sizes = [self._size(lead) for lead in self._leads]
        rows = [self.build.size(output, 2), self.build.size(output, 3)]
        apart = self._reshape(output, [*sizes, *rows])
        perm = [order.index(entry) for entry in at.index[:-2] if isinstance(entry, Axis)]
        return self.build.op("Transpose", apart, name="heads_out", perm=[*perm, len(order), len(order) + 1])

    @property
    def _leads(self) -> tuple[Lead, ...]:
        return (*self.layout.batch, *self.layout.heads)

    def _broadcasts(self, at: Located, row: Axis, column: Axis) -> bool:
        """Whether a tensor of rank 4 lies canonically but for axes of size 1."""
        wanted = (self.layout.batch_index, self.layout.head_index, row, column)
        return all(entry in (ZERO, want) for entry, want in zip(at.index, wanted, strict=True))

    def _split(self, value: ir.Value, index: tuple[Expr, ...]) -> tuple[ir.Value, list[Expr]]:
        """Takes merged axes apart."""
        if not any(isinstance(entry, Op) for entry in index):
            return value, list(index)
        parts: list[Expr] = []
        shape: list[Dim | ir.Value] = []
        for position, (entry, dim) in enumerate(zip(index, dims_of(value) or [], strict=True)):
            found = components((entry,)) or (entry,)
            parts.extend(found)
            shape.extend(
                [self._size(self._lead(part)) for part in found]
                if len(found) > 1
                else [dim if isinstance(dim, int) else self.build.size(value, position)]
            )
        return self._reshape(value, shape), parts

    def _permuted(self, value: ir.Value, index: list[Expr], wanted: Sequence[Axis]) -> tuple[ir.Value, list[Expr]]:
        """Drops axes at index zero and puts the others in order."""
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
        """Merges batch axes and head axes; the value has an axis for each, of size 1 where it does not depend on it."""
        full: list[Dim | ir.Value] = []
        expand = merge = False
        for leads, whole in ((self.layout.batch, full_batch), (self.layout.heads, full_heads)):
            some = any(lead.axis in present for lead in leads)
            for number, lead in enumerate(leads):
                here = lead.axis in present
                # Grouped key/value heads have the groups and not the repeats: these stay at size 1.
                groups = leads is self.layout.heads and not whole and not any(x.axis in present for x in leads[1:])
                wanted = whole or (some and len(leads) > 1 and not (groups and number))
                full.append(self._size(lead) if wanted and not here and lead.dim != 1 else 1)
                expand |= wanted and not here and lead.dim != 1
            merge |= len(leads) > 1
            if not leads:
                full.append(1)
        dims = list(dims_of(value) or [])
        if expand:
            shape = [d if isinstance(d, int) else None for d in full]
            known = [a if b == 1 else b for a, b in zip(dims, [*shape, 1, 1], strict=False)] if dims else None
            value = self.build.op("Expand", value, self._shape([*full, 1, 1]), name="whole", shape=known)
            dims = list(dims_of(value) or [])
        if not merge:
            return value
        batch = max(len(self.layout.batch), 1)
        heads = max(len(self.layout.heads), 1)
        b_dims, h_dims = dims[:batch], dims[batch : batch + heads]
        merged: list[Dim | ir.Value] = [_product(b_dims), _product(h_dims)]
        if merged.count(None) > 1:  # both sizes at run time: heads from their parts
            merged[1] = self._product_of_sizes(value, range(batch, batch + heads))
        rows = [self._axis_size(value, position) for position in (batch + heads, batch + heads + 1)]
        return self._reshape(value, [*merged, *rows])

    def _merged_dims(self, value: ir.Value, at: Located, row: Axis, column: Axis) -> list[Dim | ir.Value]:
        """`[B,H,row,column]` for a value whose elements lie in that order already."""
        batch = _product([lead.dim for lead in self.layout.batch]) if self.layout.batch else 1
        heads = _product([lead.dim for lead in self.layout.heads]) if self.layout.heads else 1
        dims: list[Dim | ir.Value] = [batch if isinstance(batch, int) else None, heads]
        if not isinstance(heads, int):
            dims[1] = self._head_size()
        for axis in (row, column):
            dims.append(self._axis_size(value, at.index.index(axis)))
        return dims

    def _own_dims(self, output: ir.Value, at: Located) -> list[Dim | ir.Value]:
        dims = dims_of(at.value) or []
        own: list[Dim | ir.Value] = []
        for entry, dim in zip(at.index[:-2], dims, strict=False):
            if isinstance(dim, int):
                own.append(dim)
            elif isinstance(entry, Axis) and self._source(entry) is not None:
                own.append(self._size(self._lead(entry)))
            else:
                own.append(None)
        return [*own, self.build.size(output, 2), self._axis_size(at.value, len(dims) - 1, of=output)]

    def _head_size(self) -> ir.Value:
        total: ir.Value | None = None
        for lead in self.layout.heads:
            size = self._as_value(self._size(lead))
            total = size if total is None else self.build.op("Mul", total, size, name="heads")
        assert total is not None
        return total

    def _product_of_sizes(self, value: ir.Value, axes: range) -> ir.Value:
        total: ir.Value | None = None
        for axis in axes:
            size = self.build.size(value, axis)
            total = size if total is None else self.build.op("Mul", total, size, name="heads")
        assert total is not None
        return total

    def _axis_size(self, value: ir.Value, axis: int, of: ir.Value | None = None) -> Dim | ir.Value:
        dims = dims_of(value)
        dim = dims[axis] if dims else None
        return dim if isinstance(dim, int) else self.build.size(of or value, 3 if of is not None else axis)

    def _lead(self, axis: Expr) -> Lead:
        return next(lead for lead in self._leads if lead.axis == axis)

    def _source(self, axis: Axis) -> tuple[ir.Value, int] | None:
        for operand in self.operands:
            for position, entry in enumerate(operand.index):
                if entry == axis:
                    return operand.value, position
        return None

    def _size(self, lead: Lead) -> Dim | ir.Value:
        """The size of a leading axis: a number, or its value at run time; None where only a reshape can tell."""
        if isinstance(lead.dim, int):
            return lead.dim
        found = self._source(lead.axis)
        return self._quotient(lead) if found is None else self.build.size(*found)

    def _quotient(self, lead: Lead) -> Dim | ir.Value:
        """The size of the first of several merged axes, from the size of all and that of the others."""
        for operand in self.operands:
            for position, entry in enumerate(operand.index):
                first, *others = components((entry,)) or (entry,)
                dims = [self._lead(axis).dim for axis in others]
                if first == lead.axis and all(isinstance(dim, int) for dim in dims):
                    whole = self.build.size(operand.value, position)
                    by = self.build.const([_product(dims)], np.int64)
                    return self.build.op("Div", whole, by, name="batch", shape=[1])
        return None

    def _as_value(self, size: Dim | ir.Value) -> ir.Value:
        if isinstance(size, int):
            return self.build.const([size], np.int64)
        assert not isinstance(size, str)
        return self.build.const([-1], np.int64) if size is None else size

    def _shape(self, dims: Sequence[Dim | ir.Value]) -> ir.Value:
        if all(isinstance(dim, int) or dim is None for dim in dims):
            return self.build.const([-1 if dim is None else dim for dim in dims], np.int64)
        return self.build.op("Concat", *map(self._as_value, dims), name="shape", axis=0, shape=[len(dims)])

    def _reshape(self, value: ir.Value, dims: Sequence[Dim | ir.Value]) -> ir.Value:
        known = [dim if isinstance(dim, int) else None for dim in dims]
        return self.build.op("Reshape", value, self._shape(dims), name="laid_out", shape=known)


def _axes(at: Located) -> tuple[Expr, ...]:
    return components(at.index) or ()


def _product(dims: Sequence[Dim]) -> int | None:
    total = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        total *= dim
    return total
