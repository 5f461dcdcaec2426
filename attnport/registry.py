"""What is found by its file: one thing a file in a folder of this package, called by the file's name.

`base` and names that begin with `_` are helpers and not one of them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from attnport.errors import UsageError


def files(package: str) -> list[Path]:
    """The files of `package`, such as `attnport.runtimes`, in name order; none of them is imported."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    return [path for path in sorted(folder.glob("*.py")) if path.stem != "base" and not path.stem.startswith("_")]


def names(package: str) -> list[str]:
    """The names of what `package` holds, in order."""
    return [path.stem for path in files(package)]


def module(package: str, name: str, what: str) -> ModuleType:
    """Imports the one called `name`; hyphens are taken as underscores.

    Args:
        what: What it is, for the error: `runtime`.

    Raises:
        UsageError: there is none; lists those there are.
    """
    found, known = name.replace("-", "_"), names(package)
    if found not in known:
        raise UsageError(f"{what} {found!r}: there is none; expected one of {', '.join(known)}.")
    return importlib.import_module(f"{package}.{found}")
