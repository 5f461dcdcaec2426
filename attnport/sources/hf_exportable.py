"""Chooses, where transformers computes a thing in several ways, one that can be traced and runs in every precision."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnport.patches import Patch, alone, patched

if TYPE_CHECKING:
    from torch import nn

_ENTRIES = re.compile(r"forward|get_\w+_features")
"""The methods by which a model of transformers is run."""


def settle(model: nn.Module) -> None:
    """Changes transformers' models, in place, wherever they are in a module; their numbers stay the same.

    - Experts are computed one after the other. By default transformers 5 computes them with torch's `grouped_mm`, which
      refuses float64 and so the reference. A trace cannot follow the loop over the experts that were chosen; the
      exporter computes them as `grouped_mm` for as long as it traces
      (https://github.com/huggingface/transformers/pull/42697).
    - Tensors are not kept from one run to the next. One that a trace made, or a run in float64, has no meaning in
      another run.
    - A causal mask is always made where none of the model's attentions calls itself causal. Where no token is padding,
      transformers leaves it out in favour of that flag, so without it (AIMv2's texts) one padded token in a batch
      changes what all others attend to. With eager attention, and in a trace, transformers makes it too.

    The last two are functions of transformers' files. They are changed while this module runs, and no longer.
    """
    for part in model.modules():
        part_of_transformers: Any = part
        if getattr(part, "_can_set_experts_implementation", bool)():
            part_of_transformers.set_experts_implementation("eager")
    causal = any(getattr(part, "is_causal", True) for part in model.modules() if hasattr(part, "is_causal"))
    files = {type(part).__module__ for part in model.modules()}
    changes: list[Patch] = []
    with alone():  # so that no other thread's changes are taken for transformers' own functions
        for file in (sys.modules[name] for name in files if name.startswith("transformers.models.")):
            changes += (*_without_caches(file), *(() if causal else _causal_masks(file)))
    if changes:
        for part in model.modules():
            # A part may be run by itself, as a tower is.
            if part is model or any(kind.__name__ == "PreTrainedModel" for kind in type(part).__mro__):
                _run_within(part, changes)


def _run_within(part: nn.Module, changes: Sequence[Patch]) -> None:
    """Has a module run with changes, by a class of its own with the name of its class."""
    kind = type(part)
    space: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    for name in dir(kind):
        if _ENTRIES.fullmatch(name) and inspect.isfunction(getattr(kind, name)):
            space[name] = _within(getattr(kind, name), changes)
    meta: Any = type(kind)
    part.__class__ = meta(kind.__name__, (kind,), space)


def _within(method: Callable[..., Any], changes: Sequence[Patch]) -> Callable[..., Any]:
    import torch

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            # It reads functions and does not call them: it keeps no tensors, and transformers makes the masks.
            return method(*args, **kwargs)
        with patched(lambda: changes):
            return method(*args, **kwargs)

    return run


def _without_caches(file: Any) -> Iterator[Patch]:
    """Patches of functions and methods of a file that keep their results: the same ones without a cache."""
    classes = [value for value in vars(file).values() if isinstance(value, type) and value.__module__ == file.__name__]
    for scope in (file, *classes):
        for name, function in list(vars(scope).items()):
            # `compile_compatible_method_lru_cache` hides its cache in a closure.
            held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
            if any(isinstance(each, functools._lru_cache_wrapper) for each in (function, *held)):
                yield Patch(scope, name, function.__wrapped__)


def _causal_masks(file: Any) -> Iterator[Patch]:
    """Patches with which a file's models make the causal masks that they would leave to flags of their attentions."""
    for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
        if (make := vars(file).get(name)) is not None:
            yield Patch(file, name, functools.partial(make, allow_is_causal_skip=False))
