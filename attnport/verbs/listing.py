"""`attnport list`: what there is by name, with the first line of each file's own description."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnport import registry
from attnport.dims import STRICT
from attnport.errors import UsageError

PACKAGES = {
    "models": "attnport.models",
    "runtimes": "attnport.runtimes",
    "targets": "attnport.exporter.lowering",
    "rules": "attnport.exporter.fusion.rules",
}


@dataclass(frozen=True)
class Listing:
    """Description by name, in name order."""

    what: str
    items: Mapping[str, str]

    __pydantic_config__ = STRICT


def listing(what: str) -> Listing:
    """Lists `models`, `runtimes`, `targets` or `rules`; nothing of what is listed is imported.

    Raises:
        UsageError: `what` is none of them.
    """
    if what not in PACKAGES:
        raise UsageError(f"got {what!r}; expected one of {', '.join(PACKAGES)}.")
    return Listing(what, {path.stem: _first_line(path) for path in registry.files(PACKAGES[what])})


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
