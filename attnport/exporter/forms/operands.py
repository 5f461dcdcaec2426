"""What goes into a form: q, k and v scaled, transposed and with heads repeated, attention sinks, and the mask.

Grouped heads are repeated for forms that multiply matrices. A sink is one more key before the others: a zero row of k
and of v, whose score is an unmasked bias. A mask that was read as formulas is written back once, in its smallest shape;
`reindexed` reads it over other indices, for forms that lay out queries or keys anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from attnport.exporter.builder import Builder, CannotLower
from attnport.exporter.fusion.formula import (
    CAUSAL,
    ZERO,
    Axis,
    Const,
    Expr,
    J,
    Op,
    Read,
    Size,
    axes_of,
    is_bool,
    op,
    same,
    size_sum,
)
from attnport.exporter.fusion.indices import Located
from attnport.exporter.fusion.mask import SCORES, Bias, Factor
from attnport.exporter.fusion.recognise import Attention
from attnport.masks import HIDDEN
from attnport.onnx_graph import dims_of, ir, known_size, made_by, perm_of


def repeated(build: Builder, attention: Attention, value: ir.Value) -> ir.Value:
    """`[B,G,X,Y]` as `[B,H,X,Y]`: each head is repeated H/G times, as in the standard's grouped attention.

    Raises:
        CannotLower: the head counts do not say how often a head is repeated.
    """
    query_heads, key_heads = attention.head_counts()
    if key_heads == 1 or (query_heads is not None and query_heads == key_heads):
        return value  # a product broadcasts a single key/value head
    if query_heads is None or key_heads is None or query_heads % key_heads:
        q_dim, v_dim = (value.shape[1] if value.shape is not None else None for value in (attention.q, attention.v))
        if query_heads is None and key_heads is None and q_dim is not None and q_dim == v_dim:
            return value
        raise CannotLower(f"query heads {q_dim} and key/value heads {v_dim} do not say how often a head is repeated")
    times = query_heads // key_heads
    groups = build.op("Unsqueeze", value, build.const([2], np.int64), name="group")
    groups = build.op("Expand", groups, build.const([1, 1, times, 1, 1], np.int64), name="group_each")
    sizes = (build.size(value, 0), build.const([query_heads], np.int64), build.size(value, 2), build.size(value, 3))
    shape = build.op("Concat", *sizes, name="group_shape", axis=0)
    return build.op("Reshape", groups, shape, name="heads")


ForEachHead = Callable[[Builder, Attention, "ir.Value"], "ir.Value"]
"""Gives keys or values for every query head."""


def operands(
    build: Builder, attention: Attention, compute: ir.DataType, factor: float, for_each_head: ForEachHead
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The operands of a form's products: q times a factor, k transposed, and v, each cast to `compute`."""
    q = build.cast(scaled(build, attention.q, factor), compute, "q_cast")
    k_transposed = build.cast(for_each_head(build, attention, transposed_key_of(build, attention)), compute, "k_cast")
    v = build.cast(for_each_head(build, attention, attention.v), compute, "v_cast")
    return q, k_transposed, v


def scaled(build: Builder, q: ir.Value, factor: float) -> ir.Value:
    """q times a factor in the dtype of q, before a cast to half precision, so that the factor is not rounded."""
    return q if factor == 1.0 else build.op("Mul", q, build.like(factor, q), name="scale_q")


