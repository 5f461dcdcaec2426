"""`package.module:factory`: a factory in an importable package."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from attnport.artifacts import ModelSpec
from attnport.errors import SpecError, nearest

SPEC_FORMS = (
    "A model is a folder of transformers, OWNER/NAME on its hub, a file of ONNX, file.py:function, "
    "package.module:function, or a name of `attnport list models`."
)


class Wanted(NamedTuple):
    """What a function of the user's is for, in the words of hints: the forms of its name, and what it is."""

    forms: str
    what: str


FACTORY = Wanted(SPEC_FORMS, "a function or class that takes no argument and returns the module")
_OF_HF = ("config.json", "modules.json", "adapter_config.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.py)", re.ASCII)


def with_prefix(text: str) -> str:
    """A SPEC in full: folders of transformers and `owner/name` of a hub get `hf:`, files of ONNX get `onnx:`.

    Anything else, and what has a colon already, is returned as it is; but a folder that could be taken for `owner/name`
    elsewhere, where it is not, begins with a dot.
    """
    place = text.removeprefix("hf:")
    path, like_an_id = Path(place), _HUB_ID.fullmatch(place)
    if ":" not in place and any((path / name).is_file() for name in _OF_HF):
        return f"hf:{'./' if like_an_id else ''}{place}"
    if ":" in text:
        return text
    if text.endswith(".onnx"):
        return f"onnx:{text}"
    return f"hf:{text}" if like_an_id and not path.exists() else text


def hub_id(text: str) -> str:
    """The `owner/name` of a hub that a SPEC in full names; "" if it names something else, or a folder."""
    place = text.removeprefix("hf:")
    return place if place != text and _HUB_ID.fullmatch(place) and not Path(place).is_dir() else ""


def package_factory(module: str, factory: str, wanted: Wanted = FACTORY) -> Callable[..., Any]:
    """Loads `factory` from `module`, which is importable or in the current folder.

    Args:
        wanted: What the function is for.

    Raises:
        SpecError: the module or the factory does not exist.
    """
    text = f"{module}:{factory}"
    if not all(part.isidentifier() for part in module.split(".")):
        raise SpecError(f"{text}: {module!r} is not a module's name.", hint=wanted.forms)
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
    return attribute(imported, factory, text, wanted)


class _Folder(MetaPathFinder):
    """Finds the modules of a folder that nothing else finds.

    The folder is not appended to `sys.path`, since it would still take precedence over namespace packages: its
    `google.py` would hide `google.protobuf`. The plug-ins of packages whose metadata lies there would be loaded too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Folder) and other._folder == self._folder

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
        top = module.partition(".")[0]
        if err.name != top or _Folder(Path.cwd()).find_spec(top, None) is None:
            raise
    find_in(Path.cwd())
    return importlib.import_module(module)


def find_in(folder: Path) -> None:
    """Lets modules of `folder` be imported, now or later, that nothing else finds."""
    finder = _Folder(folder)
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)


def attribute(module: ModuleType, factory: str, text: str, wanted: Wanted = FACTORY) -> Callable[..., Any]:
    """The factory `factory` of `module`; a ModelSpec or a module instance is wrapped in a factory.

    Args:
        text: What named it, for messages.
        wanted: What the function is for.

    Raises:
        SpecError: it does not exist, or is neither callable nor a ModelSpec.
    """
    import torch

    if not hasattr(module, factory):
        defined = sorted(name for name, value in vars(module).items() if _defined_in(module, name, value))
        shown = f"{', '.join(defined[:8])}{', ...' if len(defined) > 8 else ''}" or "none"
        raise SpecError(
            f"{text}: there is no {factory!r}; it defines {shown}.",
            hint=nearest(factory, defined) or f"Name {wanted.what}.",
        )
    value = getattr(module, factory)
    if isinstance(value, ModelSpec | torch.nn.Module):
        return lambda: value
    if not callable(value):
        raise SpecError(
            f"{text}: got {type(value).__name__}; expected {wanted.what}.",
        )
    result: Callable[..., Any] = value
    return result


def _defined_in(module: ModuleType, name: str, value: object) -> bool:
    """Whether a name is defined in the module (not imported) and could be a factory."""
    return callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
