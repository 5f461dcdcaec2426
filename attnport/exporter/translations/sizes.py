"""Arithmetic of sizes that torch's exporter translates wrongly or for constants alone, and the squeeze of one axis.

Such a squeeze does nothing in torch where that axis has another size than 1; torch.onnx writes ONNX's Squeeze for every
size, which fails at any other than 1.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """The operators of this file."""
    aten = torch.ops.aten
    return {
        operator.floordiv: floordiv,
        torch.sym_sqrt: root,
        aten.remainder.Scalar: remainder,
        aten.repeat_interleave.self_int: repeat_interleave,
        aten.squeeze.dim: squeeze,
    }


def floordiv(self: Any, other: Any) -> Any:
    """Rounds down, also below zero, as in `-(-n // 8)`; torch's exporter writes `Div`, which rounds towards zero.

    What is surely positive stays a plain `Div`: sizes are read out of the graph later.
    """
    quotient = op.Div(self, other)
    if not _may_be_negative(self):
        return quotient
    rest = op.Sub(self, op.Mul(quotient, other))
    opposite = op.Less(op.Mul(rest, other), op.Constant(value_int=0))
    return op.Sub(quotient, op.Cast(opposite, to=7))


def root(self: Any) -> Any:
    """`math.sqrt` of a size, as of the rows of fair-esm's MSA transformer and the patches of vit-pytorch's T2T."""
    return op.Sqrt(op.Cast(self, to=1))


def _may_be_negative(size: Any) -> bool:
    """Whether a size is a difference, or something times a negative number."""
    producer = size.producer() if hasattr(size, "producer") else None
    if producer is None or producer.op_type != "Mul":
        return producer is not None and producer.op_type in ("Neg", "Sub")
    import onnx_ir as ir

    factors = [ir.convenience.get_const_tensor(value) for value in producer.inputs if value is not None]
    return any(factor is not None and bool((factor.numpy() < 0).any()) for factor in factors)


def remainder(self: Any, other: Any) -> Any:
    """The remainder with the sign of the divisor, which may be a size."""
    from onnxscript.function_libs.torch_lib.ops import core

    if isinstance(other, int | float):
        torchlib: Any = core.aten_remainder
        return torchlib(self, op.CastLike(other, self))
    return op.Mod(self, op.CastLike(other, self))


def repeat_interleave(self: Any, repeats: Any, dim: Any = None, output_size: Any = None) -> Any:
    """Each element several times, which may be a size."""
    value, axis = (op.Reshape(self, op.Constant(value_ints=[-1])), 0) if dim is None else (self, int(dim))
    rank = 1 if dim is None else len(self.shape)
    axis %= rank
    several = op.Reshape(op.Cast(repeats, to=7), op.Constant(value_ints=[1]))
    tiles = [op.Constant(value_ints=[1])] * (rank + 1)
    tiles[axis + 1] = several
    tiled = op.Tile(op.Unsqueeze(value, op.Constant(value_ints=[axis + 1])), op.Concat(*tiles, axis=0))
    before = [op.Shape(value, start=0, end=axis)] if axis else []
    after = [op.Shape(value, start=axis + 1)] if axis + 1 < rank else []
    return op.Reshape(tiled, op.Concat(*before, op.Constant(value_ints=[-1]), *after, axis=0))


def squeeze(x: Any, dim: int) -> Any:
    """The trace has decided it: an axis that was 1 is the number 1, and of a symbol the trace requires that it is not.

    Only a symbol or another number leaves the tensor as it is; where nothing is known of the shape, the axis goes.
    """
    if x.shape is not None and (len(x.shape) == 0 or x.shape[dim] != 1):
        return op.Identity(x)
    return op.Squeeze(x, op.Constant(value_ints=[dim]))
