"""Writes a mask that was read as formulas back into a graph, once and in its smallest shape.

`reindexed` reads a mask over other indices, for forms that lay out queries or keys anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.comparisons import same, size_sum
from attnport.exporter.fusion.formula import ZERO, Axis, Const, Expr, Op, Read, Size, axes_of, is_bool, op
from attnport.exporter.fusion.layout import Located
from attnport.exporter.fusion.mask import SCORES, THRESHOLD, Factor
from attnport.onnx_graph import known_size

if TYPE_CHECKING:
    import onnx_ir as ir

AXES = ("b", "h", "i", "j")


class _CannotWrite(Exception):
    """A formula has no direct graph form."""


class MaskWriter:
    """Writes masks for the attentions of one graph; equal formulas over equal sizes are written once and shared."""

    def __init__(self, build: Builder) -> None:
        self.build = build
        self._sizes: dict[tuple[str, object], ir.Value] = {}
        self._originals: set[ir.Value] = set()

    def keep(self, attention: Attention) -> ir.Value | None:
        """The allowed keys as bool, `[B|1, H|1, S|1, T|1]`, with size 1 where the mask does not vary; None = all."""
        total: ir.Value | None = None
        for factor in attention.mask.factors:
            part = self.factor(factor, attention)
            total = part if total is None else self._shared("And", total, part)
        return total

    def may_vary_by_head(self, attention: Attention) -> bool:
        """Whether mask and biases together may have more than one head: a tensor of the graph itself can have any."""
        mask = attention.mask
        return bool(mask.biases) or any(
            "h" in axes_of(factor.keep) or self.factor(factor, attention) in self._originals for factor in mask.factors
        )

    def full(self, attention: Attention) -> ir.Value | None:
        """As `keep`, with the S and T axes at full size, for runtimes that do not broadcast them."""
        import onnx_ir as ir

        keep = self.keep(attention)
        if keep is None:
            return None
        key = ("full", keep, *self._lengths(attention))
        target = self._full_shape(attention)
        return self.build.once(
            key, lambda: self.build.op("Expand", keep, target, name="mask/keep_B1ST", dtype=ir.DataType.BOOL)
        )

    def additive(self, keep: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Zero where `keep` allows, -inf elsewhere, in `dtype`."""
        key = ("additive", keep, dtype)
        zero, low = (self.build.const(number, dtype.numpy()) for number in (0.0, -np.inf))
        return self.build.once(key, lambda: self.build.op("Where", keep, zero, low, name="mask/additive", dtype=dtype))

    def full_bias(self, attention: Attention, bias: ir.Value) -> ir.Value:
        """A bias with its S and T axes at full size."""
        key = ("full", bias, *self._lengths(attention))
        return self.build.once(
            key,
            lambda: self.build.op("Expand", bias, self._full_shape(attention), name="mask/bias_B1ST", dtype=bias.dtype),
        )

    def _full_shape(self, attention: Attention) -> ir.Value:
        import onnx_ir as ir

        one, lengths = self.build.const([1], np.int64), self._lengths(attention)
        key = ("shape", *lengths)
        return self.build.once(
            key, lambda: self.build.op("Concat", one, one, *lengths, name="mask/shape", dtype=ir.DataType.INT64, axis=0)
        )

    counting: ClassVar[tuple[str, str]] = ("INT32", "ReduceMax")
    """The type and the operator that tell whether any element is true; reductions of bool exist from opset 20 on."""

    def any_key(self, keep: ir.Value) -> ir.Value:
        """Whether a row has an allowed key, `[B|1, H|1, S|1, 1]`."""
        import onnx_ir as ir

        def write() -> ir.Value:
            dtype, reduction = self.counting
            numbers = self.build.cast(keep, ir.DataType[dtype], "mask/as_number")
            most = self.build.op(reduction, numbers, self.build.const([-1], np.int64), name="mask/any", keepdims=1)
            return self.build.cast(most, ir.DataType.BOOL, "mask/any_key")

        return self.build.once(("any", keep), write)

    def bias(self, attention: Attention, dtype: ir.DataType) -> ir.Value | None:
        """The sum of the biases, in `dtype`, broadcastable to `[B,H,S,T]`; None if there is none."""
        total: ir.Value | None = None
        for bias in attention.mask.biases:
            value = self._cast(self._brought(attention, bias.at), dtype)
            if bias.times != 1.0:
                value = self._shared("Mul", value, self.build.like(bias.times, value))
            total = value if total is None else self._shared("Add", total, value)
        return total

    def _brought(self, attention: Attention, at: Located) -> ir.Value:
        """A tensor of the graph as `[B|1,H|1,S|1,T|1]`, once for all layers."""
        key = ("brought", at)
        return self.build.once(key, lambda: attention.bring(at))

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        key = ("cast", value, dtype)
        return self.build.once(key, lambda: self.build.cast(value, dtype))

    def length(self, attention: Attention, axis: str) -> ir.Value:
        """The run-time size of one index variable as an int64 scalar, shared like its tensor of one element."""
        import onnx_ir as ir

        size = self._size(attention, axis)
        return self.build.once(
            ("length", size),
            lambda: self.build.op("Squeeze", size, name="mask/length", dtype=ir.DataType.INT64, shape=[]),
        )

    def _lengths(self, attention: Attention) -> tuple[ir.Value, ir.Value]:
        return self._size(attention, "i"), self._size(attention, "j")

    def _size(self, attention: Attention, axis: str) -> ir.Value:
        """The run-time size of one index variable, int64[1]; shared between attentions with the same dim."""
        value, at = self._sized(attention, axis)
        name = known_size(value, at)
        key = (axis, value if name is None else name)
        if key not in self._sizes:
            self._sizes[key] = self.build.size(value, at)
        return self._sizes[key]

    @staticmethod
    def _sized(attention: Attention, axis: str) -> tuple[ir.Value, int]:
        """A tensor with an index variable, and the axis of it."""
        return attention.v if axis == "j" else attention.q, {"b": 0, "h": 1, "i": 2, "j": 2}[axis]

    def _sizes_of(self, expr: Expr, attention: Attention) -> list[ir.Value]:
        """The sizes that a written formula depends on: the same formula over other sizes is another tensor."""
        return [self._size(attention, axis) for axis in sorted(axes_of(expr))]

    def _shared(self, op_type: str, *inputs: ir.Value) -> ir.Value:
        key = (op_type, *inputs)
        return self.build.once(key, lambda: self.build.op(op_type, *inputs, name=f"mask/{op_type.lower()}"))

    def factor(self, factor: Factor, attention: Attention) -> ir.Value:
        """Where one factor holds, as bool `[B|1, H|1, S|1, T|1]`."""
        key = ("factor", factor.keep, *self._sizes_of(factor.keep, attention))

        def write() -> ir.Value:
            written = self._write(factor.keep, attention)
            if axes_of(factor.keep):
                return written
            # A scalar, or a comparison of sizes.
            four = self.build.const([1, 1, 1, 1], np.int64)
            return self.build.op("Reshape", written, four, name="mask/for_all", dtype=written.dtype)

        try:
            return self.build.once(key, write)
        except _CannotWrite:
            return self._original(factor, attention)

    def _original(self, factor: Factor, attention: Attention) -> ir.Value:
        """The graph's own tensor, for a formula that cannot be written."""
        import onnx_ir as ir

        assert factor.origin is not None
        value = self._brought(attention, factor.origin.at)
        if factor.origin.additive:
            low = self.build.like(THRESHOLD, value)
            value = self.build.op("Greater", value, low, name="mask/keep", dtype=ir.DataType.BOOL)
        elif factor.origin.hides:
            value = self._shared("Not", value)
        self._originals.add(value)
        return value

    def _write(self, expr: Expr, attention: Attention) -> ir.Value:
        """`expr` as a tensor of rank 4 (or a scalar constant), with size 1 on the axes it does not depend on."""
        key = ("expr", expr, *self._sizes_of(expr, attention))
        return self.build.once(key, lambda: self._write_new(expr, attention))

    def _write_new(self, expr: Expr, attention: Attention) -> ir.Value:
        import onnx_ir as ir

        build = self.build
        if isinstance(expr, Const):
            return build.const(expr.value, np.bool_ if isinstance(expr.value, bool) else np.int64)
        if isinstance(expr, Axis):
            zero, one = build.const(0, np.int64), build.const(1, np.int64)
            end = build.op("Squeeze", self._size(attention, expr.name), name="mask/end", dtype=ir.DataType.INT64)
            steps = build.op("Range", zero, end, one, name=f"mask/{expr.name}", dtype=ir.DataType.INT64)
            axes = [axis for axis, name in enumerate(AXES) if name != expr.name]
            return build.op("Unsqueeze", steps, build.const(axes, np.int64), name=f"mask/{expr.name}_4d")
        if isinstance(expr, Size):
            return self._input_size(expr)
        if isinstance(expr, Read):
            return self._read(expr, attention)
        return self._operation(expr, attention)

    def _input_size(self, expr: Size) -> ir.Value:
        for value in self.build.model.graph.inputs:
            for axis, dim in enumerate(value.shape or ()):
                if not isinstance(dim, int) and dim.value == expr.dim:
                    return self.build.size(value, axis)
        raise _CannotWrite

    def _read(self, expr: Read, attention: Attention) -> ir.Value:
        """An input that is indexed by index variables in order: unsqueezed to rank 4, integers as int64.

        An input of rank 4 may have size 1 on an axis, which stands for all of its entries. Of one that is longer than
        the attention, such as a mask for the longest sequence, the first entries are taken.
        """
        import onnx_ir as ir

        names = [at.name if isinstance(at, Axis) else None for at in expr.index]
        wanted = [name for name in AXES if name in names]
        dims = expr.value.shape
        whole = len(names) == 4 and all(
            name == axis or (at == ZERO and dim == 1)
            for name, axis, at, dim in zip(names, AXES, expr.index, dims or [None] * 4, strict=True)
        )
        if not whole and (None in names or names != wanted or dims is None or len(dims) != len(names)):
            raise _CannotWrite
        value = self._within(expr, attention)
        if value.dtype is not None and value.dtype.is_integer() and value.dtype != ir.DataType.INT64:
            value = self.build.cast(value, ir.DataType.INT64, "mask/cast")
        axes = [] if whole else [axis for axis, name in enumerate(AXES) if name not in names]
        return self._shared("Unsqueeze", value, self.build.const(axes, np.int64)) if axes else value

    def _within(self, expr: Read, attention: Attention) -> ir.Value:
        """The tensor that is read, cut to the lengths of the attention where it may be longer."""
        value = expr.value
        for axis, at in enumerate(expr.index):
            if isinstance(at, Axis) and not same(size_sum(value, axis), size_sum(*self._sized(attention, at.name))):
                zero, along = self.build.const([0], np.int64), self.build.const([axis], np.int64)
                value = self._shared("Slice", value, zero, self._size(attention, at.name), along)
        return value

    def _operation(self, expr: Op, attention: Attention) -> ir.Value:
        import onnx_ir as ir

        if expr.name == "Ne" and expr.args[1] == Const(0) and isinstance(expr.args[0], Read):
            # Every target reads a single Cast as a bool mask.
            return self.build.op(
                "Cast", self._write(expr.args[0], attention), name="mask/keep", dtype=ir.DataType.BOOL,
                to=ir.DataType.BOOL,
            )  # fmt: skip
        if expr.name not in ("And", "Or", "Not", "Equal", "Ne", "Less", "LessOrEqual", "Add", "Sub"):
            raise _CannotWrite
        if any(not _is_integral(arg) for arg in expr.args) and expr.name not in ("And", "Or", "Not"):
            raise _CannotWrite
        inputs = [self._write(arg, attention) for arg in expr.args]
        dtype = ir.DataType.BOOL if is_bool(expr) else ir.DataType.INT64
        if expr.name == "Ne":
            equal = self.build.op("Equal", *inputs, name="mask/equal", dtype=ir.DataType.BOOL)
            return self.build.op("Not", equal, name="mask/not")
        return self.build.op(expr.name, *inputs, name=f"mask/{expr.name.lower()}", dtype=dtype)


