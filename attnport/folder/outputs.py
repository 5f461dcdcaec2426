"""A module with fewer outputs: the same module, of which only some outputs are handed on."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from attnport.artifacts import ModelSpec

if TYPE_CHECKING:
    from torch import nn


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
