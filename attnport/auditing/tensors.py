"""Reads the bytes of a model's tensors, in the file and beside it, as far as an audit needs them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.auditing.findings import shown
from attnport.auditing.onnx_file import messages

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, TensorProto


@dataclass(frozen=True)
class Range:
    """Bytes of a file beside the model that a tensor refers to; `end` is None for "up to the file's end"."""

    location: str
    begin: int
    end: int | None


def tensors(model: ModelProto) -> Iterator[tuple[str, str, TensorProto]]:
    """Every tensor of the model: its place, the name that nodes use for it, and the tensor.

    Includes initializers, constants and other attributes, also in branches and functions.
    """
    node, called = "", ""
    for where, message in messages(model):
        kind = message.DESCRIPTOR.name
        if kind == "NodeProto":
            node, called = where, message.output[0] if message.op_type == "Constant" and message.output else ""
        elif kind == "TensorProto":
            yield where, called if where.startswith(f"{node}.") else message.name, message


def external(tensor: TensorProto) -> Range | None:
    """The place of a tensor's bytes in another file; None if they are in the model's file or the place is malformed."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_location != tensor.EXTERNAL or "location" not in entries:
        return None
    try:
        begin = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else None
    except ValueError:
        return None
    if begin < 0 or (length or 0) < 0:
        return None
    return Range(entries["location"], begin, None if length is None else begin + length)


def beside(folder: Path, location: str) -> Path | None:
    """The file of a location with all links followed, if it is in `folder`; an audit opens no other."""
    try:
        path = (folder / location).resolve()
        return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # the name is too long, contains NUL, or is a circle of links
        return None


def unread(tensor: TensorProto, folder: Path) -> str:
    """Why an audit cannot read all of a tensor's bytes, or other readers read other bytes; "" if nothing is wrong."""
    if min(tensor.dims, default=0) < 0:
        return "its numbers do not fit its type and shape"
    if tensor.data_location != tensor.EXTERNAL:
        return "its numbers do not fit its type and shape" if _has_typed(tensor) and _typed(tensor) is None else ""
    place = external(tensor)
    if place is None:
        return "its place in another file cannot be read"
    path = beside(folder, place.location)
    if path is None:
        return f"weights in {shown(place.location)}: missing or outside the folder"
    if max(place.begin, place.end or 0) > path.stat().st_size:
        return f"weights in {shown(place.location)}: they would be beyond the end of that file"
    if place.end is not None and place.end - place.begin != size_bytes(tensor):
        return f"weights in {shown(place.location)}: their length there is not that of their type and dims"
    return ""


def size_bytes(tensor: TensorProto) -> int:
    """The bytes that a tensor's type and dims take; 0 of an unknown type."""
    import onnx_ir as ir

    kinds = [kind for kind in ir.DataType if int(kind) == tensor.data_type and kind != ir.DataType.STRING]
    return math.ceil(math.prod(tensor.dims) * kinds[0].bitwidth / 8) if kinds and kinds[0].value else 0


def content(tensor: TensorProto, folder: Path, most_bytes: int) -> bytes:
    """The first bytes of a tensor as stored, at most `most_bytes`; empty if they cannot be read."""
    if tensor.data_location == tensor.EXTERNAL:
        place = external(tensor)
        return b"" if place is None else _stored(place, folder, most_bytes)
    if tensor.raw_data:
        return tensor.raw_data[:most_bytes]
    if tensor.string_data:
        return b"\n".join(tensor.string_data)[:most_bytes]
    values = _typed(tensor) if _has_typed(tensor) else None
    return b"" if values is None else values.tobytes()[:most_bytes]


def _stored(place: Range, folder: Path, most_bytes: int) -> bytes:
    """The first bytes of a range; empty if its file is missing, or ends before it (seeking there may fail)."""
    path = beside(folder, place.location)
    if path is None or place.begin > path.stat().st_size:
        return b""
    with path.open("rb") as file:
        file.seek(place.begin)
        return file.read(most_bytes if place.end is None else min(most_bytes, place.end - place.begin))


def _has_typed(tensor: TensorProto) -> bool:
    """Whether a tensor's numbers are in the older encoding, lists of numbers; raw bytes would take precedence."""
    lists = (tensor.int32_data, tensor.int64_data, tensor.uint64_data, tensor.float_data, tensor.double_data)
    return not tensor.raw_data and any(len(values) for values in lists)


def _typed(tensor: TensorProto) -> np.ndarray[Any, Any] | None:
    """The numbers in the older encoding; None if they are malformed."""
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, LookupError, ArithmeticError):  # LookupError: an unknown type
        return None
