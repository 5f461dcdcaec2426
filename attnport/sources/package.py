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
from attnport.sources.declare import plain_spec

SPEC_FORMS = "A SPEC is a model's NAME, package.module:factory, file.py:factory or hf:FOLDER."


def load_package(module: str, factory: str, inputs: Sequence[str], dims: Sequence[str]) -> ModelSpec:
    """Loads `factory` from the importable `module`, or one of the current folder.

    Raises:
        SpecError: there is no such module or factory.
    """
    text = f"{module}:{factory}"
    if not all(part.isidentifier() for part in module.split(".")):
        raise SpecError(f"{text}: {module!r} is no module's name.", hint=SPEC_FORMS)
    try:
        found = _imported(module)
    except ModuleNotFoundError as err:
        if err.name and (module == err.name or module.startswith(f"{err.name}.")):
            raise SpecError(
                f"{text}: there is no module {err.name!r} to import.",
                hint="Is it installed, in the current folder, or in one that PYTHONPATH names by an absolute path? "
                "A file is written with its ending: file.py:factory.",
            ) from err
        raise
    return plain_spec(text, attribute(found, factory, text), inputs, dims)


class _CurrentFolder(MetaPathFinder):
    """Finds the modules of a folder that nothing else finds.

    Last on `sys.path`, the folder would still go before what is installed in several parts: its `google.py` would be
    taken for `google.protobuf`. And the plug-ins of packages whose metadata lie there would be loaded.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [self._folder]) if path is None else None


def _imported(module: str) -> ModuleType:
    """Imports `module`: an installed one, and only where there is none one of the current folder.

    What that one imports, now or when it is called, may then lie beside it. For any other SPEC nothing of the current
    folder is imported.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        finder, top = _CurrentFolder(Path.cwd()), module.partition(".")[0]
        if err.name != top or finder.find_spec(top, None) is None:
            raise
    sys.meta_path.append(finder)
    return importlib.import_module(module)


def attribute(module: ModuleType, factory: str, text: str) -> Callable[[], Any]:
    """The factory `factory` of `module`; a ModelSpec or a module instance there is wrapped in one.

    Raises:
        SpecError: it is not there, or is neither callable nor a ModelSpec.
    """
    import torch

    if not hasattr(module, factory):
        own = [name for name, value in vars(module).items() if _defined_in(module, name, value)]
        raise SpecError(
            f"{text}: there is no {factory!r}; it defines {', '.join(sorted(own)[:8]) or 'no factory'}.",
            hint="Name a function or class that takes no argument and returns the module.",
        )
    found = getattr(module, factory)
    if isinstance(found, ModelSpec | torch.nn.Module):
        return lambda: found
    if not callable(found):
        raise SpecError(
            f"{text}: got {type(found).__name__}; expected a factory that returns a torch.nn.Module.",
            hint="Name a function or class that takes no argument.",
        )
    made: Callable[[], Any] = found
    return made


def _defined_in(module: ModuleType, name: str, value: object) -> bool:
    """Whether a name is the module's own (not imported into it) and could be a factory."""
    return callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
