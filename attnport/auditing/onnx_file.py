"""Finds what an ONNX file reveals in its notes and names, anywhere in the model.

The walk uses the format's protobuf descriptors, so that it covers every place: main graph, branches, functions,
training information, quantisation notes, and anything that later versions of the format add.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.auditing.findings import Finding, Kind, shown
from attnport.auditing.text import Builder, first_of_each
from attnport.errors import ArtifactError, first_line

if TYPE_CHECKING:
    from google.protobuf.message import Message  # type: ignore[import-untyped]  # protobuf ships no types
    from onnx import ModelProto

KEPT = "pkg.torch.onnx.name_scopes"
"""The only note of an exporter that is kept: module paths, from which attentions get their names."""
PLACES = ("location", "offset", "length", "checksum")
"""The keys that the format defines for data beside the file."""
_NOTES = ("pkg.torch.", "namespace")
_ENTRY = "StringStringEntryProto"
_RENAME = "It is a name, which other parts may use; rename it in the module and export again."
_ATTRIBUTE = "It is a value that a node uses; change the module and export again."


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
        raise ArtifactError(f"{path} is not a readable ONNX file: {first_line(err)}") from err
    if not model.graph.output or not model.opset_import:
        # To protobuf, an empty file or one that ends between two fields is a complete message.
        raise ArtifactError(f"{path} is not a whole ONNX file: it has no outputs or no opset.")
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
