"""A finding of an audit."""

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
"""The most characters of evidence: a report must not itself reveal more than necessary."""


@dataclass(frozen=True)
class Finding:
    """Something that a file reveals.

    Attributes:
        file: Relative to what was audited.
        where: Which part of the file, such as `graph.node[linear].metadata_props`.
        evidence: At most `MOST` characters of it, with unprintable characters escaped.
        fixable: Whether `--fix` removes it.
        advice: What to do about it if `--fix` cannot remove it.
    """

    file: str
    where: str
    kind: Kind
    evidence: str
    fixable: bool
    advice: str = ""


def shown(text: str) -> str:
    """Text as evidence: one line of at most `MOST` characters, without terminal control sequences."""
    text = text.strip()
    line = "".join(_escaped(text[:MOST]))
    return line if len(text) <= MOST and len(line) <= MOST else f"{line[: MOST - 1]}…"


def _escaped(text: str) -> Iterator[str]:
    for char in text:
        yield char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
