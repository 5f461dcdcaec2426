"""What an ONNX file reveals, anywhere in the model: notes and names, constants that look like data, unused bytes.

`clean` removes its notes. The walk uses the format's protobuf descriptors, so that it covers every place: main graph,
branches, functions, training information, quantisation notes, and anything that later versions of the format add.
Floating-point data cannot be distinguished from weights, so all floating-point numbers count as weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.auditing.text import Builder, Finding, Kind, first_of_each, shown
from attnport.errors import NOT_ONNX, ArtifactError, first_line

if TYPE_CHECKING:
    from google.protobuf.message import Message  # type: ignore[import-untyped]  # protobuf ships no types
    from onnx import ModelProto, NodeProto, TensorProto

KEPT = "pkg.torch.onnx.name_scopes"
"""The only note of an exporter that is kept: module paths, from which attentions get their names."""
PLACES = ("location", "offset", "length", "checksum")
"""The keys that the format defines for data beside the file."""
_NOTES = ("pkg.torch.", "namespace")
_ENTRY = "StringStringEntryProto"
_RENAME = "It is a name, which other parts may use; rename it in the module and export again."
_ATTRIBUTE = "It is a value that a node uses; change the module and export again."

_MOST_BYTES = 1 << 20
_FEWEST, _DISTINCT = 64, 32
_PRINTABLE = 0.9
_AUTHOR = "Only the module's author knows whether it may be there; if not, remove it from the module."
_INTEGERS = {3: "<i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 12: "<u4", 13: "<u8"}
_UINT8, _STRING = 2, 8
_TEXT = re.compile(rb"[\x20-\x7e\t\r\n]")
_QUANTISED = ("Linear", "Integer", "NBits", "Quantize")
_LAYOUT = frozenset(
    (
        *("Reshape", "Transpose", "Flatten", "Unsqueeze", "Squeeze", "Expand", "Tile", "Slice", "Split", "Concat"),
        *("Pad", "Cast", "Identity", "Gather"),
    )
)
_INDEXED = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1}
"""The first input that is an index; the inputs before it are data."""
_SIZED = frozenset(("Reshape", "Slice", "Expand", "Tile", "Pad", "Split", "ConstantOfShape", "Resize", "Unsqueeze"))
_CHUNK_BYTES = 1 << 20
_UNUSED = "No tensor needs them; load the model and save it again, or export it again."


def load(path: Path) -> ModelProto:
    """Reads an ONNX file without the data beside it.

    Raises:
        ArtifactError: it is no ONNX file, or is cut short.
    """
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as err:
        raise ArtifactError(f"{path} is not a readable ONNX file: {first_line(err)}", hint=NOT_ONNX) from err
    if not model.graph.output or not model.opset_import:
        # To protobuf, an empty file or one that ends between two fields is a complete message.
        raise ArtifactError(f"{path} is not a whole ONNX file: it has no outputs or no opset.", hint=NOT_ONNX)
    return model


def messages(message: Message, where: str = "") -> Iterator[tuple[str, Message]]:
    """`message` and every message inside it, with its place: `graph.node[linear].attribute[value]`."""
    yield where, message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        single = hasattr(value, "ListFields")
        for index, inner in enumerate((value,) if single else value):
            name = getattr(inner, "name", "") or getattr(inner, "key", "") or index
            label = field.name if single else f"{field.name}[{name}]"
            yield from messages(inner, f"{where}.{label}" if where else label)


def audit_notes(file: str, model: ModelProto, builder: Builder) -> Iterator[Finding]:
    """Findings for notes, doc strings, names, unknown keys and unknown fields that reveal something."""
    for where, message in messages(model):
        yield from _unknown_fields(file, where, message)
        for field, value in message.ListFields():
            place = f"{where}.{field.name}" if where else field.name
            if field.name == "metadata_props":
                yield from _metadata(file, place, value, builder)
            elif field.name == "external_data":
                yield from _strange_keys(file, place, value)
            elif field.name == "doc_string":
                yield from _doc_string(file, place, value, builder)
            elif field.message_type is not None and field.message_type.name == _ENTRY:
                yield from _texts(file, place, [f"{entry.key}\n{entry.value}" for entry in value], builder, _RENAME)
            elif message.DESCRIPTOR.name == _ENTRY:
                continue  # already handled with the field that contains it
            elif field.type == field.TYPE_STRING:
                yield from _texts(file, place, value, builder, _RENAME)
            elif field.type == field.TYPE_BYTES and field.name in ("s", "strings"):
                yield from _texts(file, place, value, builder, _ATTRIBUTE)


def gives_away(key: str, value: str, builder: Builder) -> bool:
    """Whether an entry of metadata reveals something, so that `--fix` removes it."""
    noted = key != KEPT and key.startswith(_NOTES)
    return noted or bool(first_of_each(f"{key}\n{value}", builder))


def clean(model: ModelProto, builder: Builder) -> bytes:
    """The bytes of the file without doc strings, notes with paths or names, and unknown keys and fields.

    The protobuf message is edited directly, not through a graph library, so that nothing else changes.
    """
    model.DiscardUnknownFields()
    for _, message in messages(model):
        known = message.DESCRIPTOR.fields_by_name
        if "doc_string" in known:
            message.ClearField("doc_string")
        if "metadata_props" in known:
            _keep(message, "metadata_props", lambda entry: not gives_away(entry.key, entry.value, builder))
        if "external_data" in known:
            _keep(message, "external_data", lambda entry: entry.key in PLACES)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _keep(message: Message, field: str, wanted: Callable[[Any], bool]) -> None:
    """Keeps only the wanted entries of a repeated field, in order."""
    entries = getattr(message, field)
    for index in reversed(range(len(entries))):
        if not wanted(entries[index]):
            del entries[index]


def unknown_fields(message: Message) -> list[tuple[int, Any]]:
    """Number and value of each field that the format does not define; protobuf keeps them when it writes."""
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]  # as above

    return [(field.field_number, field.data) for field in UnknownFieldSet(message)]


def _metadata(file: str, where: str, entries: Any, builder: Builder) -> Iterator[Finding]:
    for entry in entries:
        if not gives_away(entry.key, entry.value, builder):
            continue
        notes: dict[Kind, str] = {}
        if entry.key != KEPT and entry.key.startswith(_NOTES):
            notes["stack_trace" if "stack_trace" in entry.key else "metadata"] = f"{entry.key}: {entry.value}"
        for kind, evidence in {**first_of_each(f"{entry.key}\n{entry.value}", builder), **notes}.items():
            yield Finding(file, where, kind, shown(evidence), fixable=True)


def _strange_keys(file: str, where: str, entries: Any) -> Iterator[Finding]:
    for entry in entries:
        if entry.key not in PLACES:
            yield Finding(file, where, "metadata", shown(f"{entry.key}: {entry.value}"), fixable=True)


def _doc_string(file: str, where: str, text: str, builder: Builder) -> Iterator[Finding]:
    yield Finding(file, where, "doc_string", shown(text), fixable=True)
    for kind, evidence in first_of_each(text, builder).items():
        yield Finding(file, where, kind, shown(evidence), fixable=True)


def _texts(file: str, where: str, value: Any, builder: Builder, advice: str) -> Iterator[Finding]:
    for item in (value,) if isinstance(value, str | bytes) else value:
        text = item.decode("utf-8", "replace") if isinstance(item, bytes) else item
        for kind, evidence in first_of_each(text, builder).items():
            yield Finding(file, where, kind, shown(evidence), fixable=False, advice=advice)


def _unknown_fields(file: str, where: str, message: Message) -> Iterator[Finding]:
    for number, data in unknown_fields(message):
        text = data.decode("latin-1") if isinstance(data, bytes) else str(data)
        yield Finding(file, where or "model", "unknown_field", shown(f"field {number}: {text}"), fixable=True)


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


def audit_constants(file: str, model: ModelProto, folder: Path) -> Iterator[Finding]:
    """Findings for tensors that look like data, by the first MiB of each."""
    uses = Uses(model)
    for where, name, tensor in tensors(model):
        evidence = _looks_like_data(tensor, folder, list(uses.ends(name)))
        if evidence:
            yield Finding(file, where, "data_constant", shown(evidence), fixable=False, advice=_AUTHOR)


class Uses:
    """The uses of each constant, by its name, in every graph and function of a model."""

    def __init__(self, model: ModelProto) -> None:
        self._users: dict[str, list[tuple[NodeProto, int]]] = {}
        for _, message in messages(model):
            if message.DESCRIPTOR.name == "NodeProto":
                for position, name in enumerate(message.input):
                    if name:  # an omitted optional input has no name
                        self._users.setdefault(name, []).append((message, position))

    def ends(self, name: str) -> Iterator[tuple[str, int]]:
        """The operators that read a constant, directly or after layout changes and casts, with the input's position."""
        pending, seen = [name], set[str]()
        while pending:
            for node, position in self._users.get(pending.pop(), ()):
                if (node.op_type in _LAYOUT and position == 0) or node.op_type == "Concat":
                    pending += [output for output in node.output if output not in seen]
                    seen.update(node.output)
                else:
                    yield node.op_type, position


