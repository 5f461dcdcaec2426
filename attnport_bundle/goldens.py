"""Golden inputs and outputs: whether the model computes here what it computed where it was bundled.

Their file is a safetensors file, read strictly: FORMAT.md, "Goldens". It is the header's length in 8 bytes, the header
in JSON, and the data; the header says where in the data each array lies.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import feeds as feeding
from .errors import BundleError, FeedError, IntegrityError, RuntimeMissing
from .format.files import read_regular
from .format.manifest import Bound, Form, Manifest
from .format.strict_json import decode, parse

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
        self._arrays = read_safetensors(read_regular(self._path, MAX_BYTES), str(self._path))
        dtypes: dict[str, str] = {}
        for bound in manifest.goldens.bounds:
            dtypes |= {f"{bound.case}/in/{spec.name}": spec.dtype for spec in manifest.io.inputs}
            dtypes |= {f"{bound.case}/out/{bound.output}": "float64", f"{bound.case}/valid/{bound.output}": "bool"}
        differing = sorted(set(dtypes) ^ set(self._arrays))
        if differing:
            raise IntegrityError(f"{self._path}: {differing[0]!r} is on one side only of the manifest and the file.")
        for name, expected in dtypes.items():
            got = self._arrays[name].dtype
            if got != expected:
                raise IntegrityError(f"{self._path}: {name!r}: got dtype {got}; expected {expected}.")

    def inputs(self, case: str) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs of a case."""
        return {spec.name: self._arrays[f"{case}/in/{spec.name}"] for spec in self.manifest.io.inputs}

    def check(self, form: str | Form, run: Callable[..., Mapping[str, np.ndarray[Any, Any]]]) -> Iterator[Result]:
        """Runs every case and compares every output; a runtime that fails is a reason not to pass.

        Args:
            form: The form that is open; its name, or, of another bundle, the form itself.
            run: Takes the inputs by name and returns the outputs by name, as `Model.run` does.

        Raises:
            BundleError: no profile of the form admits a case, or all outputs are empty.
            IntegrityError: inputs do not fit the contract.
            RuntimeMissing: the device cannot run it just now; that says nothing about its numbers.
        """
        outputs: Mapping[str, np.ndarray[Any, Any]] = {}
        problem, last = "", None
        for bound in self._bounds(self.manifest.forms[form] if isinstance(form, str) else form):
            if bound.case != last:
                last = bound.case
                try:
                    outputs, problem = run(**self.inputs(last)), ""
                except RuntimeMissing:
                    raise
                except BundleError as err:
                    outputs, problem = {}, str(err)
            expected, valid = (self._arrays[f"{bound.case}/{what}/{bound.output}"] for what in ("out", "valid"))
            yield compare(bound, outputs.get(bound.output), expected, valid, problem)

    def _sizes(self, case: str) -> dict[str, int]:
        """The named dims of a case. Raises IntegrityError where the contract does not allow its inputs."""
        try:
            return feeding.check_feeds(self.manifest.io, self.inputs(case))
        except FeedError as err:
            raise IntegrityError(f"{self._path}: case {case}: {err}") from err

    def _bounds(self, form: Form) -> list[Bound]:
        """The bounds of a form's plan, of the cases that one of its profiles admits."""
        plan = [bound for bound in self.manifest.goldens.bounds if bound.plan == form.plan]
        sizes = {case: self._sizes(case) for case in dict.fromkeys(bound.case for bound in plan)}
        admitted = {
            case for case in sizes if not form.profiles or any(each.admits(sizes[case]) for each in form.profiles)
        }
        found = [bound for bound in plan if bound.case in admitted]
        if not plan:
            raise BundleError(f"no golden case is in {form.plan}, the precision of {form.file}.")
        if not found:
            raise BundleError(f"no golden case in {form.plan} has sizes that {form.file} takes.")
        if not any(self._arrays[f"{bound.case}/out/{bound.output}"].size for bound in found):
            raise BundleError(f"no golden case in {form.plan} has an output with an element to compare.")
        return found


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


MAX_BYTES = 1 << 30
MAX_HEADER_BYTES = 4 << 20
MAX_RANK = 32
"""What NumPy 1.26 can hold."""
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "BOOL": "bool"}
"""The dtypes of golden arrays, by the names that the format has for them."""
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True)
class Entry:
    """What the header says of one array; `data_offsets`: where its data begins and ends, behind the header."""

    dtype: Literal["F64", "F32", "F16", "I64", "I32", "BOOL"]
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        shape, offsets = list(self.shape), list(self.data_offsets)
        item_bytes = 1 if self.dtype == "BOOL" else int(self.dtype[1:]) // 8
        if len(shape) > MAX_RANK or min(shape, default=0) < 0:
            raise ValueError(f"got a shape of {len(shape)} sizes; expected at most {MAX_RANK}, none below 0")
        if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1]:
            raise ValueError(f"got data_offsets {offsets[:3]}; expected where the data begins and where it ends")
        # NumPy cannot hold every empty array either, so the sizes beside a 0 are limited too.
        if math.prod(size or 1 for size in shape) * item_bytes > MAX_BYTES:
            raise ValueError(f"shape {shape} is larger than {MAX_BYTES} bytes")
        if math.prod(shape) * item_bytes != offsets[1] - offsets[0]:
            raise ValueError(f"shape {shape} does not fit its data of {offsets[1] - offsets[0]} bytes")


def read_safetensors(data: bytes, where: str) -> dict[str, np.ndarray[Any, Any]]:
    """Every array by its name.

    Args:
        data: The whole file.
        where: What messages call the file.

    Raises:
        IntegrityError: the file is damaged or contradicts itself, or holds what no golden array is.
    """
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + header_bytes
    if len(data) < max(start, _LENGTH_BYTES) or header_bytes > MAX_HEADER_BYTES:
        raise IntegrityError(f"{where}: it is cut short, or its header is longer than {MAX_HEADER_BYTES} bytes.")
    header, of_header = data[_LENGTH_BYTES:start], f"{where}: header"
    if not header.startswith(b"{"):
        raise IntegrityError(f"{of_header}: it is no JSON object.")
    found = parse(header, of_header)
    decode(Mapping[str, str], found.pop(_METADATA, {}), f"{of_header}.{_METADATA}")  # type: ignore[type-abstract]
    entries = decode(Mapping[str, Entry], found, of_header)  # type: ignore[type-abstract]
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != at:
            raise IntegrityError(f"{where}: {name!r} begins at {begin}; expected {at}: a gap or an overlap.")
        at = end
    if at != len(data) - start:
        raise IntegrityError(f"{where}: got {len(data) - start} bytes of data; its arrays take {at}.")
    return {name: _array(data, start, entry, f"{where}: {name!r}") for name, entry in entries.items()}


def _array(data: bytes, start: int, entry: Entry, where: str) -> np.ndarray[Any, Any]:
    import numpy as np

    begin, end = (start + offset for offset in entry.data_offsets)
    dtype = np.dtype(DTYPES[entry.dtype])
    array = np.frombuffer(memoryview(data)[begin:end], dtype.newbyteorder("<")).reshape(entry.shape)
    if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        raise IntegrityError(f"{where}: a boolean that is neither 0 nor 1.")
    return array.astype(dtype)
