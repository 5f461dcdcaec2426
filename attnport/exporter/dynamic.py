"""Finds which dims of a module's inputs can be dynamic, by letting torch choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from attnport.artifacts import IOContract
from attnport.dims import Symbol
from attnport.exporter.capture import trace, untraceable
from attnport.exporter.patching import quiet, traceable

Dims = tuple[Symbol | int, ...]


def dynamic_dims(
    module: torch.nn.Module, feeds: Mapping[str, torch.Tensor], fixed: Collection[tuple[str, int]] = ()
) -> dict[str, Dims]:
    """For each input, its dims: symbols, and the sizes of those that the module's code turns into constants.

    Args:
        module: Takes the feeds by keyword.
        feeds: Examples. torch makes constants of sizes of 0 and 1.
        fixed: Inputs and axes that are not to be dynamic.

    Raises:
        ExportError: torch cannot trace the module.
    """
    from torch.export import Dim

    shapes = {
        name: {axis: Dim.STATIC if (name, axis) in fixed else Dim.AUTO for axis in range(feed.dim())}
        for name, feed in feeds.items()
    }
    try:
        with quiet(), torch.no_grad(), traceable(module):
            program = torch.export.export(module, (), kwargs=dict(feeds), dynamic_shapes=shapes, strict=False)
    except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
        hint = "Declare the inputs instead, with the dims that vary: inputs={'x': 'float32[batch,seq,256]'}."
        raise untraceable(err, "torch.export cannot trace the module on the examples", hint) from err
    ranges = {str(symbol): found for symbol, found in program.range_constraints.items()}
    placed = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    dims: dict[str, Dims] = {}
    for name, user in zip(feeds, program.graph_signature.user_inputs, strict=True):
        value = placed.get(str(user))
        shape = value.shape if isinstance(value, torch.Tensor) else feeds[name].shape
        dims[name] = tuple(
            # A symbol that turned out to have one value prints as that.
            feeds[name].shape[axis] if str(size).isdigit() else _symbol(str(size), ranges)
            for axis, size in enumerate(shape)
        )
    return dims


def refuse_frozen(module: torch.nn.Module, contract: IOContract, feeds: Mapping[str, torch.Tensor]) -> None:
    """Raises ExportError, as `trace` does, where a dim of a contract freezes in every kind of trace.

    The sizes of examples are small: a trace at the sizes of an export is slow where a loop over a size is unrolled.
    """
    with quiet():
        trace(module, contract, dict(feeds))


def _symbol(name: str, ranges: Mapping[str, object]) -> Symbol:
    """The symbol of a size, which is an expression where one dim follows from others."""
    found = ranges.get(name)
    largest = str(getattr(found, "upper", ""))
    smallest = str(getattr(found, "lower", ""))
    # torch takes 2 for the smallest size of every dim.
    low = int(smallest) if smallest.isdigit() and int(smallest) > 2 else 1
    return Symbol(name, low, int(largest) if largest.isdigit() else None)
