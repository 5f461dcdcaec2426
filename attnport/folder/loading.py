"""From a SPEC to a ModelSpec: where `sources`, which reads SPECs, meets the project's own `models`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from attnport.artifacts import ModelSpec
from attnport.errors import SpecError

if TYPE_CHECKING:
    from torch import nn


def load(text: str, **options: Any) -> ModelSpec:
    """Loads the model that a SPEC names, the project's own ones included.

    Args:
        text: The SPEC.
        options: As of `attnport.sources.load`, which raises what this does.
    """
    from attnport.models import base
    from attnport.sources import load as read

    return read(text, own=base.get, **options)


def with_outputs(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """`spec` with the outputs called `names` alone; all of them if there are no names.

    Raises:
        SpecError: it has no such output.
    """
    known = [output.name for output in spec.io.outputs]
    for name in names:
        if name not in known:
            raise SpecError(
                f"{spec.source.text}: got --outputs {name}; its outputs are {', '.join(known)}.",
                hint="Name one of these.",
            )
    return without_outputs(spec, [name for name in known if names and name not in names])


def without_outputs(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """`spec` without the outputs called `names`.

    The module drops them itself, in a hook behind its forward, so that module paths and parameters keep their names,
    and reference, twins and goldens all see one module.
    """
    kept = [index for index, output in enumerate(spec.io.outputs) if output.name not in names]
    if len(kept) == len(spec.io.outputs):
        return spec

    def keep(module: nn.Module, arguments: Any, outputs: Any) -> Any:
        if not isinstance(outputs, (tuple, list)):
            return outputs  # whoever names a module's outputs refuses it with words
        return outputs[kept[0]] if len(kept) == 1 else tuple(outputs[index] for index in kept)

    def make() -> nn.Module:
        module = spec.make()
        module.register_forward_hook(keep)
        return module

    io = dataclasses.replace(spec.io, outputs=tuple(spec.io.outputs[index] for index in kept))
    return dataclasses.replace(spec, io=io, make=make)
