"""`package.module:factory`: a factory in an importable package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from attnport.artifacts import ModelSpec
from attnport.errors import SpecError
from attnport.sources.declare import plain_spec

SPEC_FORMS = "A SPEC is a model's NAME, package.module:factory, file.py:factory or hf:FOLDER."


def load_package(module: str, factory: str, inputs: Sequence[str], dims: Sequence[str]) -> ModelSpec:
    """Loads `factory` from the importable `module`.

    Raises:
        SpecError: there is no such module or factory.
    """
    text = f"{module}:{factory}"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name and (module == err.name or module.startswith(f"{err.name}.")):
            raise SpecError(
                f"{text}: there is no module {err.name!r} to import.", hint="Is it installed, or on PYTHONPATH?"
            ) from err
        raise
    except (ValueError, TypeError) as err:
        raise SpecError(f"{text}: {module!r} is no module's name.") from err
    return plain_spec(text, attribute(found, factory, text), inputs, dims)


def load_model(name: str) -> ModelSpec:
    """Loads the project's own model `name` (hyphens are taken as underscores): `SPEC` in the file of that name.

    Raises:
        SpecError: there is none; lists those there are.
    """
    import pkgutil

    models = importlib.import_module("attnport.models")
    known = sorted(found.name for found in pkgutil.iter_modules(models.__path__) if not found.ispkg)
    name = name.replace("-", "_")
    if name not in known:
        raise SpecError(
            f"{name!r} is no model of attnport; there are {', '.join(known)}.",
            hint=SPEC_FORMS,
        )
    spec: ModelSpec = importlib.import_module(f"attnport.models.{name}").SPEC
    return spec


def attribute(module: ModuleType, factory: str, text: str) -> Callable[[], Any]:
    """The factory `factory` of `module`; a ModelSpec or a module instance there is wrapped in one.

    Raises:
        SpecError: it is not there, or is neither callable nor a ModelSpec.
    """
    import torch

    if not hasattr(module, factory):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise SpecError(f"{text}: there is no {factory!r}; it has {', '.join(sorted(names)[:8]) or 'no factory'}.")
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