def _is_integral(expr: Expr) -> bool:
    """Whether a formula is an integer (so that it can be compared in int64)."""
    if isinstance(expr, Const):
        return isinstance(expr.value, int) and not isinstance(expr.value, bool)
    if isinstance(expr, Read):
        return expr.value.dtype is not None and expr.value.dtype.is_integer()
    return not is_bool(expr)


@dataclass(frozen=True)
class Change:
    """A new meaning of one index variable.

    Attributes:
        axis: The variable.
        old: The old index, as a formula over the new one.
        lay: Changes a tensor over the old index, along one of its axes, into a tensor over the new index.
    """

    axis: Axis
    old: Expr
    lay: Callable[[ir.Value, int], ir.Value]


def reindexed(masks: MaskWriter, attention: Attention, factor: Factor, change: Change) -> Expr:
    """A factor's condition over the new index.

    A formula of indices, and of inputs read at them, stays a formula, so that a kernel can compute it. Any other is
    written as a tensor over the old index, which is then changed to the new index.

    Args:
        masks: Writes the tensor.
        attention: With the old index.
        factor: One of its mask.
        change: The index that is new.
    """
    if change.axis.name not in axes_of(factor.keep):
        return factor.keep
    sizes = {str(getattr(dim, "value", dim)) for value in masks.build.model.graph.inputs for dim in value.shape or ()}
    if _is_plain(factor.keep, sizes):
        return _substituted(masks, factor.keep, change)
    return Read(change.lay(masks.factor(factor, attention), AXES.index(change.axis.name)), SCORES)


def _is_plain(expr: Expr, sizes: Collection[str]) -> bool:
    """Whether a formula consists of indices, inputs read at them, and the inputs' own sizes."""
    if isinstance(expr, Read):
        dims = expr.value.shape
        return dims is not None and len(dims) == len(expr.index) and all(isinstance(at, Axis) for at in expr.index)
    if isinstance(expr, Op):
        known = ("And", "Or", "Not", "Equal", "Ne", "Less", "LessOrEqual", "Add", "Sub")
        return expr.name in known and all(_is_plain(arg, sizes) for arg in expr.args)
    if isinstance(expr, Size):
        return expr.dim in sizes
    return isinstance(expr, Axis | Const)


def _substituted(masks: MaskWriter, expr: Expr, change: Change) -> Expr:
    if expr == change.axis:
        return change.old
    if isinstance(expr, Read) and change.axis in expr.index:
        at = expr.index.index(change.axis)
        value = expr.value
        return Read(masks.build.once(("laid", value, at, change.old), lambda: change.lay(value, at)), expr.index)
    if isinstance(expr, Op):
        return op(expr.name, *(_substituted(masks, arg, change) for arg in expr.args))
    return expr
