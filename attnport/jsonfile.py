"""Writes values as JSON, reads them strictly, and computes digests of files and texts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from attnport.errors import ArtifactError, AttnportError
from attnport_bundle.format.strict_json import decode, parse

MAX_JSON_BYTES = 256 << 20
_TICK_NS = 2_000_000_000
"""The longest tick of a file system's clock: that of FAT."""
_digests: dict[tuple[int, ...], str] = {}

T = TypeVar("T")


def to_json(value: Any, *, ascii_only: bool = False) -> str:
    """A value as JSON text, ending in a newline; NaN and Inf are refused. `ascii_only` suits any stream encoding."""
    return json.dumps(dataclasses.asdict(value), indent=1, allow_nan=False, ensure_ascii=ascii_only) + "\n"


def from_json(kind: type[T], text: str | bytes, where: str) -> T:
    """Validates JSON text as a value of `kind`; `where` names the file in errors.

    Raises:
        ArtifactError: the text is not JSON, or not a `kind`; says where and what.
    """
    name = kind.__name__
    try:
        return decode(kind, parse(text.encode() if isinstance(text, str) else text, "it"), name, own=True)
    except AttnportError as err:  # of the text, of a type, or from a value's own check
        raise ArtifactError(
            f"{where} is not a valid {name}: {str(err).rstrip('.')}.",
            hint="It was cut short, edited, or written by another version; make it again.",
        ) from err


def read(kind: type[T], path: Path) -> T:
    """Reads a value from the JSON file `path`. Raises ArtifactError if it is missing, too large or malformed."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ArtifactError(f"{path} has {path.stat().st_size} bytes; at most {MAX_JSON_BYTES} are read.")
        data = path.read_bytes()
    except OSError as err:
        raise ArtifactError(f"{path} cannot be read: {err.strerror}.") from err
    return from_json(kind, data, str(path))


def digest_file(path: Path) -> str:
    """SHA-256 of a file, as hex. This process computes it once, as long as the file system says that it is unchanged.

    A file that was changed in the last seconds is read each time: two changes in one tick of a file system's clock look
    like one.
    """
    with path.open("rb") as file:
        state = _state(file)
        if (known := _digests.get(state)) is not None:
            return known
        quiet = time.time_ns() - max(state[-2:]) > _TICK_NS
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if quiet and _state(file) == state:
            _digests[state] = digest
        return digest


def _state(file: BinaryIO) -> tuple[int, ...]:
    """Which file it is, and what changes with its content; no program can set back the last time."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def digest_text(*parts: str) -> str:
    """SHA-256 over texts, each with its length, so that different lists have different digests."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(len(data).to_bytes(8, "little") + data)
    return sha.hexdigest()
