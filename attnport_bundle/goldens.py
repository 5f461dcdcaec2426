"""Golden inputs and outputs: whether the model computes here what it computed where it was bundled."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import feeds as feeding
from .errors import BundleError, FeedError, IntegrityError, RuntimeMissing
from .manifest import Bound, Form, Manifest
from .regular import open_regular
from .safetensors import MAX_BYTES, read_safetensors

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Result:
    """One output of one golden case; errors are against the float64 reference, over valid elements."""

    case: str
    output: str
    passed: bool
    reason: str
    rms_error: float | None
    rms_bound: float
    max_error: float | None
    max_bound: float


class GoldenCases:
    """The arrays of `goldens.safetensors`: `<case>/in/<input>`, `<case>/out/<output>` and `<case>/valid/<output>`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Reads the file. Raises IntegrityError when it is not what the manifest says."""
        self.manifest = manifest
        self._path = folder / manifest.goldens.file
        self._arrays = _read(self._path)
        dtypes = self._dtypes()
        differing = sorted(set(dtypes) ^ set(self._arrays))
        if differing:
            raise IntegrityError(f"{self._path}: {differing[0]!r} is on one side only of the manifest and the file.")
        for name, expected in dtypes.items():
            if self._arrays[name].dtype != expected:
                raise IntegrityError(
                    f"{self._path}: {name!r}: got dtype {self._arrays[name].dtype}; expected {expected}."
                )

    def _dtypes(self) -> dict[str, str]:
        """The dtype of every array: inputs as the contract has them, references in float64."""
        cases = dict.fromkeys(bound.case for bound in self.manifest.goldens.bounds)
        found = {f"{case}/in/{spec.name}": spec.dtype for case in cases for spec in self.manifest.io.inputs}
        for bound in self.manifest.goldens.bounds:
            found[f"{bound.case}/out/{bound.output}"] = "float64"
            found[f"{bound.case}/valid/{bound.output}"] = "bool"
        return found

    def inputs(self, case: str) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs of a case."""
        return {spec.name: self._arrays[f"{case}/in/{spec.name}"] for spec in self.manifest.io.inputs}

    def check(self, form: str, run: Callable[..., Mapping[str, np.ndarray[Any, Any]]]) -> Iterator[Result]:
        """Runs every case and compares every output; a runtime that fails is a reason not to pass.

        Args:
            form: The name of the form that is open.
            run: Takes the inputs by name and returns the outputs by name, as `Model.run` does.

        Raises:
            BundleError: no profile of the form admits a case, or all outputs are empty.
            IntegrityError: inputs do not fit the contract.
            RuntimeMissing: the device cannot run it just now; that says nothing about its numbers.
        """
        outputs: Mapping[str, np.ndarray[Any, Any]] = {}
        problem, last = "", None
        for bound in self._bounds(self.manifest.forms[form]):
            if bound.case != last:
                last = bound.case
                feeds = self._checked_inputs(bound.case)
                try:
                    outputs, problem = run(**feeds), ""
                except RuntimeMissing:
                    raise
                except BundleError as err:
                    outputs, problem = {}, str(err)
            yield self._compare(bound, outputs.get(bound.output), problem)

    def _checked_inputs(self, case: str) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs of a case. Raises IntegrityError where the contract does not allow them."""
        feeds = self.inputs(case)
        try:
            feeding.check_feeds(self.manifest.io, feeds)
        except FeedError as err:
            raise IntegrityError(f"{self._path}: case {case}: {err}") from err
        return feeds

    def _bounds(self, form: Form) -> list[Bound]:
        """The bounds of a form's plan, of the cases that one of its profiles admits."""
        plan = [bound for bound in self.manifest.goldens.bounds if bound.plan == form.plan]
        admitted = {bound.case: self._admitted(bound.case, form) for bound in plan}
        found = [bound for bound in plan if admitted[bound.case]]
        if not found:
            raise BundleError(f"there is no golden case of plan {form.plan} in the profiles of {form.file}.")
        if not any(self._arrays[f"{bound.case}/out/{bound.output}"].size for bound in found):
            raise BundleError(f"no golden case of plan {form.plan} has an output with an element to compare.")
        return found

    def _admitted(self, case: str, form: Form) -> bool:
        sizes = {
            dim: size
            for spec in self.manifest.io.inputs
            for dim, size in zip(spec.dims, self._arrays[f"{case}/in/{spec.name}"].shape, strict=False)
            if isinstance(dim, str)
        }
        return not form.profiles or any(profile.admits(sizes) for profile in form.profiles)

    def _compare(self, bound: Bound, got: np.ndarray[Any, Any] | None, problem: str) -> Result:
        key = f"{bound.case}/{{}}/{bound.output}"
        return compare(bound, got, self._arrays[key.format("out")], self._arrays[key.format("valid")], problem)


def compare(bound: Bound, got: Any, expected: Any, valid: Any, problem: str = "") -> Result:
    """Compares one output with its reference.

    Args:
        got: The output; None when there is none, and `problem` says why.
        expected: The float64 reference.
        valid: Which elements count, over the leading dims of `expected`; the others must be finite.
    """
    import numpy as np

    rms = largest = None
    if got is None:
        problem = problem or "the output is missing"
    elif got.shape != expected.shape or valid.shape != expected.shape[: valid.ndim]:
        problem = f"got shape {list(got.shape)}; expected {list(expected.shape)}"
    elif not np.isfinite(got).all():
        problem = f"{int((~np.isfinite(got)).sum())} elements are NaN or Inf"
    elif expected.size == 0:
        rms = largest = 0.0  # an output that is empty at these sizes has its shape alone
    elif not valid.any():
        problem = "no element to compare"
    else:
        error = (got.astype(np.float64) - expected)[valid]
        with np.errstate(over="ignore"):  # a reference beyond measure: Inf is over every bound
            rms, largest = math.sqrt(float(np.mean(np.square(error)))), float(np.abs(error).max())
        # Written so that NaN, from a reference that is not finite, does not pass.
        if not rms <= bound.rms_bound:
            problem = f"RMS error {rms:.2e} is over its bound {bound.rms_bound:.2e}"
        elif not largest <= bound.max_bound:
            problem = f"max error {largest:.2e} is over its bound {bound.max_bound:.2e}"
    return Result(bound.case, bound.output, not problem, problem, rms, bound.rms_bound, largest, bound.max_bound)


def _read(path: Path) -> Mapping[str, np.ndarray[Any, Any]]:
    try:
        with open_regular(path) as opened:
            if os.fstat(opened.fileno()).st_size > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES} bytes")
            data = opened.read(MAX_BYTES)
    except (OSError, ValueError) as err:
        raise IntegrityError(f"{path}: cannot be read: {err}.") from err
    return read_safetensors(data, str(path))
