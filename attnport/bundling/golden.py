"""The golden cases that export stored, and the bound of each output, by the rule of parity: nothing tuned by hand."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import IOContract
from attnport.bundling.python.manifest import Bound
from attnport.errors import ArtifactError

EPS_FP32 = 2.0**-23
Array = np.ndarray[Any, Any]


def read(path: Path, contract: IOContract) -> dict[str, Array]:
    """Reads `golden.npz`: `<case>/in|out|valid|eager/<tensor>`, complete for every case.

    Raises:
        ArtifactError: it cannot be read, or a case lacks an array.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as err:  # damaged bytes make numpy and zipfile raise a dozen kinds
        raise ArtifactError(f"{path} is not a file of arrays: {err}", hint="Export again.") from err
    wanted = {
        f"{case}/{part}"
        for case in cases(arrays)
        for part in (
            *(f"in/{spec.name}" for spec in contract.inputs),
            *(f"{kind}/{spec.name}" for kind in ("out", "valid", "eager") for spec in contract.outputs),
        )
    }
    if not wanted or wanted - set(arrays):
        missing = sorted(wanted - set(arrays))
        raise ArtifactError(f"{path} lacks {missing[0] if missing else 'golden cases'}.", hint="Export again.")
    return {name: arrays[name] for name in sorted(wanted)}


def cases(arrays: Mapping[str, Array]) -> list[str]:
    """The names of the cases, in order."""
    return sorted({name.split("/")[0] for name in arrays if "/" in name})


def bounds(arrays: Mapping[str, Array], contract: IOContract) -> tuple[Bound, ...]:
    """The bound of every output of every case in float32.

    RMS error: twice that of PyTorch eager; max error: four times eager's largest over all cases of that output; plus
    4 eps RMS(reference). Eager ran in float32 where the artifact was exported.

    Raises:
        ArtifactError: a reference or eager's output is not finite in a valid element, or a case has none.
    """
    measured: dict[tuple[str, str], tuple[float, float, float]] = {}
    for case in cases(arrays):
        for spec in contract.outputs:
            valid = arrays[f"{case}/valid/{spec.name}"]
            reference = arrays[f"{case}/out/{spec.name}"][valid].astype(np.float64)
            error = arrays[f"{case}/eager/{spec.name}"][valid].astype(np.float64) - reference
            if not reference.size or not np.isfinite(error).all():
                raise ArtifactError(
                    f"golden case {case}, output {spec.name}: got {reference.size} valid elements, "
                    f"{int((~np.isfinite(error)).sum())} of them NaN or Inf; expected some, all finite.",
                    hint="Export again; if it stays, the model's own output is not finite.",
                )
            measured[case, spec.name] = (_rms(error), float(np.abs(error).max()), _rms(reference))
    largest = {
        spec.name: max(found[1] for (_, output), found in measured.items() if output == spec.name)
        for spec in contract.outputs
    }
    return tuple(
        Bound(case, output, "fp32", 2 * rms + 4 * EPS_FP32 * scale, 4 * largest[output] + 4 * EPS_FP32 * scale)
        for (case, output), (rms, _, scale) in measured.items()
    )


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes what the reader needs of the goldens; equal arrays give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            if name.split("/")[1] != "eager":
                data = io.BytesIO()
                np.lib.format.write_array(data, np.ascontiguousarray(arrays[name]), allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())


def _rms(values: Array) -> float:
    return math.sqrt(float(np.mean(np.square(values))))
