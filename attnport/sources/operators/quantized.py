"""Operators of quantized models: whole numbers of 8 bits with a scale and a zero point."""

from __future__ import annotations

import torch
from torch import Tensor

from attnport.sources.operators.base import Call, operator


def _along(call: Call, parameter: Tensor, like: Tensor) -> Tensor:
    """A scale or a zero point as it applies to a tensor: one for all, one for each place of an axis, or blocks."""
    if parameter.numel() == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    axis = call.get("axis", 1) % like.ndim
    if parameter.ndim == 1:
        return parameter.reshape(*parameter.shape, *(1,) * (like.ndim - axis - 1))
    block = call.get("block_size", 0) or -(-like.shape[axis] // parameter.shape[axis])
    return parameter.repeat_interleave(block, axis).narrow(axis, 0, like.shape[axis])


@operator("DequantizeLinear")
def _dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    whole = x.to(scale.dtype)
    whole = whole if zero is None else whole - _along(call, zero, x).to(scale.dtype)
    return whole * _along(call, scale, x)


@operator("QuantizeLinear")
def _quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    dtype = torch.uint8 if zero is None else zero.dtype
    if dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32):
        raise NotImplementedError(f"QuantizeLinear to {dtype}")
    whole = torch.round(x / _along(call, scale, x))
    whole = whole if zero is None else whole + _along(call, zero, x).to(x.dtype)
    limits = torch.iinfo(dtype)
    return whole.clamp(limits.min, limits.max).to(dtype)


@operator("DynamicQuantizeLinear")
def _quantize_by_range(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round(-low / scale).clamp(0, 255)
    return (torch.round(x / scale) + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)
