"""Claims of the literature, measured on attnport's own artifacts: one claim a file, called by the file's name.

A claim defines `TITLE`, `CLAIM` (what is said, and where), `FULL` and `TOY` (sizes: those of the page, and some that
take seconds) and `measure(sizes, progress)`, which gives `_findings.Findings`. Names that begin with `_` are helpers.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
MODELS = HERE / "_models.py"
"""The file of the SPECs that claims export."""


def names() -> list[str]:
    """The claims there are, in name order."""
    return [path.stem for path in sorted(HERE.glob("*.py")) if not path.stem.startswith("_")]


def get(name: str) -> ModuleType:
    """The claim called `name`."""
    return importlib.import_module(f"{__name__}.{name}")
