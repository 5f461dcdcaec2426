"""Chooses, where transformers computes a thing in several ways, one that can be traced and runs in every precision."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


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
    """
    for part in model.modules():
        part_of_transformers: Any = part
        if getattr(part, "_can_set_experts_implementation", bool)():
            part_of_transformers.set_experts_implementation("eager")
    causal = any(getattr(part, "is_causal", True) for part in model.modules() if hasattr(part, "is_causal"))
    for name in {type(part).__module__ for part in model.modules()}:
        if name.startswith("transformers.models."):
            _remove_caches(sys.modules[name])
            if not causal:
                _make_causal_masks(sys.modules[name])


def _remove_caches(file: Any) -> None:
    """Replaces functions and methods of a file that keep their results by the same ones without a cache."""
    classes = [value for value in vars(file).values() if isinstance(value, type) and value.__module__ == file.__name__]
    for scope in (file, *classes):
        for name, function in list(vars(scope).items()):
            # `compile_compatible_method_lru_cache` hides its cache in a closure.
            held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
            if any(isinstance(each, functools._lru_cache_wrapper) for each in (function, *held)):
                setattr(scope, name, function.__wrapped__)


def _make_causal_masks(file: Any) -> None:
    """Lets a file's models make the causal masks that they would leave to flags of their attentions."""
    for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
        make = vars(file).get(name)
        if make is not None and not isinstance(make, functools.partial):
            setattr(file, name, functools.partial(make, allow_is_causal_skip=False))
