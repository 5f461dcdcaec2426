"""Operators that move values: shapes, pieces, and what is made from sizes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from attnport.sources.operators.base import OPERATORS, Call, axes_of, numbers, operator


@operator("Shape")
def _shape(call: Call, x: Tensor) -> Tensor:
    return call.whole(list(x.shape)[slice(call.get("start", 0), call.get("end"))])


@operator("Reshape")
def _reshape(call: Call, x: Tensor, shape: Tensor | None = None) -> Tensor:
    sizes = list(call.get("shape", ())) if shape is None else numbers(shape)
    if not call.get("allowzero"):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    if -1 in sizes and x.numel() == 0:
        known = [size for size in sizes if size != -1]
        sizes[sizes.index(-1)] = 0 if 0 not in known else 1
    return x.reshape(sizes)


@operator("Flatten")
def _flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(x.shape[:axis].numel(), x.shape[axis:].numel())


@operator("Squeeze")
def _squeeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    if axes is None and "axes" not in call.attributes:
        return x.squeeze()
    named = axes_of(call, axes, x.ndim)
    return x.squeeze(tuple(named)) if named else x


@operator("Unsqueeze")
def _unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    count = len(numbers(axes)) if axes is not None else len(call.get("axes", ()))
    for axis in axes_of(call, axes, x.ndim + count):
        x = x.unsqueeze(axis)
    return x


@operator("Split")
def _split(call: Call, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = call.get("axis", 0)
    wanted = numbers(sizes) if sizes is not None else list(call.get("split", ()))
    if not wanted:
        count = call.get("num_outputs", call.outputs)
        each = -(-x.shape[axis] // count)
        wanted = [max(0, min(each, x.shape[axis] - at * each)) for at in range(count)]
    return torch.split(x, wanted, dim=axis)


@operator("Slice")
def _slice(
    call: Call, x: Tensor, starts: Tensor | None = None, ends: Tensor | None = None, axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:  # fmt: skip
    first, last = (
        numbers(given) if given is not None else list(call.get(name, ()))
        for name, given in (("starts", starts), ("ends", ends))
    )
    along = numbers(axes) if axes is not None else list(call.get("axes", range(len(first))))
    by = numbers(steps) or [1] * len(first)
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        axis, size = axis % x.ndim, x.shape[axis]
        # Python's slices read a negative end as counted from the end, as ONNX does; only "before the first" differs.
        stop = None if step < 0 and end < -size else end
        kept = range(*slice(start, stop, step).indices(size))
        if step > 0:
            x = x.narrow(axis, min(kept.start, size), max(0, kept.stop - kept.start))
            x = x[(slice(None),) * axis + (slice(None, None, step),)] if step > 1 else x
        else:
            x = x.index_select(axis, torch.tensor(list(kept), dtype=torch.int64, device=x.device))
    return x


def _positive(indices: Tensor, size: int) -> Tensor:
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


@operator("Gather")
def _gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    found = x.index_select(axis, _positive(indices, x.shape[axis]).reshape(-1))
    return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@operator("GatherElements")
def _gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    return torch.gather(x, axis, _positive(indices, x.shape[axis]))


@operator("GatherND")
def _gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    batch = call.get("batch_dims", 0)
    first = [
        torch.arange(size, device=x.device).reshape(-1, *(1,) * (indices.ndim - 2 - axis))
        for axis, size in enumerate(x.shape[:batch])
    ]
    rest = [_positive(one, x.shape[batch + at]) for at, one in enumerate(indices.unbind(-1))]
    return x[tuple(first + rest)]


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements", "Scatter")
def _scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = call.get("axis", 0) % x.ndim
    indices = _positive(indices, x.shape[axis])
    reduction = call.get("reduction", "none")
    if reduction == "none":
        return x.scatter(axis, indices, updates)
    return x.scatter_reduce(axis, indices, updates, _REDUCTIONS[reduction])


@operator("ScatterND")
def _scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    count = indices.shape[-1]
    place = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for at in range(count):
        place = place * x.shape[at] + _positive(indices[..., at], x.shape[at])
    rows = x.reshape(x.shape[:count].numel(), -1)
    new = updates.reshape(place.numel(), rows.shape[1])
    reduction = call.get("reduction", "none")
    if reduction == "none":
        found = rows.index_copy(0, place.reshape(-1), new)
    else:
        to = place.reshape(-1, 1).expand(new.shape)
        found = rows.scatter_reduce(0, to, new, _REDUCTIONS[reduction])
    return found.reshape(x.shape)


@operator("Expand")
def _expand(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    sizes = numbers(shape)
    whole = [1] * (len(sizes) - x.ndim) + list(x.shape)
    sizes = [1] * (x.ndim - len(sizes)) + sizes
    return x.expand([own if size == 1 else size for own, size in zip(whole, sizes, strict=True)])


@operator("Pad")
def _pad(
    call: Call, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    amounts = numbers(pads) if pads is not None else list(call.get("pads", call.get("paddings", ())))
    along = [axis % x.ndim for axis in numbers(axes)] or list(range(x.ndim))
    mode = call.get("mode", "constant")
    filled = call.get("value", 0.0) if value is None or value.numel() == 0 else value.item()
    for at, axis in enumerate(along):
        before, after = amounts[at], amounts[len(along) + at]
        if mode == "constant" or min(before, after) < 0:
            sizes = [0, 0] * (x.ndim - 1 - axis) + [before, after]
            x = functional.pad(x, sizes, value=filled)
        else:
            places = torch.arange(-before, x.shape[axis] + after, device=x.device)
            x = x.index_select(axis, _padded_places(places, x.shape[axis], mode))
    return x


def _padded_places(places: Tensor, size: int, mode: str) -> Tensor:
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(1, 2 * (size - 1))  # reflect
    folded = places % period
    return torch.where(folded >= size, period - folded, folded)


@operator("ConstantOfShape")
def _constant_of_shape(call: Call, shape: Tensor) -> Tensor:
    value: Tensor = call.get("value", torch.zeros(1))
    value = value.to(call.dtype) if value.is_floating_point() else value
    return value.to(call.device).reshape(()).expand(numbers(shape)).clone()


@operator("OneHot")
def _one_hot(call: Call, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    size = int(depth.item())
    axis = call.get("axis", -1)
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    classes = torch.arange(size, device=call.device).reshape(-1, *(1,) * (indices.ndim - axis))
    hot = indices.long().remainder(size).unsqueeze(axis) == classes
    inside = ((indices >= -size) & (indices < size)).unsqueeze(axis)
    return torch.where(hot & inside, values[1], values[0])


@operator("Trilu")
def _trilu(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor:
    diagonal = 0 if k is None else int(k.item())
    return torch.triu(x, diagonal) if call.get("upper", 1) else torch.tril(x, diagonal)


@operator("EyeLike")
def _eye_like(call: Call, x: Tensor) -> Tensor:
    dtype = call.type(call.get("dtype")) if "dtype" in call.attributes else x.dtype
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
    return torch.eq(columns.reshape(1, -1) - rows.reshape(-1, 1), call.get("k", 0)).to(dtype)


@operator("CumSum")
def _cumsum(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    along = int(axis.item())
    x = x.flip(along) if call.get("reverse") else x
    found = torch.cumsum(x, along, dtype=x.dtype)
    found = found - x if call.get("exclusive") else found
    return found.flip(along) if call.get("reverse") else found


@operator("DepthToSpace")
def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    size = call.get("blocksize")
    N, C, H, W = x.shape
    if call.get("mode", "DCR") == "DCR":
        x = x.reshape(N, size, size, C // size**2, H, W).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(N, C // size**2, size, size, H, W).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(N, C // size**2, H * size, W * size)


@operator("SpaceToDepth")
def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    size = call.get("blocksize")
    N, C, H, W = x.shape
    order = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = x.reshape(N, C, H // size, size, W // size, size).permute(order)
    return x.reshape(N, C * size**2, H // size, W // size)


@operator("ReverseSequence")
def _reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    batch, time = call.get("batch_axis", 1), call.get("time_axis", 0)
    at = torch.arange(x.shape[time], device=x.device).reshape(1, -1)
    length = lengths.reshape(-1, 1)
    places = torch.where(at < length, length - 1 - at, at)  # [batch, time]
    moved = x.movedim((batch, time), (0, 1))
    rows = torch.arange(moved.shape[0], device=x.device).reshape(-1, 1)
    return moved[rows, places].movedim((0, 1), (batch, time))


OPERATORS.update(
    {
        "Size": lambda call, x: torch.tensor(x.numel(), device=call.device),
        "Transpose": lambda call, x: x.permute(tuple(call.get("perm", range(x.ndim - 1, -1, -1)))),
        "Concat": lambda call, *tensors: torch.cat(tensors, dim=call.get("axis", 1)),
        "Tile": lambda call, x, repeats: x.repeat(numbers(repeats)),
        "Range": lambda call, start, limit, step: torch.arange(
            start.item(), limit.item(), step.item(), dtype=start.dtype, device=call.device
        ),
        "NonZero": lambda call, x: torch.nonzero(x).T if x.ndim else torch.nonzero(x.reshape(1)).T,
    }
)
