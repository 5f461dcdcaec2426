"""The eager twin of the plan `auto`: PyTorch with the rounding of fp16, but without overflow.

A module that overflows in fp16 gives no error to derive a bound from: its result is NaN, or finite and wrong, as when a
variance of inf makes a norm zero. So the module runs in float32, and every result is rounded to fp16. Values above
65504, and those that fp16 would round to zero, are rounded to the same 11 significant bits instead. If nothing
overflows, these are the roundings of the module cast to fp16, whose kernels compute in float32 and round once.
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


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch does not wrap for its compiler: nothing is compiled while one is active, and the
    wrapper imports `torch._dynamo`, which takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class HalfWithoutOverflow(DispatchMode):
    """Rounds every float32 result, in place if the operator works in place; views stay views.

    With `step_by_step` the scores and the probabilities of attention are rounded too, as in `Opening`.
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
        storages = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            for tensor in _tensors(result):
                tensor.copy_(rounded(tensor))
            return result
        return tree_map(lambda value: value if not _fresh(value, storages) else rounded(value), result)


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
    scaled_dot_product_attention; like PyTorch, it multiplies both q and k by the root of the scale."""
    mask = attn_mask if mask is None else mask
    if enable_gqa:
        k, v = (tensor.repeat_interleave(q.size(-3) // tensor.size(-3), -3) for tensor in (k, v))
    root = math.sqrt(q.size(-1) ** -0.5 if scale is None else scale)
    scores = rounded(rounded(q * root) @ rounded(k * root).transpose(-2, -1))
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else rounded(scores + mask)
    weights = torch.where(torch.isneginf(scores.amax(-1, keepdim=True)), 0.0, scores.softmax(-1))
    return rounded(rounded(weights) @ v)


def rounded(tensor: Tensor) -> Tensor:
    """A float32 tensor rounded to fp16, or to 11 significant bits outside its range; other tensors unchanged.

    Values that fp16 would round to zero count as outside its range: an epsilon of 1e-9 must keep a division finite.
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
    """Replaces float16 by float32, so that a module that asks for float16 itself does not overflow either."""
    return torch.float32 if value is torch.float16 else value


def _fresh(value: Any, given: set[int]) -> bool:
    return isinstance(value, Tensor) and _storage(value) not in given


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(given: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(given) if isinstance(value, Tensor))
