"""Every metric of one output against its float64 reference, before any judgement.

All are over the valid elements; what stands in padded query rows is measured apart. Shapes: an output is of any rank,
`valid` a bool array over its leading dims.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from attnport.artifacts import Argmax, IOContract, NonFinite, PaddedRows, Ulps
from attnport.cases.inputs import Array, Case
from attnport.dims import TensorSpec

OF_REFERENCE = "the float64 reference itself has NaN or Inf"
"""The problem of a result for which nobody can tell what is right, though some row has numbers."""
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
        unequal: How many elements of an output of integers or booleans differ; None for floating point.
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
    unequal: int | None = None


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
    fills = fills_of(expected, valid)
    finite = np.isfinite(expected)
    if fills is not None and not finite.all():
        result, wanted = got.astype(np.float64), expected.astype(np.float64)
        fills.replace(result, wanted)
        finite = np.isfinite(wanted)
    finite = finite.reshape(*valid.shape, -1)
    # Rows without any number, as of a mean over no key: nobody can tell what would be right there.
    undefined: Array = np.asarray(~finite.any(-1))
    if not (valid & ~undefined).any():
        undefined = np.zeros_like(valid)
    compared = valid & ~undefined
    if not compared.any():
        return Errors(problem="no element to compare")
    parts = [_part(got.dtype.name, spec, fills, *arrays) for arrays in _blocks(got, expected, compared, undefined)]
    elements = sum(part.elements for part in parts)
    scale = _rms_of([(part.elements, part.reference) for part in parts])
    # No rounding makes another whole number of one.
    own_scale = scale if _floating(spec) else 0.0
    found = Errors(elements, reference_rms=own_scale, embedding=len(spec.dims) == 2 and _floating(spec))
    if not (finite.all(-1) | undefined).all():
        return replace(found, problem=OF_REFERENCE)
    inside, padded = _sum_of([part.census for part in parts]), _padded([part.padded for part in parts if part.padded])
    found = replace(found, census=inside, padded=padded)
    if inside.total:
        counts = (("NaN", inside.nan), ("Inf", inside.positive_inf), ("-Inf", inside.negative_inf))
        kinds = ", ".join(f"{count} {name}" for name, count in counts if count)
        problem = f"NaN or Inf in {inside.total} of {elements} valid elements ({kinds})"
        return replace(found, nonfinite=inside.total, problem=problem)
    beside = padded.nonfinite if padded else NonFinite()
    error = _rms_of([(part.elements, part.error) for part in parts])
    relative = error / scale if scale > 0 else math.inf
    agreements = [part.argmax for part in parts if part.argmax]
    return replace(
        found,
        rms=error,
        max=max(part.largest for part in parts),
        relative=relative if math.isfinite(relative) else None,
        cosine=min(part.cosine for part in parts) if _floating(spec) else None,
        nonfinite=beside.total,
        ulps=_quantiles([part.distances for part in parts if part.distances is not None]),
        argmax=Argmax(sum(one.rows for one in agreements), sum(one.agree for one in agreements))
        if agreements
        else None,
        unequal=None if _floating(spec) else sum(part.unequal for part in parts),
        problem=f"NaN or Inf in {beside.total} elements of padded query rows, which may hold anything finite"
        if beside.total
        else "",
    )


_BLOCK = 1 << 20
"""Elements that are measured at a time: the logits of a few texts take gigabytes in float64, and so does every array
that is computed of all of them."""


@dataclass(frozen=True)
class _Part:
    """What some rows add to `Errors`; as there. `reference` and `error` are root mean squares."""

    elements: int = 0
    reference: float = 0.0
    error: float = 0.0
    largest: float = 0.0
    cosine: float = math.inf
    census: NonFinite = field(default_factory=NonFinite)
    padded: PaddedRows | None = None
    distances: Array | None = None
    argmax: Argmax | None = None
    unequal: int = 0


def _blocks(got: Array, expected: Array, *rows: Array) -> Iterator[tuple[Array, ...]]:
    """Some rows at a time of a result and its reference, in float64, and of arrays over their leading dims.

    Where such an array is over all dims, a row is not whole, and there is one block.
    """
    if rows[0].ndim == expected.ndim:
        yield got.astype(np.float64), expected.astype(np.float64), *rows
        return
    count, shape = rows[0].size, expected.shape[rows[0].ndim :]
    step = max(1, _BLOCK // max(math.prod(shape), 1))
    for at in range(0, count, step):
        result, wanted = (array.reshape(count, *shape)[at : at + step].astype(np.float64) for array in (got, expected))
        yield result, wanted, *(array.reshape(count)[at : at + step] for array in rows)


def _part(
    dtype: str, spec: TensorSpec, fills: Fills | None, result: Array, wanted: Array, valid: Array, undefined: Array
) -> _Part:
    if fills is not None:
        fills.replace(result, wanted)
    result[undefined] = wanted[undefined] = 0.0
    padded = None if valid.all() else _beside(result[~valid], wanted[~valid])
    picked, reference = result[valid], wanted[valid]
    if not picked.size:
        return _Part(padded=padded)
    known = np.isfinite(reference).all()
    part = _Part(
        picked.size,
        rms(np.where(np.isfinite(reference), reference, 0.0)),
        census=census(picked),
        padded=padded,
    )
    if part.census.total or not known:
        return part
    error = picked - reference
    return replace(
        part,
        error=rms(error),
        largest=float(np.abs(error).max()),
        unequal=int(np.count_nonzero(error)),
        cosine=least_cosine(result, wanted, valid) if _floating(spec) else math.inf,
        distances=_distances(error, reference, dtype),
        argmax=argmax_agreement(result, wanted, valid) if has_logits(spec) else None,
    )


_FILL, _APART, _NEAR = 1e4, 1e4, 2.0**-8
"""The least size of a fill value, how many times the RMS of all other elements it has to be, and the relative
difference up to which two numbers are one fill value: the rounding of bfloat16."""
_ENDS, _LARGEST_FP16 = 3e38, 65504.0
"""From this size on a number is the largest of float32, bfloat16 or float64; and that of float16."""


class Fills(NamedTuple):
    """The fill values of a reference, such as -1e9 or -inf: its elements of size `level` or more.

    A module puts them where a result is not to be used, as for words that are not allowed. Counted in the scale of the
    reference, they would hide any error of the other elements. `low` and `high` are the range of those others.
    """

    level: float
    low: float
    high: float

    def replace(self, result: Array, wanted: Array) -> None:
        """Puts ordinary numbers, which change no argmax, where both have the same fill, in place, in float64.

        A result has the same one but for the rounding of bfloat16. Where fp16 has no such number, the result may also
        be infinite or the largest of a float type.
        """
        places = np.abs(wanted) >= self.level
        if not places.any():
            return
        got, own = result[places], wanted[places]
        size = np.abs(got)
        with np.errstate(invalid="ignore"):
            ends = np.isinf(size) | (size >= _ENDS) | (np.abs(size - _LARGEST_FP16) <= _NEAR * _LARGEST_FP16)
            near = np.abs(got - own) <= _NEAR * np.abs(own)
        agree = (np.sign(got) == np.sign(own)) & (near | (ends & (np.abs(own) > _LARGEST_FP16)))
        number = np.where(own < 0, self.low, self.high)
        result[places], wanted[places] = np.where(agree, number, got), np.where(agree, number, own)


def fills_of(expected: Array, valid: Array | None = None) -> Fills | None:
    """The fill values of a reference; None where there are none.

    An infinity is one. So are numbers of at least `_APART` times the RMS of all smaller ones, if each is the largest of
    its float type, or if there are several, all are below zero, and all are multiples of one. The search is repeated
    below each level found.

    Args:
        valid: Which elements count, over the leading dims; None = all.
    """
    if not expected.size or _kind(expected) != "floating":
        return None
    ends = float(expected.min()), float(expected.max())
    if max(-ends[0], ends[1]) < _FILL and not math.isnan(ends[0]):  # without a copy
        return None
    level = math.inf
    while True:
        parts = functools.partial(_below, expected, valid, level)
        top = max((float(np.abs(part).max(initial=0.0)) for part in parts()), default=0.0)
        if top < _FILL:
            break
        least = min(float(np.abs(part[np.abs(part) >= top / 10]).min(initial=top)) for part in parts())
        count, are_one, rest = 0, True, list[tuple[int, float]]()
        for part in parts():
            is_far = np.abs(part) >= top / 10
            times = part[is_far] / -least
            count, are_one = count + times.size, are_one and bool((np.abs(times - np.round(times)) <= _NEAR).all())
            are_one = are_one and not (times < 0).any()
            rest.append((part.size - times.size, rms(part[~is_far])))
        alike = least >= _ENDS or (count > 1 and are_one)
        if not alike or not any(size for size, _ in rest) or _APART * _rms_of(rest) > top:
            break
        level = top / 10
    if level == math.inf and not np.isinf(expected).any():
        return None
    ranges = [(float(part.min()), float(part.max())) for part in _below(expected, valid, level) if part.size]
    return Fills(level, min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0))


def _blocks_of(expected: Array, valid: Array | None) -> Iterator[Array]:
    """The elements that count, some at a time."""
    leading = valid.ndim if valid is not None else expected.ndim
    rows = expected.reshape(math.prod(expected.shape[:leading]), -1)
    step = max(1, _BLOCK // max(rows.shape[1], 1))
    for at in range(0, len(rows), step):
        yield rows[at : at + step] if valid is None else rows[at : at + step][valid.reshape(-1)[at : at + step]]


def _below(expected: Array, valid: Array | None, limit: float) -> Iterator[Array]:
    """The elements that count and are less than a limit in size, some at a time."""
    for part in _blocks_of(expected, valid):
        yield part[np.abs(part) < limit].astype(np.float64)


def without_fills(got: Array, expected: Array, valid: Array | None = None) -> tuple[Array, Array]:
    """A result and its reference with ordinary numbers where both have the same `Fills`."""
    fills = fills_of(expected, valid) if _kind(got) == "floating" else None
    if fills is None:
        return got, expected
    result, wanted = got.astype(np.float64), expected.astype(np.float64)
    fills.replace(result, wanted)
    return result.astype(got.dtype), wanted


def _rms_of(parts: Sequence[tuple[int, float]]) -> float:
    """The root mean square of all elements, by the number and the root mean square of those of each part."""
    largest = max(found for _, found in parts)
    squares = sum(count * (found / largest) ** 2 for count, found in parts) if largest > 0 else 0.0
    return largest * math.sqrt(squares / sum(count for count, _ in parts))


def _sum_of(counts: Sequence[NonFinite]) -> NonFinite:
    return NonFinite(
        sum(one.nan for one in counts),
        sum(one.positive_inf for one in counts),
        sum(one.negative_inf for one in counts),
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


def _distances(error: Array, reference: Array, dtype: str) -> Array | None:
    """Each error in ULP of the reference at `dtype`; None for a dtype that is not floating.

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
    capped: Array = np.minimum(distance, np.finfo(np.float64).max)
    return capped