def _looks_like_data(tensor: TensorProto, folder: Path, ends: list[tuple[str, int]]) -> str:
    """Why a tensor looks like data, with a piece of it; "" if it does not."""
    data = content(tensor, folder, _MOST_BYTES)
    if tensor.data_type == _STRING:
        return f"text: {data.decode('utf-8', 'replace')}" if data else ""
    if len(data) < _FEWEST:
        return ""
    if len(_TEXT.findall(data)) >= _PRINTABLE * len(data) and len(set(data)) >= _FEWEST // 4:
        return f"text: {data.decode('latin-1')}"
    if tensor.data_type == _UINT8:
        quantised = any(word in operator for operator, _ in ends for word in _QUANTISED)
        return "" if quantised or len(set(data)) < _DISTINCT else f"bytes: {data[:24].hex(' ')}"
    if tensor.data_type in _INTEGERS:
        return _strange_integers(tensor, data, ends)
    return ""


def _strange_integers(tensor: TensorProto, data: bytes, ends: list[tuple[str, int]]) -> str:
    kind = np.dtype(_INTEGERS[tensor.data_type])
    values = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    if values.size < _FEWEST or np.unique(values).size < _DISTINCT:
        return ""
    if all(_is_index(operator, position) for operator, position in ends) and ends:
        return ""
    if any(word in operator for operator, _ in ends for word in _QUANTISED) or _is_counted(values, tensor):
        return ""
    return f"integers: {', '.join(map(str, values[:12]))}"


