"""Values for mask inputs, in layouts that often show errors of attentions.

Letters: B batch, S query length, T key length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnport.artifacts import IOContract, TensorSpec
from attnport.errors import UsageError
from attnport.masks import MaskSpec
from attnport.masks import numpy_builders as build
from attnport.masks.numpy_builders import decode_mask, encode_mask, numpy_dtype

Array = np.ndarray[Any, Any]

NO_PADDING, EMPTY_ROW = "no padding", "one row fully masked"
_PADDING = (NO_PADDING, "right padding", "left padding", "interior padding", EMPTY_ROW)
_LAYOUTS = {
    "padding": _PADDING,
    "prefix": ("prefix of none", "prefixes of several lengths", "prefix of all"),
    "documents": ("one document", "documents of several lengths", "padding between documents"),
    "global": ("no global token", "first token global", "random global tokens"),
}


def layouts_of(mask: MaskSpec) -> tuple[str, ...]:
    """The layouts to try for a mask input."""
    layouts = [layout for kind in mask.kinds for layout in _LAYOUTS.get(kind, ())]
    if mask.carries == "lengths" and "padding" in mask.kinds:
        layouts = [NO_PADDING, "right padding", EMPTY_ROW]  # lengths cannot express other layouts
    if mask.carries == "ids":
        layouts = list(_LAYOUTS["documents"])
    return tuple(dict.fromkeys(layouts or _PADDING))


def keys_dim(io: IOContract, mask: MaskSpec) -> str | int:
    """The dim (or the fixed size) of the keys that a mask input is for.

    Raises:
        UsageError: it holds lengths, and the dim that they count is ambiguous or unknown.
    """
    spec = next(spec for spec in io.inputs if spec.name == mask.input)
    if mask.carries != "lengths":
        return spec.dims[-1]
    named = io.given()
    others = [dim for dim in named if dim != spec.dims[0]]
    if mask.keys is not None and mask.keys not in named:
        raise UsageError(f"mask {mask}: got keys={mask.keys!r}; the inputs have the dims {', '.join(named)}.")
    if mask.keys is not None:
        return mask.keys
    if len(others) != 1:
        raise UsageError(
            f"mask {mask}: lengths of which dim? The inputs have {', '.join(others) or 'none'} beside {spec.dims[0]}.",
            hint=f"Name the dim: {spec}:padding:keys=DIM, or MaskSpec(..., keys=DIM).",
        )
    return others[0]


def _keys(io: IOContract, mask: MaskSpec, sizes: Mapping[str, int]) -> int:
    """The number of keys that a mask input is for."""
    return TensorSpec(str(mask.input), "int64", (keys_dim(io, mask),)).shape(sizes)[0]


def keep_of(io: IOContract, mask: MaskSpec, value: Array, sizes: Mapping[str, int]) -> Array:
    """The keys that a padding mask input keeps: bool `[B,T]`, or `[T]`."""
    if mask.carries == "lengths":
        keep = build.padding_lengths(value, _keys(io, mask, sizes))
    elif mask.carries == "ids":  # 0 is padding
        keep = build.padding(value)
    else:
        keep = build.padding(decode_mask(mask, value))
    keep_BT = np.asarray(keep.any(axis=(1, 2)))
    return keep_BT[0] if value.ndim == 1 and mask.carries == "mask" else keep_BT


def mask_value(
    io: IOContract, spec: TensorSpec, mask: MaskSpec, sizes: Mapping[str, int], layout: str, rng: np.random.Generator
) -> Array:
    """A value of mask input `spec`; it has its usual layout if the layout does not apply to it."""
    shape, T = spec.shape(sizes), _keys(io, mask, sizes)
    B = shape[0] if len(shape) > 1 or mask.carries != "mask" else 1
    if mask.carries == "lengths":
        padding = NO_PADDING if layout == "interior padding" else layout  # lengths cannot express it
        lengths_B = _prefixes(layout, B, T) if "prefix" in mask.kinds else _padded(padding, B, T).sum(axis=1)
        return lengths_B.astype(numpy_dtype(spec.dtype))
    if mask.carries == "ids":
        return np.broadcast_to(_ids(layout, B, T), shape).astype(numpy_dtype(spec.dtype))
    if mask.carries == "marks":
        return np.broadcast_to(_marks(layout, B, T, rng), shape).astype(numpy_dtype(spec.dtype))
    allowed = _allowed(mask, shape, B, T, layout, rng)
    encoded = encode_mask(mask, spec.dtype, allowed)
    if "bias" in mask.kinds and mask.polarity == "additive":
        encoded = (encoded.astype(np.float64) + rng.standard_normal(shape)).astype(encoded.dtype)
    return encoded


def _allowed(mask: MaskSpec, shape: tuple[int, ...], B: int, T: int, layout: str, rng: np.random.Generator) -> Array:
    """The allowed keys, or the allowed pairs if the axis before the keys counts queries: bool of `shape`."""
    keeps = [build.padding(_padded(layout, B, T))] if "padding" in mask.kinds else []
    S = shape[-2] if len(shape) > 2 else 1
    if S > 1:
        if "prefix" in mask.kinds:
            keeps.append(build.prefix(_prefixes(layout, B, T), S, T, mask.alignment))
        elif "causal" in mask.kinds:
            keeps.append(build.causal(S, T, mask.alignment))
        if "global" in mask.kinds:
            keeps.append(build.local_global(_marks(layout, B, T, rng), S, mask.window, mask.alignment))
        elif "window" in mask.kinds:
            keeps.append(build.window(S, T, mask.window, mask.alignment))
        if "documents" in mask.kinds:
            keeps.append(build.documents(_ids(layout, B, T), S, mask.alignment))
    keep = build.combine(*keeps)
    between = keep.shape[2:3] if len(shape) > 2 else ()
    lead = (keep.shape[0], *(1,) * (len(shape) - 3)) if len(shape) > 1 else ()
    allowed = np.array(np.broadcast_to(keep.reshape((*lead, *between, keep.shape[3])), shape))
    if S > 1 and "explicit" in mask.kinds and layout != NO_PADDING:
        allowed &= rng.random(shape) < 0.7
        allowed[..., 0, :] = allowed[..., 0, :] & (layout != EMPTY_ROW)
    return allowed


def _padded(layout: str, B: int, T: int) -> Array:
    """The keys that are not padding, bool `[B,T]`."""
    position_T = np.arange(T)
    # Item 0 has full length, and the lengths decrease to about T / B.
    length_B1 = np.maximum(1, np.round(T * (1 - np.arange(B) / max(B, 2)))).astype(int)[:, None]
    if B == 1:
        length_B1 = np.array([[max(1, (2 * T) // 3)]])
    if layout == "left padding":
        return np.asarray(position_T >= T - length_B1)
    if layout == "interior padding":
        hidden_T = (position_T > T // 4) & (position_T < T - 1 - T // 4)
        return np.asarray(~(hidden_T & ((position_T + np.arange(B)[:, None]) % 3 > 0)))
    if layout not in ("right padding", EMPTY_ROW):
        return np.ones((B, T), dtype=bool)
    keep = np.asarray(position_T < length_B1)
    if layout == EMPTY_ROW:
        keep[-1] = False
    return keep


def _prefixes(layout: str, B: int, T: int) -> Array:
    """The length of each item's prefix, int64 `[B]`: usually from 0 to about half of the keys."""
    if layout in ("prefix of none", "prefix of all"):
        return np.full(B, 0 if layout == "prefix of none" else T)
    return np.asarray((np.arange(B) + (B == 1)) * T // (2 * max(B - 1, 1)))


def _ids(layout: str, B: int, T: int) -> Array:
    """The document of each position, int64 `[B,T]`, from 1; documents get longer, and their lengths differ by item."""
    if layout == "one document":
        return np.ones((B, T), dtype=np.int64)
    ids_BT = np.empty((B, T), dtype=np.int64)
    for item in range(B):
        lengths = 1 + item + np.arange(T)
        ids_BT[item] = np.repeat(np.arange(1, T + 1), lengths)[:T]
    if layout == "padding between documents":
        ids_BT[:, 1:] = np.where(np.diff(ids_BT, axis=1) > 0, 0, ids_BT[:, 1:])
    return ids_BT


def _marks(layout: str, B: int, T: int, rng: np.random.Generator) -> Array:
    """The global positions, bool `[B,T]`: usually the first."""
    if layout == "no global token":
        return np.zeros((B, T), dtype=bool)
    if layout == "random global tokens":
        return rng.random((B, T)) < 0.2
    return np.broadcast_to(np.arange(T) == 0, (B, T))