def _quantiles(distances: Sequence[Array]) -> Ulps | None:
    if not distances:
        return None
    found = np.quantile(np.concatenate(distances), (0.5, 0.9, 0.99, 1.0), method="higher", overwrite_input=True)
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


def _beside(got: Array, reference: Array) -> PaddedRows:
    """The elements that are not compared; their errors are for the record."""
    found = census(got)
    if found.total or not np.isfinite(reference).all():
        return PaddedRows(got.size, None, None, found)
    return PaddedRows(got.size, rms(got - reference), float(np.abs(got - reference).max(initial=0.0)), found)


def _padded(parts: Sequence[PaddedRows]) -> PaddedRows | None:
    """Those of all parts."""
    if not parts:
        return None
    elements, found = sum(part.elements for part in parts), _sum_of([part.nonfinite for part in parts])
    known = [(part.elements, part.rms_error, part.max_error) for part in parts]
    errors = [(count, of_rms, of_max) for count, of_rms, of_max in known if of_rms is not None and of_max is not None]
    if len(errors) < len(parts):
        return PaddedRows(elements, None, None, found)
    of_rms = _rms_of([(count, of_rms) for count, of_rms, _ in errors])
    return PaddedRows(elements, of_rms, max(of_max for _, _, of_max in errors), found)


def _kind(array: Array) -> str:
    if array.dtype.name == "bfloat16" or np.issubdtype(array.dtype, np.floating):
        return "floating"
    if array.dtype == np.bool_:
        return "boolean"
    return "integer" if np.issubdtype(array.dtype, np.integer) else "neither floating, integer nor boolean"


def _floating(spec: TensorSpec) -> bool:
    return "float" in spec.dtype
