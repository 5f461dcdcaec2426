"""Chooses, among the ways in which transformers computes a thing, one that runs in every precision."""

from __future__ import annotations

from typing import Any


def settle(model: Any) -> None:
    """Has the experts of a transformers model computed one after the other, in place.

    By default transformers 5 computes them with torch's `grouped_mm`, which refuses float64 and so the reference. A
    trace cannot follow the loop over the experts that were chosen; the exporter computes them as `grouped_mm` for as
    long as it traces (https://github.com/huggingface/transformers/pull/42697).
    """
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
