"""Operators that multiply: matrices, sums of products, convolutions and the pools that slide as they do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from attnport.sources.operators.base import Call, operator

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_LARGEST: dict[int, Callable[..., Tensor]] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}


@operator("MatMul")
def _matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@operator("MatMulInteger")
def _matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    first, second = a.to(torch.int32), b.to(torch.int32)
    first = first if a_zero is None else first - _column(a_zero.to(torch.int32))
    second = second if b_zero is None else second - b_zero.to(torch.int32)
    return torch.matmul(first, second)


def _column(zero: Tensor) -> Tensor:
    return zero.unsqueeze(-1) if zero.ndim == 1 and zero.numel() > 1 else zero


@operator("Gemm")
def _gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if call.get("transA") else a
    b = b.T if call.get("transB") else b
    found = torch.matmul(a, b) * call.get("alpha", 1.0)
    found = found.to(a.dtype)
    return found if c is None else torch.add(found, c * call.get("beta", 1.0))


@operator("Einsum")
def _einsum(call: Call, *tensors: Tensor) -> Tensor:
    return torch.einsum(call.get("equation").replace(" ", ""), *tensors)


@operator("Conv")
def _conv(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    x = functional.pad(x, _padding(call, x, weight.shape[2:], rank))
    return _CONVOLUTIONS[rank](
        x, weight, bias, stride=_each(call, "strides", rank), dilation=_each(call, "dilations", rank),
        groups=call.get("group", 1),
    )  # fmt: skip


@operator("ConvTranspose")
def _conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    pads = list(call.get("pads", [0] * 2 * rank))
    if pads[:rank] != pads[rank:] or "output_shape" in call.attributes or _auto(call) not in ("NOTSET", "VALID"):
        raise NotImplementedError("ConvTranspose with unequal pads, output_shape or auto_pad")
    return _TRANSPOSED[rank](
        x, weight, bias, stride=_each(call, "strides", rank), padding=pads[:rank],
        output_padding=call.get("output_padding", [0] * rank), groups=call.get("group", 1),
        dilation=_each(call, "dilations", rank),
    )  # fmt: skip


@operator("AveragePool")
def _average_pool(call: Call, x: Tensor) -> Tensor:
    rank = x.ndim - 2
    kernel = list(call.get("kernel_shape"))
    if call.get("ceil_mode"):
        raise NotImplementedError("AveragePool with ceil_mode")
    pads = _padding(call, x, kernel, rank)
    weight = x.new_ones((1, 1, *kernel))
    steps, apart = _each(call, "strides", rank), _each(call, "dilations", rank)

    def summed(values: Tensor) -> Tensor:
        one = values.reshape(-1, 1, *values.shape[2:])
        found = _CONVOLUTIONS[rank](functional.pad(one, pads), weight, None, stride=steps, dilation=apart)
        return found.reshape(*values.shape[:2], *found.shape[2:])

    counts = float(weight.numel()) if call.get("count_include_pad") else summed(torch.ones_like(x[:1, :1]))
    return summed(x) / counts


@operator("MaxPool")
def _max_pool(call: Call, x: Tensor) -> Tensor:
    rank = x.ndim - 2
    kernel = list(call.get("kernel_shape"))
    if call.outputs > 1 or not x.is_floating_point():
        raise NotImplementedError("MaxPool with indices, or of whole numbers")
    x = functional.pad(x, _padding(call, x, kernel, rank), value=float("-inf"))
    return _LARGEST[rank](
        x, kernel, _each(call, "strides", rank), 0, _each(call, "dilations", rank), bool(call.get("ceil_mode"))
    )


def _each(call: Call, name: str, rank: int) -> list[int]:
    return list(call.get(name, [1] * rank))


def _auto(call: Call) -> str:
    found: str = call.get("auto_pad", "NOTSET")
    return found


def _padding(call: Call, x: Tensor, kernel: list[int] | torch.Size, rank: int) -> list[int]:
    """Zeros before and after each axis, as `functional.pad` takes them: the last axis first."""
    if _auto(call) == "VALID":
        return [0] * 2 * rank
    if _auto(call) == "NOTSET":
        pads = list(call.get("pads", [0] * 2 * rank))
        return [pads[side * rank + axis] for axis in reversed(range(rank)) for side in (0, 1)]
    found = []
    for axis in reversed(range(rank)):
        step, size = _each(call, "strides", rank)[axis], x.shape[2 + axis]
        reach = (kernel[axis] - 1) * _each(call, "dilations", rank)[axis] + 1
        total = max(0, (-(-size // step) - 1) * step + reach - size)
        less, more = total // 2, total - total // 2
        found += [less, more] if _auto(call) == "SAME_UPPER" else [more, less]
    return found
