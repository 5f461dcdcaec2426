"""What of a contract the sweep compares, and the values that it gives to a contract's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def compared(outputs: Sequence[Any]) -> list[str]:
    """The outputs that the judge compares, those of floating point; codes and masks are of integers."""
    return [one.name for one in outputs if "float" in one.dtype]


def of_contract(contract: Any, made: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Values for a contract's inputs: those of the tiny model, and for others what their names and dims say."""
    import tiny_hf
    import torch

    known = tiny_hf.feeds(made.inputs, sizes)
    by_name = {spec.name: spec for spec in contract.inputs}
    bound = {dim.name: dim.opt for dim in contract.dims}
    for name, value in known.items():
        spec = by_name.get(name)
        if spec is not None and len(spec.dims) == value.ndim:
            bound.update({dim: size for dim, size in zip(spec.dims, value.shape, strict=True) if isinstance(dim, str)})
    bound.update({dim.name: min(max(bound[dim.name], dim.min), dim.max) for dim in contract.dims})
    found: dict[str, Any] = {}
    for spec in contract.inputs:
        shape = spec.shape(bound)
        if spec.name in known and tuple(known[spec.name].shape) == shape:
            found[spec.name] = known[spec.name].to(getattr(torch, spec.dtype))
            continue
        kind = "mask" if "mask" in spec.name and "pixel" not in spec.name else "float"
        if "int" in spec.dtype and kind != "mask":
            kind = "ids" if spec.name.endswith("input_ids") else "zeros"
        value = tiny_hf.Input(spec.name, tuple(shape), kind).tensor(bound, torch.Generator().manual_seed(7))
        found[spec.name] = torch.ones(shape, dtype=torch.bool) if spec.dtype == "bool" else value
    return found
