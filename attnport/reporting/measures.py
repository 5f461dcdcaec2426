"""Formats numbers: three significant digits, and a dash for missing values."""

from __future__ import annotations

import math
from collections.abc import Iterable

from attnport.artifacts import CaseResult, Interval, InvarianceResult, Verdict

NONE = "–"


def scientific(value: float | None) -> str:
    """`1.23e-7`."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def significant(value: float | None, digits: int = 3) -> str:
    """`0.0123`, `1.23`, `123`, `12 300`: three significant digits, thousands separated by a narrow space."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 99.96 counts as 100
    places = digits - 1 - exponent
    return f"{round(value, places):,.{max(0, places)}f}".replace(",", "\u202f")


def count(value: int | None) -> str:
    """A whole number, thousands separated by a narrow space."""
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def milliseconds(value_ns: float | None) -> str:
    """Nanoseconds as milliseconds."""
    return significant(None if value_ns is None else value_ns / 1e6)


def mebibytes(value_bytes: float | None) -> str:
    """Bytes as mebibytes (2^20)."""
    return significant(None if value_bytes is None else value_bytes / 2**20)


def interval(of: Interval) -> str:
    """`0.62 [0.60, 0.64]`: the middle of a ratio and its ends, with three decimals where two are too few."""
    low, middle, high = of
    digits = 3 if high - low < 0.1 * middle and middle < 10 else 2
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def used(error: float | None, bound: float) -> float | None:
    """An error divided by its bound; above 1 is a failure."""
    if error is None:
        return None
    if bound == 0:
        return 0.0 if error == 0 else math.inf
    return error / bound


def share(result: CaseResult | InvarianceResult) -> float | None:
    """The larger of the RMS and the maximum error, each divided by its bound; None if nothing was comparable."""
    if isinstance(result, CaseResult):
        parts = (used(result.rms_error, result.rms_bound), used(result.max_error, result.max_bound))
    else:
        parts = (used(result.rms_difference, result.rms_bound), used(result.max_difference, result.max_bound))
    known = [part for part in parts if part is not None]
    return max(known) if known else None


def worst(verdicts: list[Verdict]) -> Verdict:
    """FAIL if any fails, else PASS if one passes, else NOT_RUN."""
    return "FAIL" if "FAIL" in verdicts else "PASS" if "PASS" in verdicts else "NOT_RUN"


def part_compared(results: Iterable[InvarianceResult]) -> str:
    """`1 of 2 outputs` where not every output was compared with other padding; else ""."""
    results = list(results)
    every = {result.output for result in results}
    left_out = {result.output for result in results if result.verdict == "NOT_RUN"}
    return f"{len(every - left_out)} of {len(every)} outputs" if left_out else ""


def largest(results: Iterable[CaseResult | InvarianceResult]) -> float | None:
    """The largest error of some results, divided by its bound."""
    return max((part for result in results if (part := share(result)) is not None), default=None)
