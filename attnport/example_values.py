"""Keeps the values of an example as text in the contract, for inputs that random values do not fit.

A forward may look up rows by whole numbers among floats, want as many marks in a mask as there are images, or take a
logarithm. In every test, such an input has the values of its example, at every size.
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.dims import TensorSpec
from attnport.errors import UsageError

if TYPE_CHECKING:
    import torch

ROWS = 4
"""How many rows of a batch are kept."""
MAX_BYTES = 1 << 28
_MARK = re.compile(r":example=[\w=-]*")

Array = np.ndarray[Any, Any]


def packed(array: Array) -> str:
    """An array as text of letters, digits, `_`, `-` and `=`."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.urlsafe_b64encode(zlib.compress(file.getvalue())).decode()


def continued(text: str, shape: tuple[int, ...]) -> Array:
    """A packed array in another shape. A shorter axis is cut; a longer one repeats floats, or the last whole number.

    With the last number repeated, offsets stay sorted and a mask keeps its number of marks. Floats are repeated from
    the beginning, because the rounding errors of equal numbers add up.

    Raises:
        UsageError: the text is no packed array, or has another number of axes.
    """
    array = _unpacked(text)  # shared by all calls, and copied where it is cut
    if array.ndim != len(shape) or not all(array.shape):
        raise UsageError(f"an example has shape {list(array.shape)}, which does not continue to {list(shape)}.")
    for axis, size in enumerate(shape):
        had, places = array.shape[axis], np.arange(size)
        array = array.take(places % had if array.dtype.kind == "f" else np.minimum(places, had - 1), axis)
    return array if shape else array.copy()


def example(
    spec: TensorSpec,
    sizes: Mapping[str, int],
    given: str = "",
    *,
    shape: Sequence[int] | None = None,
    least: int | None = None,
) -> torch.Tensor:
    """A tensor to run a module with, the same each time: normal floats, and whole numbers below `spec.high` or 2.

    Args:
        given: The values that it has, as of `packed`; "" = others.
        shape: In place of that at `sizes`.
        least: Whole numbers are random from it on; None = they are 1, where that is below `spec.high`; of booleans,
            the last of a row is false.

    Raises:
        UsageError: as `continued`.
    """
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    lengths = spec.shape(sizes) if shape is None else tuple(shape)
    if given:
        return torch.from_numpy(continued(given, lengths)).to(dtype)
    generator, high = torch.Generator().manual_seed(0), spec.high or 2
    if dtype.is_floating_point:
        return torch.randn(lengths, generator=generator).to(dtype)
    if least is None:
        ones = torch.full(lengths, min(1, high - 1), dtype=dtype)
        if dtype == torch.bool and lengths and lengths[-1] > 1:
            ones[..., -1] = False  # a mask that hides every key, as one of all `True` may, is refused by some modules
        return ones
    return torch.randint(least, high, lengths, generator=generator).to(dtype)


def without_examples(declaration: str) -> str:
    """A declaration of an input without the values in it, to be shown or to be given to others."""
    return _MARK.sub("", declaration)


@functools.lru_cache(maxsize=64)
def _unpacked(text: str) -> Array:
    try:
        # A manifest is text that anybody can write; a short one must not unpack to all of the memory.
        data = zlib.decompressobj().decompress(base64.urlsafe_b64decode(text), MAX_BYTES)
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except (binascii.Error, zlib.error, ValueError, EOFError, MemoryError) as err:
        raise UsageError(f"an example is damaged: {err}.", hint="Export again.") from err
