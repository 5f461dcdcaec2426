"""Chooses, among the ways in which transformers computes a thing, one that runs in every precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def settle(model: nn.Module) -> None:
    """Has the experts of transformers models computed one after the other, in place, wherever they are in a module.

    By default transformers 5 computes them with torch's `grouped_mm`, which refuses float64 and so the reference. A
    trace cannot follow the loop over the experts that were chosen; the exporter computes them as `grouped_mm` for as
    long as it traces (https://github.com/huggingface/transformers/pull/42697).
    """
    for part in model.modules():
        part_of_transformers: Any = part
        if getattr(part, "_can_set_experts_implementation", bool)():
            part_of_transformers.set_experts_implementation("eager")
