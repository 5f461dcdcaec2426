"""A module that `exporter.program` wrote into an artifact folder: a program in Python, and its weights as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.errors import IntegrityError, SpecError
from attnport.jsonfile import digest_file
from attnport.sources.structure import takes

if TYPE_CHECKING:
    import torch
    from torch import nn

CODE, WEIGHTS = "source/program.py", "source/weights.npz"
"""The files, in an artifact folder."""


@dataclass(frozen=True)
class Stored:
    """Where a source in memory was stored, with what the folder's manifest says of it."""

    folder: Path
    name: str
    io: IOContract
    files: Mapping[str, str]


_STORED: dict[Source, Stored] = {}


def note(source: Source, stored: Stored) -> None:
    """Keeps where a source was stored; `program_spec` loads it from there."""
    if source.in_memory and CODE in stored.files:
        _STORED[source] = stored


def place_of(source: Source) -> Path | None:
    """The program of a source in memory; None if there is none."""
    stored = _STORED.get(source)
    return stored.folder / CODE if stored is not None else None


def program_spec(source: Source) -> ModelSpec | None:
    """The model of a source in memory, from its program, which is run; None if it has none.

    Raises:
        IntegrityError: a file is not the one that was written.
        SpecError: the program cannot be run.
    """
    if (stored := _STORED.get(source)) is None:
        return None
    for file in (CODE, WEIGHTS):
        path = stored.folder / file
        if path.is_symlink() or not path.is_file() or digest_file(path) != stored.files.get(file):
            raise IntegrityError(
                f"{path} is missing, or is not the file that was written.", hint="Restore it, or export again."
            )
    return ModelSpec(
        stored.name, source, stored.io, lambda: program_module(stored.folder / CODE, stored.folder / WEIGHTS)
    )


def program_module(path: Path, weights_path: Path) -> nn.Module:
    """The module of a program, which is run, and its weights.

    Raises:
        SpecError: the program cannot be run.
    """
    import numpy as np
    import torch

    space: dict[str, Any] = {"__name__": "attnport_program"}
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), space)
        inputs, order, call = space["INPUTS"], space["WEIGHTS"], space["forward"]
    except Exception as err:  # whatever a file raises that is run
        raise SpecError(f"{path} cannot be run: {type(err).__name__}: {err}", hint="Export the module again.") from err

    def forward(self: nn.Module, *positional: torch.Tensor, **named: torch.Tensor) -> Any:
        feeds = {**dict(zip(inputs, positional, strict=False)), **named}
        weights = [getattr(self, name) for name in order]
        given = (*weights, *feeds.values())
        dtype = next((tensor.dtype for tensor in given if tensor.is_floating_point()), torch.float32)
        kind = SimpleNamespace(dtype=dtype, device=given[0].device)
        return call(kind, *weights, *(feeds[name] for name in inputs))

    takes(forward, inputs)
    module: nn.Module = type("Traced", (torch.nn.Module,), {"forward": forward})()
    with np.load(weights_path, allow_pickle=False) as arrays:
        for name in arrays.files:
            tensor = torch.from_numpy(arrays[name])
            if tensor.is_floating_point():
                module.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
            else:
                module.register_buffer(name, tensor)
    return module.eval()
