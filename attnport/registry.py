"""Finds runtimes, targets, rules, rewrites, translations, bundle layouts and files of models, each a file in a folder.

A new file is found without being listed anywhere. `base` and files whose names begin with `_` are helpers.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from attnport.errors import UsageError, nearest


def files(package: str) -> list[Path]:
    """The files of `package`, such as `attnport.runtimes`, sorted by name, without importing them."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    return [path for path in sorted(folder.glob("*.py")) if path.stem != "base" and not path.stem.startswith("_")]


def names(package: str) -> list[str]:
    """The names in `package`, sorted."""
    return [path.stem for path in files(package)]


def all_of(package: str) -> list[ModuleType]:
    """Imports every file of `package`, in the order of `names`."""
    return [importlib.import_module(f"{package}.{name}") for name in names(package)]


def module(package: str, name: str, what: str) -> ModuleType:
    """Imports the module called `name`; hyphens are taken as underscores.

    Args:
        what: The kind of thing, for the error: `runtime`.

    Raises:
        UsageError: there is no such name; lists all names, and asks if the nearest is meant.
    """
    stem, known = name.replace("-", "_"), names(package)
    if stem not in known:
        raise UsageError(
            f"{what} {stem!r}: there is none; expected one of {', '.join(known)}.", hint=nearest(stem, known)
        )
    return importlib.import_module(f"{package}.{stem}")
