"""Values of an input that a module does not take at random, taken from an example and kept as text in the contract.

A forward may look up rows by whole numbers among floats, want as many marks in a mask as there are images, or divide
by what it is given. Such inputs have values of an example in every test, at every size.
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
import re
import zlib
from typing import Any

import numpy as np

from attnport.errors import UsageError

ROWS = 4
"""How many rows of a batch are kept."""
_MARK = re.compile(r":example=[\w=-]*")

Array = np.ndarray[Any, Any]


def packed(array: Array) -> str:
    """An array as text of letters, digits, `_`, `-` and `=`."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.urlsafe_b64encode(zlib.compress(file.getvalue())).decode()


def continued(text: str, shape: tuple[int, ...]) -> Array:
    """A packed array in another shape: cut, or longer by repeating all of it, or of whole numbers the last part alone.

    Whole numbers stay sorted, and in a mask what is marked stays as many; floats that are all equal would round alike.

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


def without_examples(declaration: str) -> str:
    """A declaration of an input without the values in it, to be shown or to be given to others."""
    return _MARK.sub("", declaration)


@functools.lru_cache(maxsize=64)
def _unpacked(text: str) -> Array:
    try:
        data = zlib.decompress(base64.urlsafe_b64decode(text))
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except (binascii.Error, zlib.error, ValueError, EOFError) as err:
        raise UsageError(f"an example is damaged: {err}.", hint="Export again.") from err
