"""The twin of the plan `auto`: PyTorch that rounds as fp16 does and never overflows.

A module that overflows in fp16 has no error there to be a bound: its result is NaN, or finite and plain wrong, as where
a variance of inf makes a norm zero. So the module runs in float32, and every result is rounded to the numbers of fp16,
continued beyond 65504, and where fp16 has nothing but zero, at the same 11 significant bits. Where nothing overflows
these are the roundings of the module cast to fp16: kernels compute in float32 inside and round once.
"""

# torch leaves its mode classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

LARGEST = 65504.0
_BITS = 11


class HalfWithoutOverflow(TorchDispatchMode):
    """Rounds every float32 result, in place where an operator works in place; views stay views.

    `step_by_step`: the scores and the probabilities of attention are results too, as in `Opening`.
    """

    def __init__(self, *, step_by_step: bool = False) -> None:
        super().__init__()
        self._steps = step_by_step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = tree_map(_no_half, kwargs or {})
        args = tree_map(_no_half, args)
        if self._steps and func is torch.ops.aten.scaled_dot_product_attention.default:
            return _by_steps(*args, **kwargs)
        result = func(*args, **kwargs)
        given = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            for tensor in _tensors(result):
                tensor.copy_(rounded(tensor))
            return result
        return tree_map(lambda each: each if not _fresh(each, given) else rounded(each), result)


def _by_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with every step rounded. Source: the equivalent code in PyTorch's documentation of
    scaled_dot_product_attention, with the root of the scale on q and on k as PyTorch has it."""
    mask = attn_mask if mask is None else mask
    if enable_gqa:
        k, v = (each.repeat_interleave(q.size(-3) // each.size(-3), -3) for each in (k, v))
    root = math.sqrt(q.size(-1) ** -0.5 if scale is None else scale)
    scores = rounded(rounded(q * root) @ rounded(k * root).transpose(-2, -1))
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else rounded(scores + mask)
    weights = torch.where(torch.isneginf(scores.amax(-1, keepdim=True)), 0.0, scores.softmax(-1))
    return rounded(rounded(weights) @ v)


def rounded(tensor: Tensor) -> Tensor:
    """A float32 tensor rounded to fp16's numbers, and beyond its range to 11 significant bits; others as they are.

    What fp16 has only as zero is beyond it, too: an epsilon of 1e-9 that keeps a division finite is to stay one.
    """
    if tensor.dtype != torch.float32:
        return tensor
    mantissa, exponent = torch.frexp(tensor)
    beyond = torch.ldexp(torch.round(mantissa * 2**_BITS), exponent - _BITS)
    beyond = torch.where(torch.isfinite(tensor), beyond, tensor)
    half = tensor.half().float()
    return torch.where((tensor.abs() <= LARGEST) & ((half != 0) | (tensor == 0)), half, beyond)


def round_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """Rounds a module's parameters and buffers, in place."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(rounded(tensor))
    return module


def _no_half(value: Any) -> Any:
    """A module that names float16 itself is not to overflow in it either."""
    return torch.float32 if value is torch.float16 else value


def _fresh(value: Any, given: set[int]) -> bool:
    return isinstance(value, Tensor) and _storage(value) not in given


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(given: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(given) if isinstance(value, Tensor))
