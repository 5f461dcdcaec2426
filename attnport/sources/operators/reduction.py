"""Operators that sum over axes: reductions, softmax, norms and the search for the largest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnport.sources.operators.base import OPERATORS, Call, axes_of, numbers, operator


def _product(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    return torch.sum(x, tuple(axes), keepdim=keep, dtype=x.dtype) if axes else x


def _extreme(function: Callable[..., Tensor], x: Tensor, axes: Sequence[int], keep: bool, end: str) -> Tensor:
    """The largest or least value; of none, the `end` of the type, which of floating types is infinite."""
    if x.numel():
        return function(x, axes, keepdim=keep)
    if x.is_floating_point():
        nothing = -torch.inf if end == "min" else torch.inf
    else:
        nothing = 0 if x.dtype == torch.bool else getattr(torch.iinfo(x.dtype), end)
    return torch.full_like(_sum(x, axes, keep), nothing, dtype=x.dtype)


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "ReduceSum": _sum,
    "ReduceProd": _product,
    "ReduceMean": lambda x, axes, keep: torch.mean(x, axes, keepdim=keep) if x.is_floating_point() else (
        torch.div(_sum(x, axes, keep), x.numel() // max(1, _sum(x, axes, keep).numel()), rounding_mode="trunc")
    ),
    "ReduceMax": lambda x, axes, keep: _extreme(torch.amax, x, axes, keep, "min"),
    "ReduceMin": lambda x, axes, keep: _extreme(torch.amin, x, axes, keep, "max"),
    "ReduceL1": lambda x, axes, keep: _sum(x.abs(), axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.sqrt(_sum(x * x, axes, keep)),
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
    "ReduceLogSum": lambda x, axes, keep: torch.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
}  # fmt: skip


def _reduction(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduced(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
        named = bool(numbers(axes)) or bool(call.get("axes"))
        along = () if not named and call.get("noop_with_empty_axes") else tuple(axes_of(call, axes, x.ndim))
        if not along:  # of each element by itself: PyTorch takes no axes for all of them
            return reduce(x.unsqueeze(0), (0,), False)
        return reduce(x, along, bool(call.get("keepdims", 1)))

    return reduced


OPERATORS.update({name: _reduction(reduce) for name, reduce in _REDUCTIONS.items()})


@operator("ArgMax", "ArgMin")
def _argument(call: Call, x: Tensor) -> Tensor:
    axis, keep = call.get("axis", 0), bool(call.get("keepdims", 1))
    best = x.amax(axis, keepdim=True) if call.name == "ArgMax" else x.amin(axis, keepdim=True)
    hits = x == best
    if not call.get("select_last_index"):
        found = hits.to(torch.int8).argmax(axis, keepdim=True)
    else:
        found = x.shape[axis] - 1 - hits.flip(axis).to(torch.int8).argmax(axis, keepdim=True)
    return found if keep else found.squeeze(axis)


@operator("TopK")
def _top_k(call: Call, x: Tensor, count: Tensor | None = None) -> tuple[Tensor, Tensor]:
    wanted = int(count.item()) if count is not None else call.get("k")
    axis, largest = call.get("axis", -1), bool(call.get("largest", 1))
    order = torch.sort(x, dim=axis, descending=largest, stable=True)  # of equal values the first comes first
    return order.values.narrow(axis, 0, wanted), order.indices.narrow(axis, 0, wanted)


def _over(call: Call, x: Tensor, function: Callable[..., Tensor]) -> Tensor:
    """A softmax; up to opset 12 the axes from `axis` on are one."""
    if call.opset >= 13:
        return function(x, dim=call.get("axis", -1))
    axis = call.get("axis", 1) % max(1, x.ndim)
    return function(x.reshape(x.shape[:axis].numel(), -1), dim=-1).reshape(x.shape)


def layer_norm(
    x: Tensor, scale: Tensor | None, bias: Tensor | None, axis: int = -1, epsilon: float = 1e-5, centred: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised tensor, the mean and the inverse of the deviation, over the axes from `axis` on."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdim=True) if centred else x.new_zeros([1] * x.ndim)
    apart = x - mean
    inverse = torch.rsqrt((apart * apart).mean(axes, keepdim=True) + epsilon)
    found = apart * inverse
    found = found if scale is None else found * scale
    return (found if bias is None else found + bias), mean, inverse


@operator("LayerNormalization")
def _layer_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    found = layer_norm(x, scale, bias, call.get("axis", -1), call.get("epsilon", 1e-5))
    return found if call.outputs > 1 else found[0]


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(call: Call, x: Tensor, scale: Tensor) -> Any:
    found, _, inverse = layer_norm(x, scale, None, call.get("axis", -1), call.get("epsilon", 1e-5), centred=False)
    return (found, inverse) if call.outputs > 1 else found


@operator("BatchNormalization")
def _batch_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    if call.get("training_mode"):
        raise NotImplementedError("BatchNormalization in training mode")
    return functional.batch_norm(x, mean, variance, scale, bias, training=False, eps=call.get("epsilon", 1e-5))


@operator("GroupNormalization")
def _group_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call.get("num_groups")
    if call.opset < 21:  # scale and bias are those of a group
        scale, bias = (one.repeat_interleave(x.shape[1] // groups) for one in (scale, bias))
    return functional.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


@operator("LpNormalization")
def _lp_norm(call: Call, x: Tensor) -> Tensor:
    norm = x.norm(p=call.get("p", 2), dim=call.get("axis", -1), keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


OPERATORS.update(
    {
        "Softmax": lambda call, x: _over(call, x, torch.softmax),
        "LogSoftmax": lambda call, x: _over(call, x, torch.log_softmax),
        "InstanceNormalization": lambda call, x, scale, bias: functional.group_norm(
            x, x.shape[1], scale, bias, call.get("epsilon", 1e-5)
        ),
        "GlobalAveragePool": lambda call, x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
        "GlobalMaxPool": lambda call, x: x.amax(tuple(range(2, x.ndim)), keepdim=True),
    }
)
