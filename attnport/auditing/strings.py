"""What files that are no ONNX give away: text as a whole, anything else by the runs of text in it."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from attnport.auditing.findings import Finding, Kind, shown
from attnport.auditing.text import Builder, first_of_each, leaks

TEXTS = frozenset((".json", ".html", ".txt", ".md", ".py", ".toml", ".yaml", ".yml", ".csv", ".js", ".css", ".svg"))
_RUN = re.compile(rb"[\x20-\x7e]{12,}")
_MOST_RUN = 1 << 16


def audit_text(file: str, path: Path, builder: Builder, *, words: bool = True, advice: str = "") -> Iterator[Finding]:
    """Each line of a text file that gives something away, the same thing once.

    Args:
        words: Look for the builder's names too; not in vocabularies, which hold most first names.
        advice: What to do about it; nothing is changed in such files.
    """
    seen = set[tuple[Kind, str]]()
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
        for found in leaks(line, builder, words=words):
            if found not in seen:
                seen.add(found)
                yield Finding(file, f"line {number}", found[0], shown(found[1]), fixable=False, advice=advice)


def audit_bytes(file: str, path: Path, builder: Builder, *, advice: str = "") -> Iterator[Finding]:
    """Each run of 12 or more printable characters of a binary file that gives something away."""
    if not path.stat().st_size:
        return
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _RUN.finditer(data):
            run = match[0][:_MOST_RUN].decode("ascii")
            for kind, evidence in first_of_each(run, builder).items():
                where = f"byte {match.start()}"
                yield Finding(file, where, kind, shown(evidence), fixable=False, advice=advice)
