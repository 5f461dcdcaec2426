"""What an audit found: one value a thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "path",
    "user",
    "source_line",
    "stack_trace",
    "environment",
    "metadata",
    "doc_string",
    "weights_output",
    "data_constant",
    "unknown_field",
    "unreferenced_bytes",
    "user_text",
]
MOST = 80
"""Characters of evidence: a report must not give away more than it has to."""


@dataclass(frozen=True)
class Finding:
    """One thing that a file gives away.

    Attributes:
        file: Relative to what was audited.
        where: Which part of the file, such as `graph.node[linear].metadata_props`.
        evidence: At most `MOST` characters of it, everything that is not printable escaped.
        fixable: Whether `--fix` takes it away.
        advice: What to do about it where `--fix` does nothing.
    """

    file: str
    where: str
    kind: Kind
    evidence: str
    fixable: bool
    advice: str = ""


def shown(text: str) -> str:
    """Text as evidence: one line, nothing in it that a terminal would obey, at most `MOST` characters."""
    text = text.strip()
    line = "".join(_escaped(text[:MOST]))
    return line if len(text) <= MOST and len(line) <= MOST else f"{line[: MOST - 1]}…"


def _escaped(text: str) -> Iterator[str]:
    for char in text:
        yield char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
