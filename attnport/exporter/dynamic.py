"""Finds which dims of a module's inputs can be dynamic, by letting torch choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.exporter.tracing import quiet, traceable, untraceable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Symbol:
    """A dim that torch keeps dynamic. Dims with equal symbols are always equal.

    Attributes:
        smallest, largest: The sizes that the module's code allows; None = any.
    """

    name: str
    smallest: int
    largest: int | None


Dims = tuple[Symbol | int, ...]


def dynamic_dims(
    module: torch.nn.Module, feeds: Mapping[str, torch.Tensor], fixed: Collection[tuple[str, int]] = ()
) -> dict[str, Dims]:
    """For each input, its dims: symbols, and the sizes of those that the module's code turns into constants.

    Args:
        module: Takes the feeds by keyword.
        fixed: Inputs and axes that are not to be dynamic.

    Raises:
        ExportError: torch cannot trace the module.
    """
    import torch
    from torch.export import Dim

    grown = _grown(module, feeds)
    shapes = {
        name: {axis: Dim.STATIC if (name, axis) in fixed else Dim.AUTO for axis in range(feed.dim())}
        for name, feed in grown.items()
    }
    try:
        with quiet(), torch.no_grad(), traceable(module):
            program = torch.export.export(module, (), kwargs=dict(grown), dynamic_shapes=shapes, strict=False)
    except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
        hint = "Declare the inputs instead, with the dims that vary: inputs={'x': 'float32[batch,seq,256]'}."
        raise untraceable(err, "torch.export cannot trace the module on the examples", hint) from err
    ranges = {str(symbol): found for symbol, found in program.range_constraints.items()}
    placed = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    dims: dict[str, Dims] = {}
    for name, user in zip(grown, program.graph_signature.user_inputs, strict=True):
        value = placed.get(str(user))
        shape = value.shape if isinstance(value, torch.Tensor) else grown[name].shape
        dims[name] = tuple(
            # A symbol that turned out to have one value prints as that.
            feeds[name].shape[axis] if str(size).isdigit() else _symbol(str(size), ranges)
            for axis, size in enumerate(shape)
        )
    return dims


def _symbol(name: str, ranges: Mapping[str, object]) -> Symbol:
    """The symbol of a size, which is an expression where one dim follows from others."""
    found = ranges.get(name)
    largest = str(getattr(found, "upper", ""))
    smallest = str(getattr(found, "lower", ""))
    # torch takes 2 for the smallest size of every dim.
    low = int(smallest) if smallest.isdigit() and int(smallest) > 2 else 1
    return Symbol(name, low, int(largest) if largest.isdigit() else None)


def _grown(module: torch.nn.Module, feeds: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The feeds with at least 2 in the first dim, where the module takes that: torch makes constants of sizes of 1."""
    import torch

    grown = {
        name: feed.repeat(2, *[1] * (feed.dim() - 1)) if feed.dim() and feed.shape[0] == 1 else feed
        for name, feed in feeds.items()
    }
    if all(grown[name] is feed for name, feed in feeds.items()):
        return grown
    try:
        with torch.no_grad():
            module(**grown)
    except Exception:  # the module's own code; the first dim is no batch of all of them
        return dict(feeds)
    return grown
