"""`attnport list`: what there is by name, with the first line of each file's own description."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnport.dims import STRICT
from attnport.errors import UsageError

FOLDERS = {
    "models": "models",
    "runtimes": "runtimes",
    "targets": "exporter/lowering",
    "rules": "exporter/fusion/rules",
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
    if what not in FOLDERS:
        raise UsageError(f"got {what!r}; expected one of {', '.join(FOLDERS)}.")
    folder = Path(__file__).parent.parent / FOLDERS[what]
    files = (path for path in sorted(folder.glob("*.py")) if path.stem != "base" and not path.stem.startswith("_"))
    return Listing(what, {path.stem: _first_line(path) for path in files})


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
