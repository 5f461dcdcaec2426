"""Finds bytes of a weights file that no tensor uses. Zeros between tensors are alignment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from attnport.auditing.findings import Finding, shown
from attnport.auditing.tensors import Range

_CHUNK_BYTES = 1 << 20
_ADVICE = "No tensor needs them; load the model and save it again, or export it again."


def audit_unreferenced(file: str, path: Path, ranges: Iterable[Range]) -> Iterator[Finding]:
    """Findings for the stretches of `path` that none of `ranges` covers and that are not all zeros."""
    size = path.stat().st_size
    for begin, end in gaps(ranges, size):
        nonzero = _first_not_zero(path, begin, end)
        if nonzero is not None:
            at, data = nonzero
            where, evidence = f"bytes {begin} to {end}", f"at {at}: {data.decode('latin-1')}"
            yield Finding(file, where, "unreferenced_bytes", shown(evidence), fixable=False, advice=_ADVICE)


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
