"""Finds the inputs of a module that random values do not fit, by trying: it raises something, or gives NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from attnport.dims import TensorSpec
from attnport.example_values import ROWS, packed
from attnport.sources.declare import example

if TYPE_CHECKING:
    import torch

FORCED = ":example"
"""The mark of an input that is to have the values of its example, though random ones do not fail."""

Call = Callable[..., "dict[str, torch.Tensor]"]


def needed_examples(
    call: Call,
    specs: Sequence[TensorSpec],
    masks: Collection[str],
    tensors: Mapping[str, torch.Tensor],
    forced: Collection[str] = (),
) -> dict[str, str]:
    """The values of examples, as text, for inputs without which the module does not run or gives numbers that are none.

    Args:
        call: Runs the module on tensors by name.
        specs: The inputs.
        masks: Those that are masks, which have values of their own in tests.
        tensors: The examples, on which it runs.
        forced: Inputs that have the values of their examples in any case.
    """
    wanted = _finite(call, tensors) or set()

    def takes(names: Collection[str]) -> bool:
        for values in (example, _drawn):
            found = _finite(call, {**tensors, **{name: values(fixed[name], {}) for name in names}})
            if found is None or not wanted <= found:
                return False
        return True

    fixed = {spec.name: dataclasses.replace(spec, dims=tuple(tensors[spec.name].shape)) for spec in specs}
    free = {spec.name: spec for spec in specs if spec.name not in masks and spec.name not in forced}
    needed = set() if takes(free) else set(free)
    for name in free:
        if name in needed and takes([each for each in free if each == name or each not in needed]):
            needed.remove(name)
    return {spec.name: _rows(tensors[spec.name], spec) for spec in specs if spec.name in needed or spec.name in forced}


def _finite(call: Call, feeds: Mapping[str, torch.Tensor]) -> set[str] | None:
    """The outputs that are finite; None if the module does not run."""
    import torch

    try:
        with torch.no_grad():
            return {name for name, out in call(**feeds).items() if out.isfinite().all()}
    except Exception:  # the user's forward may raise anything
        return None


def _drawn(spec: TensorSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    """Random values as tests have them."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return example(spec, sizes)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, spec.high or 2, spec.shape(sizes), generator=generator).to(dtype)


def _rows(tensor: torch.Tensor, spec: TensorSpec) -> str:
    rows = tensor[:ROWS] if spec.dims and isinstance(spec.dims[0], str) else tensor
    return packed(rows.contiguous().numpy())
