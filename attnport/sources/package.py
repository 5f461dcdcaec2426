"""`package.module:factory`: a factory in an importable package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from attnport.artifacts import ModelSpec
from attnport.errors import SpecError

SPEC_FORMS = "A SPEC is a model's NAME, package.module:factory, file.py:factory, hf:FOLDER or onnx:FILE."


def package_factory(module: str, factory: str) -> Callable[[], Any]:
    """Loads `factory` from `module`, which is importable or in the current folder.

    Raises:
        SpecError: the module or the factory does not exist.
    """
    text = f"{module}:{factory}"
    if not all(part.isidentifier() for part in module.split(".")):
        raise SpecError(f"{text}: {module!r} is not a module's name.", hint=SPEC_FORMS)
    try:
        imported = _imported(module)
    except ModuleNotFoundError as err:
        if err.name and (module == err.name or module.startswith(f"{err.name}.")):
            raise SpecError(
                f"{text}: there is no module {err.name!r} to import.",
                hint="Is it installed, in the current folder, or in one that PYTHONPATH names by an absolute path? "
                "A file is written with its ending: file.py:factory.",
            ) from err
        raise
    return attribute(imported, factory, text)


class _CurrentFolder(MetaPathFinder):
    """Finds the modules of a folder that nothing else finds.

    The folder is not appended to `sys.path`, since it would still take precedence over namespace packages: its
    `google.py` would hide `google.protobuf`. The plug-ins of packages whose metadata lies there would be loaded too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CurrentFolder) and other._folder == self._folder

    def __hash__(self) -> int:
        return hash(self._folder)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [self._folder]) if path is None else None


def _imported(module: str) -> ModuleType:
    """Imports an installed `module` or, if there is none, that of the current folder.

    A module of the current folder may import others from there, now or when it is called. Otherwise nothing is imported
    from the current folder.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        finder, top = _CurrentFolder(Path.cwd()), module.partition(".")[0]
        if err.name != top or finder.find_spec(top, None) is None:
            raise
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)
    return importlib.import_module(module)


def attribute(module: ModuleType, factory: str, text: str) -> Callable[[], Any]:
    """The factory `factory` of `module`; a ModelSpec or a module instance is wrapped in a factory.

    Raises:
        SpecError: it does not exist, or is neither callable nor a ModelSpec.
    """
    import torch

    if not hasattr(module, factory):
        defined = [name for name, value in vars(module).items() if _defined_in(module, name, value)]
        raise SpecError(
            f"{text}: there is no {factory!r}; it defines {', '.join(sorted(defined)[:8]) or 'no factory'}.",
            hint="Name a function or class that takes no argument and returns the module.",
        )
    value = getattr(module, factory)
    if isinstance(value, ModelSpec | torch.nn.Module):
        return lambda: value
    if not callable(value):
        raise SpecError(
            f"{text}: got {type(value).__name__}; expected a factory that returns a torch.nn.Module.",
            hint="Name a function or class that takes no argument.",
        )
    result: Callable[[], Any] = value
    return result


def _defined_in(module: ModuleType, name: str, value: object) -> bool:
    """Whether a name is defined in the module (not imported) and could be a factory."""
    return callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
