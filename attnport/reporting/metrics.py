"""The metrics of parity in addition to the errors: formatted for each case, and the worst over all cases."""

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
    """The metrics that any case has; only these become columns."""

    ulps: bool
    census: bool
    padded: bool
    argmax: bool


def has(cases: Iterable[CaseResult]) -> Has:
    """The metrics that these cases have; reports of earlier versions lack some."""
    listed = list(cases)
    return Has(
        ulps=any(case.ulps for case in listed),
        census=any(case.census for case in listed),
        padded=any(case.padded for case in listed),
        argmax=any(case.argmax for case in listed),
    )


def ulps(quantiles: Ulps | None) -> tuple[str, ...]:
    """The quantiles of `ULPS`."""
    if quantiles is None:
        return (NONE,) * len(ULPS)
    return tuple(significant(value) if value < 1e5 else scientific(value) for value in _quantiles(quantiles))


def nonfinite(census: NonFinite) -> str:
    """`0`, or the number of each: `3 NaN, 1 −Inf`."""
    kinds = ((census.nan, "NaN"), (census.positive_inf, "Inf"), (census.negative_inf, "−Inf"))
    return ", ".join(f"{count(number)} {kind}" for number, kind in kinds if number) or "0"


def padded(rows: PaddedRows | None) -> str:
    """`9 216 elements, RMS 1.20e-7, max 3.40e-6`, and the numbers of NaN and Inf in them."""
    if rows is None:
        return NONE
    parts = [f"{count(rows.elements)} elements"]
    if rows.rms_error is not None:
        parts.append(f"RMS {scientific(rows.rms_error)}, max {scientific(rows.max_error)}")
    if rows.nonfinite.total:
        parts.append(nonfinite(rows.nonfinite))
    return ", ".join(parts)


def argmax(agreement: Argmax | None) -> str:
    """`98 of 100`."""
    return NONE if agreement is None else f"{count(agreement.agree)} of {count(agreement.rows)}"


@dataclass(frozen=True)
class Worst:
    """The worst of each metric over some cases; counts are sums. None if no case has the metric."""

    relative: float | None
    cosine: float | None
    ulps: Ulps | None
    census: NonFinite | None
    padded: PaddedRows | None
    argmax: Argmax | None


def worst_metrics(cases: Sequence[CaseResult]) -> Worst:
    """The worst of each metric over all cases and outputs of a runtime."""
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
        argmax=Argmax(sum(agreement.rows for agreement in rows), sum(agreement.agree for agreement in rows))
        if rows
        else None,
    )


def _worst_padded(cases: Sequence[PaddedRows]) -> PaddedRows:
    errors = _most(case.rms_error for case in cases), _most(case.max_error for case in cases)
    return PaddedRows(
        sum(case.elements for case in cases), *errors, _sum([case.nonfinite for case in cases]) or NonFinite()
    )


def _quantiles(errors: Ulps) -> tuple[float, float, float, float]:
    return errors.p50, errors.p90, errors.p99, errors.max


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum(cases: Sequence[NonFinite]) -> NonFinite | None:
    if not cases:
        return None
    return NonFinite(*(sum(getattr(case, kind) for case in cases) for kind in ("nan", "positive_inf", "negative_inf")))