def key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., T, D]`; if the graph only has it transposed, the transposition is undone."""
    if attention.k is not None:
        return attention.k
    transposed = attention.k_transposed
    assert transposed is not None
    node = made_by(transposed, "Transpose")
    if node is not None and node.inputs[0] is not None:
        perm = perm_of(node, 4)
        perm[-1], perm[-2] = perm[-2], perm[-1]
        if perm == sorted(perm):
            return node.inputs[0]
        return build.op("Transpose", node.inputs[0], name="k", perm=perm)
    return build.op("Transpose", transposed, name="k", perm=[0, 1, 3, 2])


def transposed_key_of(build: Builder, attention: Attention) -> ir.Value:
    """k as `[..., D, T]`; if k is itself the result of a transposition, the two become one."""
    if attention.k_transposed is not None:
        return attention.k_transposed
    assert attention.k is not None
    perm = [0, 1, 3, 2]
    node = made_by(attention.k, "Transpose")
    if node is not None and node.inputs[0] is not None:
        before = perm_of(node, 4)
        return build.op("Transpose", node.inputs[0], name="k_transposed", perm=[before[at] for at in perm])
    return build.op("Transpose", attention.k, name="k_transposed", perm=perm)


def with_sink_key(build: Builder, masks: MaskWriter, attention: Attention) -> Attention:
    """The attention with the sink's key before its own keys; `sink` is now the bias of key 0.

    With the sink first, a causal mask is still a single comparison: query i sees key j if `j - 1 <= i`.
    """
    assert attention.sink is not None
    k = _with_first_entry(build, key_of(build, attention), 2)
    v = _with_first_entry(build, attention.v, 2)

    def lay(value: ir.Value, axis: int) -> ir.Value:
        return _with_first_entry(build, value, axis)

    change = Change(J, Op("Sub", (J, Const(1))), lay)
    factors = []
    for factor in attention.mask.factors:
        keep = reindexed(masks, attention, factor, change)
        if keep != factor.keep and factor.keep != CAUSAL:
            keep = op("Or", Op("Equal", (J, Const(0))), keep)
        factors.append(Factor(keep, None))
    biases = tuple(_bias_with_sink(build, attention, bias) for bias in attention.mask.biases)
    mask = replace(attention.mask, factors=tuple(factors), biases=biases)
    return replace(attention, k=k, k_transposed=None, v=v, mask=mask, bring=lambda at: at.value)


def sink_bias(build: Builder, masks: MaskWriter, attention: Attention, dtype: ir.DataType) -> ir.Value | None:
    """What a sink adds to the scores: its own score at key 0, zero elsewhere; None without a sink.

    It is written as a product of `[1|B,H,1|S,1]` and `[1,1,1,T]`, which the attention kernel computes. With a `Where`
    over the index of the key instead, the builder writes the whole mask to memory.
    """
    if attention.sink is None:
        return None
    first = masks.build.once(
        ("first key", dtype, masks.length(attention, "j")), lambda: _first(build, attention, dtype)
    )
    return build.op("Mul", build.cast(attention.sink, dtype, "sink_cast"), first, name="sink")


def _first(build: Builder, attention: Attention, dtype: ir.DataType) -> ir.Value:
    one = build.const(np.ones((1, 1, 1, 1)), dtype.numpy())
    zero = build.const(np.zeros((1, 1, 1, 1)), dtype.numpy())
    others = build.op("Sub", build.size(attention.v, 2), build.const([1], np.int64), name="own_keys")
    shape = build.op("Concat", build.const([1, 1, 1], np.int64), others, name="own_keys_shape", axis=0)
    return build.op("Concat", one, build.op("Expand", zero, shape, name="no_sink"), name="first_key", axis=3)


def _bias_with_sink(build: Builder, attention: Attention, bias: Bias) -> Bias:
    value = attention.bring(bias.at)
    if value.shape is None or value.shape[-1] != 1:
        value = _with_first_entry(build, value, 3)
    return Bias(Located(value, SCORES), bias.times)


def _with_first_entry(build: Builder, value: ir.Value, axis: int) -> ir.Value:
    """A tensor with one more entry, zero or false, at the start of an axis."""
    dims = dims_of(value) or [None] * 4  # k may just have been transposed back, and then has no shape yet
    pads = build.const([int(at == axis) for at in range(len(dims))] + [0] * len(dims), np.int64)
    size = dims[axis]
    dims[axis] = size + 1 if isinstance(size, int) else f"{size} + 1" if size is not None else None
    if value.dtype != ir.DataType.BOOL:
        return build.op("Pad", value, pads, name="sink_first", shape=dims)
    # Runtimes do not agree on padding bool tensors.
    number = build.op("Pad", build.cast(value, ir.DataType.INT32), pads, name="sink_first", shape=dims)
    return build.cast(number, ir.DataType.BOOL)


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

    def is_apart(self, factor: Factor, attention: Attention) -> bool:
        """Whether `factor` gives this condition alone: a tensor of the graph itself may be several conditions."""
        together = sum(each.origin == factor.origin for each in attention.mask.factors)
        return together == 1 or self.factor(factor, attention) not in self._originals

    def full(self, attention: Attention) -> ir.Value | None:
        """As `keep`, with the S and T axes at full size, for runtimes that do not broadcast them."""
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
        one, lengths = self.build.const([1], np.int64), self._lengths(attention)
        key = ("shape", *lengths)
        return self.build.once(
            key, lambda: self.build.op("Concat", one, one, *lengths, name="mask/shape", dtype=ir.DataType.INT64, axis=0)
        )

    counting: ClassVar[tuple[str, str]] = ("INT32", "ReduceMax")
    """The type and the operator that tell whether any element is true; reductions of bool exist from opset 20 on."""

    def any_key(self, keep: ir.Value) -> ir.Value:
        """Whether a row has an allowed key, `[B|1, H|1, S|1, 1]`."""

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
        assert factor.origin is not None
        value = self._brought(attention, factor.origin.at)
        if times := factor.origin.added:
            low = self.build.like(HIDDEN / times, value)
            above = "Greater" if times > 0 else "Less"
            value = self.build.op(above, value, low, name="mask/keep", dtype=ir.DataType.BOOL)
        elif factor.origin.hides:
            value = self._shared("Not", value)
        self._originals.add(value)
        return value

    def _write(self, expr: Expr, attention: Attention) -> ir.Value:
        """`expr` as a tensor of rank 4 (or a scalar constant), with size 1 on the axes it does not depend on."""
        key = ("expr", expr, *self._sizes_of(expr, attention))
        return self.build.once(key, lambda: self._write_new(expr, attention))

    def _write_new(self, expr: Expr, attention: Attention) -> ir.Value:
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
