"""Removes what an ONNX file reveals and no reader needs, and finds the folder whose digests that would invalidate."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import MANIFEST as ARTIFACT
from attnport.auditing.onnx_file import PLACES, gives_away, messages
from attnport.auditing.text import Builder
from attnport_bundle.format.manifest import MANIFEST as BUNDLE

if TYPE_CHECKING:
    from google.protobuf.message import Message  # type: ignore[import-untyped]  # protobuf ships no types
    from onnx import ModelProto

IN_BUNDLE = "The bundle's digests would not fit; clean the artifact, check it and bundle again."


def clean(model: ModelProto, builder: Builder) -> bytes:
    """The file's new bytes, without doc strings, revealing notes, unknown keys and unknown fields.

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


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file's contents atomically and keeps its mode; for a link, the file that it points to."""
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
    """Keeps only the wanted entries of a repeated field, in order."""
    entries = getattr(message, field)
    for index in reversed(range(len(entries))):
        if not wanted(entries[index]):
            del entries[index]


@dataclass(frozen=True)
class Owner:
    """A folder whose manifest has the digest of a file.

    Attributes:
        advice: How to clean the file and update its digest.
    """

    folder: Path
    advice: str


def owner(path: Path) -> Owner | None:
    """The bundle or artifact whose manifest names a file, or a link to it; None if there is none."""
    for file in dict.fromkeys((path.parent.resolve() / path.name, path.resolve())):
        for folder in file.parents:
            name = file.relative_to(folder).as_posix()
            if _names(folder / BUNDLE, name):
                return Owner(folder, IN_BUNDLE)
            if _names(folder / ARTIFACT, name):
                return Owner(folder, f"Clean the file and its digest together: attnport audit {folder} --fix")
    return None


def _names(manifest: Path, name: str) -> bool:
    """Whether a manifest of any version has a digest of a file."""
    try:
        data = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):  # there is no manifest, or not one of ours
        return False
    files = data.get("files") if isinstance(data, dict) else None
    return isinstance(files, dict) and name in files
