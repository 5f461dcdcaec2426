"""Takes away what an ONNX file gives away and no reader needs. Nodes, names and numbers stay as they are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.auditing.onnx_file import PLACES, gives_away, messages
from attnport.auditing.text import Builder

if TYPE_CHECKING:
    from google.protobuf.message import Message  # type: ignore[import-untyped]  # protobuf ships no types
    from onnx import ModelProto


def clean(model: ModelProto, builder: Builder) -> bytes:
    """The file's new bytes: without doc strings, notes that give something away, unknown keys and unknown fields.

    It works on the message as it was read, not through a graph, so that nothing else moves.
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


def replace_file(path: Path, data: bytes) -> None:
    """Writes `data` in place of a file, all at once and with the file's own mode; through a link, where it points."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _keep(message: Message, field: str, wanted: Callable[[Any], bool]) -> None:
    """Leaves the wanted entries of a repeated field, in their order."""
    entries = getattr(message, field)
    for index in reversed(range(len(entries))):
        if not wanted(entries[index]):
            del entries[index]
