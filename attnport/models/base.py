"""Finds the models by name: a model is one file in this folder that defines `SPEC`."""

from __future__ import annotations

import importlib

from attnport import registry
from attnport.artifacts import ModelSpec
from attnport.errors import SpecError


def names() -> list[str]:
    """The names of all models, in alphabetical order."""
    return registry.names("attnport.models")


def get(name: str) -> ModelSpec:
    """The model `name`, in which a hyphen means an underscore.

    Raises:
        SpecError: there is no such model; the message lists the models.
    """
    known = names()
    module = name.replace("-", "_")
    if module not in known:
        raise SpecError(
            f"{name!r} is no model of attnport; there are {', '.join(known)}.",
            hint="A SPEC is a model's NAME, package.module:factory, file.py:factory, hf:FOLDER or onnx:FILE.",
        )
    spec: ModelSpec = importlib.import_module(f"{__package__}.{module}").SPEC
    return spec