def _is_index(operator: str, position: int) -> bool:
    first = _INDEXED.get(operator)
    return (first is not None and position >= first) or (operator in _SIZED and position > 0)


def _is_counted(values: np.ndarray[tuple[int], np.dtype[np.signedinteger]], tensor: TensorProto) -> bool:
    """Whether each row counts up or down in equal steps, as with positions and distances."""
    width = int(tensor.dims[-1]) if tensor.dims else 1
    rows = values[: values.size // width * width].reshape(-1, width) if 1 < width <= values.size else values[None]
    steps = np.diff(rows.astype(np.float64), axis=-1)
    return bool(steps.size and (steps == steps.flat[0]).all())


def audit_unreferenced(file: str, path: Path, ranges: Iterable[Range]) -> Iterator[Finding]:
    """Findings for the stretches of `path` that none of `ranges` covers and that are not all zeros."""
    size = path.stat().st_size
    for begin, end in gaps(ranges, size):
        nonzero = _first_not_zero(path, begin, end)
        if nonzero is not None:
            at, data = nonzero
            where, evidence = f"bytes {begin} to {end}", f"at {at}: {data.decode('latin-1')}"
            yield Finding(file, where, "unreferenced_bytes", shown(evidence), fixable=False, advice=_UNUSED)


def gaps(ranges: Iterable[Range], size_bytes: int) -> Iterator[tuple[int, int]]:
    """The stretches of a file of `size_bytes` that no range covers, in order."""
    at = 0
    for begin, end in sorted((piece.begin, size_bytes if piece.end is None else piece.end) for piece in ranges):
        if begin > at:
            yield at, min(begin, size_bytes)
        at = max(at, end)
    if at < size_bytes:
        yield at, size_bytes


def _first_not_zero(path: Path, begin: int, end: int) -> tuple[int, bytes] | None:
    """The position of the first byte that is not zero, and up to 80 bytes from there; None if all are zero."""
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end:
            chunk = file.read(min(_CHUNK_BYTES, end - begin))
            if not chunk:
                return None
            rest = chunk.lstrip(b"\0")
            if rest:
                return begin + len(chunk) - len(rest), rest[:80]
            begin += len(chunk)
    return None
