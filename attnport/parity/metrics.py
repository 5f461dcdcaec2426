"""Every metric of one output against its float64 reference, before any judgement.

All are over the valid elements; what stands in padded query rows is measured apart. Shapes: an output is of any rank,
`valid` a bool array over its leading dims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from attnport.artifacts import Argmax, IOContract, NonFinite, PaddedRows, Ulps
from attnport.cases.inputs import Array, Case
from attnport.dims import TensorSpec

# Stored bits of the significand and the least exponent of a normal number.
_FORMATS = {"float64": (52, -1022), "float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


@dataclass(frozen=True)
class Errors:
    """One output on one case against the reference.

    Attributes:
        relative: The norm of the error over that of the reference; None where the reference is zero.
        cosine: The smallest between valid rows of the last axis.
        embedding: Whether the output has one vector an item, whose direction is what it is used for.
        nonfinite: Elements that are no finite number where all must be.
        problem: Why the result fails whatever its errors are (another shape, NaN, ...), or "". Without `rms` and `max`
            there is nothing to judge.
        raised: What was raised in place of a result, or "".
    """

    elements: int = 0
    rms: float | None = None
    max: float | None = None
    reference_rms: float = 0.0
    relative: float | None = None
    cosine: float | None = None
    embedding: bool = False
    nonfinite: int = 0
    ulps: Ulps | None = None
    census: NonFinite | None = None
    padded: PaddedRows | None = None
    argmax: Argmax | None = None
    problem: str = ""
    raised: str = ""


def measure(got: Array | None, expected: Array, valid: Array, spec: TensorSpec) -> Errors:
    """Compares one output with the reference.

    Args:
        got: The result; None when the runtime did not return it.
        expected: The float64 reference.
        valid: Which elements count, over the leading dims of `expected`.
        spec: The declared output; two dims and a floating dtype make it an embedding, `logits` or `..._logits` as its
            name an output whose argmax is compared.
    """
    problem = _incomparable(got, expected, spec)
    if got is None or problem:
        return Errors(problem=problem)
    if expected.size == 0:
        return Errors(rms=0.0, max=0.0)  # an output that is empty at these sizes has its shape alone
    result, wanted = got.astype(np.float64), expected.astype(np.float64)
    undefined = ~np.isfinite(wanted).reshape(*valid.shape, -1).any(-1)
    if undefined.any() and (valid & ~undefined).any():
        # Rows without any number, as of a mean over no key: nobody can tell what would be right there.
        valid = valid & ~undefined
        result[undefined] = wanted[undefined] = 0.0
    picked, reference = result[valid], wanted[valid]
    if picked.size == 0:
        return Errors(problem="no element to compare")
    scale = rms(np.where(np.isfinite(reference), reference, 0.0))
    found = Errors(picked.size, reference_rms=scale, embedding=len(spec.dims) == 2 and _floating(spec))
    if not np.isfinite(wanted).all():
        return replace(found, problem="the float64 reference itself has NaN or Inf")
    inside, padded = census(picked), _padded(result, wanted, valid)
    found = replace(found, census=inside, padded=padded)
    if inside.total:
        counts = (("NaN", inside.nan), ("Inf", inside.positive_inf), ("-Inf", inside.negative_inf))
        kinds = ", ".join(f"{count} {name}" for name, count in counts if count)
        problem = f"NaN or Inf in {inside.total} of {picked.size} valid elements ({kinds})"
        return replace(found, nonfinite=inside.total, problem=problem)
    beside = padded.nonfinite if padded else NonFinite()
    error = picked - reference
    relative = rms(error) / scale if scale > 0 else math.inf
    return replace(
        found,
        rms=rms(error),
        max=float(np.abs(error).max()),
        relative=relative if math.isfinite(relative) else None,
        cosine=least_cosine(result, wanted, valid) if _floating(spec) else None,
        nonfinite=beside.total,
        ulps=ulps(error, reference, got.dtype.name),
        argmax=argmax_agreement(result, wanted, valid) if has_logits(spec) else None,
        problem=f"NaN or Inf in {beside.total} elements of padded query rows, which may hold anything finite"
        if beside.total
        else "",
    )


def measure_all(
    outputs: Mapping[str, Array], expected: Mapping[str, Array], case: Case, io: IOContract
) -> dict[str, Errors]:
    """Compares every declared output of which an element is valid; one that was not declared is an error of the
    first."""
    found = {
        spec.name: measure(outputs.get(spec.name), expected[spec.name], case.valid[spec.name], spec)
        for spec in io.outputs
        if case.valid[spec.name].any() or not case.valid[spec.name].size
    }
    unknown = sorted(set(outputs) - set(found))
    if unknown:
        first = io.outputs[0].name
        found[first] = Errors(problem=f"got an undeclared output {', '.join(unknown)}; expected {', '.join(found)}")
    return found


def failed(io: IOContract, problem: str) -> dict[str, Errors]:
    """The errors of a case that the runtime could not run."""
    return {spec.name: Errors(problem=problem, raised=problem) for spec in io.outputs}


def rms(values: Array) -> float:
    """Root of the mean square, in units of the largest, so that no square overflows."""
    largest = float(np.abs(values).max(initial=0.0))
    return largest * math.sqrt(float(np.mean(np.square(values / largest)))) if largest > 0 else 0.0


def census(values: Array) -> NonFinite:
    """How many elements are NaN or Inf, and which."""
    if np.isfinite(values).all():
        return NonFinite()
    return NonFinite(int(np.isnan(values).sum()), int(np.isposinf(values).sum()), int(np.isneginf(values).sum()))


def ulps(error: Array, reference: Array, dtype: str) -> Ulps | None:
    """Quantiles of errors in ULP of the reference at `dtype`; None for a dtype that is not floating.

    The reference is not rounded to `dtype` first: a result rounded correctly is at most half a ULP off. Below the least
    normal number the ULP is that of the subnormals.
    """
    if dtype not in _FORMATS:
        return None
    bits, least = _FORMATS[dtype]
    exponent = np.where(reference == 0, least, np.frexp(reference)[1] - 1)
    # One ULP of a subnormal float64 is the least number there is, and dividing by it may overflow.
    with np.errstate(over="ignore", divide="ignore"):
        distance = np.abs(error) / np.ldexp(1.0, np.maximum(exponent, least) - bits)
    found = np.quantile(np.minimum(distance, np.finfo(np.float64).max), (0.5, 0.9, 0.99, 1.0), method="higher")
    return Ulps(*map(float, found))


def least_cosine(got: Array, expected: Array, valid: Array) -> float:
    """The smallest cosine between valid rows of the last axis; two zero rows agree, one alone does not.

    Where the elements of a row are not all valid, or the output has no rows, it is that of all valid elements.
    """
    if valid.ndim < got.ndim:
        one, other = got[valid].reshape(-1, got.shape[-1]), expected[valid].reshape(-1, got.shape[-1])
    else:
        one, other = got[valid][None, :], expected[valid][None, :]
    largest = [np.abs(rows).max(axis=1, keepdims=True) for rows in (one, other)]
    # In units of its largest element a row's squares neither overflow nor vanish.
    one, other = (rows / np.where(top > 0, top, 1.0) for rows, top in zip((one, other), largest, strict=True))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    both_zero = (largest[0] == 0)[:, 0] & (largest[1] == 0)[:, 0]
    cosine = np.where(both_zero, 1.0, np.einsum("re,re->r", one, other) / np.where(norms > 0, norms, 1.0))
    return float(cosine.min())


def has_logits(spec: TensorSpec) -> bool:
    """Whether an output holds logits, by its name: `logits`, `start_logits`."""
    return _floating(spec) and (spec.name == "logits" or spec.name.endswith("_logits"))


def argmax_agreement(got: Array, expected: Array, valid: Array) -> Argmax | None:
    """In how many valid rows of the last axis the largest element stands where the reference's does.

    Elements that are not valid themselves (positions, in logits over positions) cannot be the largest. None where a row
    is a single element.
    """
    if got.shape[-1] < 2:
        return None
    if valid.ndim == got.ndim:
        rows = valid.any(axis=-1)
        got, expected = (np.where(valid, array, -np.inf) for array in (got, expected))
    else:
        rows = valid
    one, other = got[rows].reshape(-1, got.shape[-1]), expected[rows].reshape(-1, got.shape[-1])
    there = np.take_along_axis(other, one.argmax(axis=1)[:, None], axis=1)[:, 0]
    return Argmax(len(one), int((there == other.max(axis=1)).sum()))


def _incomparable(got: Array | None, expected: Array, spec: TensorSpec) -> str:
    """Why a result cannot be compared at all, or ""."""
    if got is None:
        return "the output is missing"
    if got.shape != expected.shape:
        return f"got shape {list(got.shape)}; expected {list(expected.shape)}"
    kinds = _kind(got), _kind(np.empty(0, dtype=np.float64) if _floating(spec) else expected)
    return "" if kinds[0] == kinds[1] else f"got dtype {got.dtype}, {kinds[0]}; expected {kinds[1]}"


def _padded(result: Array, wanted: Array, valid: Array) -> PaddedRows | None:
    """The elements that are not compared; their errors are for the record."""
    if valid.all():
        return None
    got, reference = result[~valid], wanted[~valid]
    found = census(got)
    if found.total or not np.isfinite(reference).all():
        return PaddedRows(got.size, None, None, found)
    return PaddedRows(got.size, rms(got - reference), float(np.abs(got - reference).max()), found)


def _kind(array: Array) -> str:
    if array.dtype.name == "bfloat16" or np.issubdtype(array.dtype, np.floating):
        return "floating"
    if array.dtype == np.bool_:
        return "boolean"
    return "integer" if np.issubdtype(array.dtype, np.integer) else "neither floating, integer nor boolean"


def _floating(spec: TensorSpec) -> bool:
    return "float" in spec.dtype
