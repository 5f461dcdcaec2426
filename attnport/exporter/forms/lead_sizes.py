"""The sizes of an attention's leading axes: numbers if the graph has them, otherwise computed at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from attnport.exporter.builder import Builder, CannotLower
from attnport.exporter.fusion.formula import Expr
from attnport.exporter.fusion.indices import components
from attnport.exporter.fusion.layout import Layout, Lead, Located
from attnport.exporter.fusion.moves import dims_of, known_size

if TYPE_CHECKING:
    import onnx_ir as ir

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
        if not any(_at_run_time(size) for size in sizes):
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


def _at_run_time(size: Size) -> bool:
    return size is not None and not isinstance(size, int)
