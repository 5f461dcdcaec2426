"""`file.py:factory`: a factory in one of the user's files."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import SOURCE_SUFFIXES, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from attnport.errors import SpecError, nearest
from attnport.sources.package import FACTORY, Wanted, attribute, find_in


class _FromText(SourceFileLoader):
    """Always compiles the source that a user can read; bytecode beside it (`__pycache__`) may be of other code."""

    def get_code(self, fullname: str) -> CodeType:
        """The code object of the source file."""
        return self.source_to_code(self.get_data(self.path), self.path)


def is_file_name(place: str) -> bool:
    """Whether the part of a SPEC before the colon names a file, not a package."""
    return place.endswith(".py") or "/" in place


def module_name(path: Path) -> str:
    """What a file that is loaded by its name is called in `sys.modules`."""
    return f"attnport_source_{path.stem}"


def file_factory(path: Path, factory: str, wanted: Wanted = FACTORY) -> Callable[..., Any]:
    """Loads `factory` from the Python file `path`, which may import the files beside it, now or when it is called.

    Args:
        wanted: What the function is for.

    Raises:
        SpecError: the file or the factory does not exist.
    """
    if not path.is_file():
        there = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
        raise SpecError(f"{path} is not a file.", hint=nearest(path.name, there) or wanted.forms)
    name = module_name(path)
    text_loader = _FromText(name, str(path)) if path.suffix in SOURCE_SUFFIXES else None
    loader = importlib.util.spec_from_file_location(name, path, loader=text_loader)
    if loader is None or loader.loader is None:
        raise SpecError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(loader)
    find_in(path.parent.resolve())
    sys.modules[name] = module  # so that the source of its classes can be found
    loader.loader.exec_module(module)
    return attribute(module, factory, f"{path}:{factory}", wanted)
