"""The arrays of a safetensors file, read strictly: FORMAT.md, "Goldens".

The file is the header's length in 8 bytes, the header in JSON, and the data; the header says where in the data each
array lies. https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .decode import decode, parse
from .errors import IntegrityError

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 1 << 30
MAX_HEADER_BYTES = 4 << 20
MAX_RANK = 32
"""What NumPy 1.26 can hold."""
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "BOOL": "bool"}
"""The dtypes of golden arrays, by the names that the format has for them."""
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "BOOL": 1}
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True)
class Entry:
    """What the header says of one array; `data_offsets`: where its data begins and ends, behind the header."""

    dtype: Literal["F64", "F32", "F16", "I64", "I32", "BOOL"]
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        shape, offsets = list(self.shape), list(self.data_offsets)
        if len(shape) > MAX_RANK or min(shape, default=0) < 0:
            raise ValueError(f"got a shape of {len(shape)} sizes; expected at most {MAX_RANK}, none below 0")
        if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1]:
            raise ValueError(f"got data_offsets {offsets[:3]}; expected where the data begins and where it ends")
        # NumPy cannot hold every empty array either, so the sizes beside a 0 are limited too.
        if math.prod(size or 1 for size in shape) * _ITEM_BYTES[self.dtype] > MAX_BYTES:
            raise ValueError(f"shape {shape} is larger than {MAX_BYTES} bytes")
        if math.prod(shape) * _ITEM_BYTES[self.dtype] != offsets[1] - offsets[0]:
            raise ValueError(f"shape {shape} does not fit its data of {offsets[1] - offsets[0]} bytes")


def read_safetensors(data: bytes, where: str) -> dict[str, np.ndarray[Any, Any]]:
    """Every array by its name.

    Args:
        data: The whole file.
        where: What messages call the file.

    Raises:
        IntegrityError: the file is damaged or contradicts itself, or holds what no golden array is.
    """
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + header_bytes
    if len(data) < max(start, _LENGTH_BYTES) or header_bytes > MAX_HEADER_BYTES:
        raise IntegrityError(f"{where}: it is cut short, or its header is longer than {MAX_HEADER_BYTES} bytes.")
    entries = _entries(data[_LENGTH_BYTES:start], f"{where}: header")
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != at:
            raise IntegrityError(f"{where}: {name!r} begins at {begin}; expected {at}: a gap or an overlap.")
        at = end
    if at != len(data) - start:
        raise IntegrityError(f"{where}: got {len(data) - start} bytes of data; its arrays take {at}.")
    return {name: _array(data, start, entry, f"{where}: {name!r}") for name, entry in entries.items()}


def _entries(header: bytes, where: str) -> Mapping[str, Entry]:
    if not header.startswith(b"{"):
        raise IntegrityError(f"{where}: it is no JSON object.")
    found = parse(header, where)
    decode(Mapping[str, str], found.pop(_METADATA, {}), f"{where}.{_METADATA}")  # type: ignore[type-abstract]
    return decode(Mapping[str, Entry], found, where)  # type: ignore[type-abstract]


def _array(data: bytes, start: int, entry: Entry, where: str) -> np.ndarray[Any, Any]:
    import numpy as np

    begin, end = (start + offset for offset in entry.data_offsets)
    dtype = np.dtype(DTYPES[entry.dtype])
    array = np.frombuffer(memoryview(data)[begin:end], dtype.newbyteorder("<")).reshape(entry.shape)
    if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        raise IntegrityError(f"{where}: a boolean that is neither 0 nor 1.")
    return array.astype(dtype)
