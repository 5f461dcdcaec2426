"""The metrics of parity beside the errors: of each case as words and numbers, and the worst of each over all cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnport.artifacts import Argmax, CaseResult, NonFinite, PaddedRows, Ulps
from attnport.reporting.measures import NONE, count, scientific, significant

ULPS = ("ULP p50", "ULP p90", "ULP p99", "ULP max")
CENSUS, PADDED, ARGMAX = "NaN, Inf", "Padded rows", "Argmax agrees"
LEGEND = (
    "ULP: quantiles of the error in units of the reference’s last place. NaN, Inf: of the valid elements. Padded rows "
    "are not compared. Argmax: rows of logits in which the largest stands where the reference’s does."
)


@dataclass(frozen=True)
class Has:
    """Which metrics any of some cases has: only these become columns."""

    ulps: bool
    census: bool
    padded: bool
    argmax: bool


def has(cases: Iterable[CaseResult]) -> Has:
    """What there is to show; reports of earlier versions lack some."""
    found = list(cases)
    return Has(
        ulps=any(case.ulps for case in found),
        census=any(case.census for case in found),
        padded=any(case.padded for case in found),
        argmax=any(case.argmax for case in found),
    )


def ulps(found: Ulps | None) -> tuple[str, ...]:
    """The quantiles of `ULPS`."""
    if found is None:
        return (NONE,) * len(ULPS)
    return tuple(significant(one) if one < 1e5 else scientific(one) for one in _quantiles(found))


def nonfinite(found: NonFinite) -> str:
    """`0`, or how many there are of each: `3 NaN, 1 −Inf`."""
    kinds = ((found.nan, "NaN"), (found.positive_inf, "Inf"), (found.negative_inf, "−Inf"))
    return ", ".join(f"{count(number)} {kind}" for number, kind in kinds if number) or "0"


def padded(found: PaddedRows | None) -> str:
    """`9 216 elements, RMS 1.20e-7, max 3.40e-6`, and what is no finite number in them."""
    if found is None:
        return NONE
    parts = [f"{count(found.elements)} elements"]
    if found.rms_error is not None:
        parts.append(f"RMS {scientific(found.rms_error)}, max {scientific(found.max_error)}")
    if found.nonfinite.total:
        parts.append(nonfinite(found.nonfinite))
    return ", ".join(parts)


def argmax(found: Argmax | None) -> str:
    """`98 of 100`."""
    return NONE if found is None else f"{count(found.agree)} of {count(found.rows)}"


@dataclass(frozen=True)
class Worst:
    """The worst of each metric over some cases, each by itself; counts are sums. None where no case has it."""

    relative: float | None
    cosine: float | None
    ulps: Ulps | None
    census: NonFinite | None
    padded: PaddedRows | None
    argmax: Argmax | None


def worst_metrics(cases: Sequence[CaseResult]) -> Worst:
    """Over all cases and outputs of a runtime."""
    units = [case.ulps for case in cases if case.ulps]
    beside = [case.padded for case in cases if case.padded]
    rows = [case.argmax for case in cases if case.argmax]
    least = min((case.cosine for case in cases if case.cosine is not None), default=None)
    return Worst(
        relative=_most(case.relative for case in cases),
        cosine=least,
        ulps=Ulps(*(max(values) for values in zip(*map(_quantiles, units), strict=True))) if units else None,
        census=_sum([case.census for case in cases if case.census]),
        padded=_worst_padded(beside) if beside else None,
        argmax=Argmax(sum(one.rows for one in rows), sum(one.agree for one in rows)) if rows else None,
    )


def _worst_padded(found: Sequence[PaddedRows]) -> PaddedRows:
    errors = _most(one.rms_error for one in found), _most(one.max_error for one in found)
    return PaddedRows(
        sum(one.elements for one in found), *errors, _sum([one.nonfinite for one in found]) or NonFinite()
    )


def _quantiles(found: Ulps) -> tuple[float, float, float, float]:
    return found.p50, found.p90, found.p99, found.max


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum(found: Sequence[NonFinite]) -> NonFinite | None:
    if not found:
        return None
    return NonFinite(*(sum(getattr(one, kind) for one in found) for kind in ("nan", "positive_inf", "negative_inf")))
