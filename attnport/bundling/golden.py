"""Reads the golden cases that `export` stored, and writes those of a bundle."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.errors import ArtifactError
from attnport_bundle.format.manifest import Bound
from attnport_bundle.goldens import DTYPES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GoldenSet:
    """The goldens of a bundle: inputs, references and validity by name, and bounds for each case, output and plan."""

    arrays: Mapping[str, Array]
    bounds: tuple[Bound, ...]


def eager(plan: str) -> str:
    """The name in `golden.npz` of PyTorch's outputs at a precision plan, or of those of a form in integers."""
    return "eager" if plan == "fp32" else f"eager.{plan}"


def redrawn(plan: str) -> str:
    """The name of the worst RMS and largest error of further runs of PyTorch at a plan, where `check` made any."""
    return f"{eager(plan)}.redrawn"


def read(path: Path, contract: IOContract, plans: Collection[str] = ("fp32",)) -> dict[str, Array]:
    """Reads `golden.npz`: `<case>/in|out|valid|eager/<tensor>`, complete for every case and plan.

    What `check` added under `redrawn` is read too; a case need not have it.

    Raises:
        ArtifactError: it cannot be read, or a case lacks an array.
    """
    arrays = load(path)
    kinds = ("out", "valid", *(eager(plan) for plan in plans))
    wanted = {
        f"{case}/{part}"
        for case in cases(arrays)
        for part in (
            *(f"in/{spec.name}" for spec in contract.inputs),
            *(f"{kind}/{spec.name}" for kind in kinds for spec in contract.outputs),
        )
    }
    if not wanted or wanted - set(arrays):
        missing = sorted(wanted - set(arrays))
        of_plan = missing and "/eager." in missing[0]
        raise ArtifactError(
            f"{path} lacks {missing[0] if missing else 'golden cases'}.",
            hint="Run attnport check: it runs PyTorch at the precisions of all forms." if of_plan else "Export again.",
        )
    further = {name for name in arrays if name.split("/")[1] in map(redrawn, plans)}
    return {name: arrays[name] for name in sorted(wanted | further)}


def load(path: Path) -> dict[str, Array]:
    """Reads all arrays of `golden.npz`, by name.

    Raises:
        ArtifactError: it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as err:  # numpy and zipfile raise a dozen types for a damaged file
        raise ArtifactError(f"{path} is not a file of arrays: {err}", hint="Export again.") from err


def cases(arrays: Mapping[str, Array]) -> list[str]:
    """The names of the cases, in order."""
    return sorted({name.split("/")[0] for name in arrays if "/" in name})


def sizes(arrays: Mapping[str, Array], contract: IOContract, case: str) -> dict[str, int]:
    """The size of each named dim of the inputs in a case."""
    return {
        dim: size
        for spec in contract.inputs
        for dim, size in zip(spec.dims, arrays[f"{case}/in/{spec.name}"].shape, strict=True)
        if isinstance(dim, str)
    }


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes what the reader needs of the goldens, references in float64, as a safetensors file.

    Equal arrays give equal bytes. Arrays of wide elements come first, so that each is aligned.
    """
    kept = {}
    for name, array in arrays.items():
        kind = name.split("/")[1]
        if kind in ("in", "out", "valid"):
            kept[name] = np.asarray(array, np.float64 if kind == "out" else None)
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header, at = {}, 0
    for name in sorted(kept, key=lambda name: (-kept[name].itemsize, name)):
        array = kept[name]
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": codes[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            file.write(kept[name].astype(kept[name].dtype.newbyteorder("<")).tobytes())
