"""Masks whose index arithmetic is in int32: TensorRT computes such a mask in the attention kernel, and skips its tiles.

With int64 it first writes documents, prefixes and lengths to memory as `[B,1,S,T]`: 126 MB of scratch memory instead of
51 for one block (`benchmarks/engine_forms.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.forms.masks import MaskWriter
from attnport.exporter.fusion.attention import Attention
from attnport.exporter.fusion.formula import Axis, Const, Expr, Op, Read, Size, reads_of

if TYPE_CHECKING:
    import onnx_ir as ir

FAR = 2**30
"""Larger than every index, and small enough that the sum of two fits into int32."""
_COMPARISONS = ("Equal", "Ne", "Less", "LessOrEqual")
_SUMS = ("Add", "Sub", "Neg", "Abs", "Max", "Min", "Mod")


class NarrowMaskWriter(MaskWriter):
    """Compares indices with each other and with numbers from inputs in int32, with the same results as in int64.

    A number from an input that is compared with an index is clipped at `FAR`, which is larger than every index. If two
    numbers from inputs are compared for equality, such as the documents of two tokens, each is compared as two words of
    32 bits. If they are compared by order, the comparison stays in int64.
    """

    def _operation(self, expr: Op, attention: Attention) -> ir.Value:
        import onnx_ir as ir

        if expr.name not in _COMPARISONS or not all(map(_narrows, expr.args)):
            return super()._operation(expr, attention)
        left, right = expr.args
        order = expr.name in ("Less", "LessOrEqual")
        if _is_open(left) and _is_open(right):
            if order or not (isinstance(left, Read) and isinstance(right, Read)):
                return super()._operation(expr, attention)
            result = self._same(left, right, attention)
        elif not order and isinstance(left, Read) and isinstance(right, Const):
            return super()._operation(expr, attention)  # `mask[b, j] == 1`: no index is compared
        else:
            numbers = [self._narrow(arg, attention) for arg in expr.args]
            kind = "Equal" if expr.name == "Ne" else expr.name
            result = self.build.op(kind, *numbers, name=f"mask/{kind.lower()}", dtype=ir.DataType.BOOL)
        return self.build.op("Not", result, name="mask/not") if expr.name == "Ne" else result

    def _same(self, left: Read, right: Read, attention: Attention) -> ir.Value:
        """Whether two int64 numbers are equal, by their lower and their upper words."""
        import onnx_ir as ir

        parts = []
        for word in (self._lower, self._upper):
            inputs = [word(self._write(number, attention)) for number in (left, right)]
            parts.append(self.build.op("Equal", *inputs, name="mask/same", dtype=ir.DataType.BOOL))
        return self._shared("And", *parts)

    def _lower(self, value: ir.Value) -> ir.Value:
        import onnx_ir as ir

        return self.build.once(("lower", value), lambda: self.build.cast(value, ir.DataType.INT32, "mask/lower"))

    def _upper(self, value: ir.Value) -> ir.Value:
        import onnx_ir as ir

        def write() -> ir.Value:
            lower = self.build.cast(self._lower(value), ir.DataType.INT64, "mask/lower64")
            rest = self.build.op("Sub", value, lower, name="mask/upper64")
            word = self.build.op("Div", rest, self.build.const(2**32, np.int64), name="mask/upper_word")
            return self.build.cast(word, ir.DataType.INT32, "mask/upper")

        return self.build.once(("upper", value), write)

    def _narrow(self, expr: Expr, attention: Attention) -> ir.Value:
        """A whole number as an int32 tensor of rank 4 (or a scalar constant)."""
        import onnx_ir as ir

        build, int32 = self.build, ir.DataType.INT32

        def write() -> ir.Value:
            if isinstance(expr, Const):
                return build.const(np.clip(int(expr.value), -FAR, FAR), np.int32)
            if isinstance(expr, Axis):  # a range in int64: ONNX Runtime refuses one of a known size in int32
                return build.cast(self._write(expr, attention), int32, f"mask/{expr.name}32")
            if isinstance(expr, Read | Size):
                near = build.op("Max", self._write(expr, attention), build.const(-FAR, np.int64), name="mask/near")
                near = build.op("Min", near, build.const(FAR, np.int64), name="mask/near")
                return build.cast(near, int32, "mask/int32")
            assert isinstance(expr, Op)
            return build.op(
                expr.name, *(self._narrow(arg, attention) for arg in expr.args), name=f"mask/{expr.name.lower()}"
            )

        return self.build.once(("narrow", expr, *self._sizes_of(expr, attention)), write)


def _is_open(expr: Expr) -> bool:
    """Whether a formula reads numbers that may be larger than `FAR`: any but those of a small constant."""
    return any(
        read.value.const_value is None or (np.abs(read.value.const_value.numpy()) > FAR).any()
        for read in reads_of(expr)
    )


def _narrows(expr: Expr) -> bool:
    """Whether a formula is a sum of indices, sizes, whole constants, and whole numbers from inputs."""
    if isinstance(expr, Const):
        return not isinstance(expr.value, bool) and float(expr.value).is_integer()
    if isinstance(expr, Axis | Size):
        return True
    if isinstance(expr, Read):
        return expr.value.dtype is not None and expr.value.dtype.is_integer()
    return expr.name in _SUMS and all(map(_narrows, expr.args))
