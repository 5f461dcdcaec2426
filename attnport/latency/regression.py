"""Compares two latency reports of one model, to find what became slower.

The rounds of two runs are independent, so each run is resampled on its own. Ratios to the baseline are compared: the
baseline ran in turns with everything else, which takes out changes of the machine between the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.dims import STRICT
from attnport.errors import UsageError
from attnport.latency.statistics import Interval, change_interval, family_confidence, half_width

WIDE = 0.05
"""The largest half width of an interval at which a slowdown that matters would be seen."""

_EQUAL = {"threads": "", "machine": "", "starts": 1}
"""The settings that must be equal, and what a report without them had."""


@dataclass(frozen=True)
class ChangeRow:
    """One runtime on one workload, before and after.

    Attributes:
        verdict: `slower`, `faster`, `no difference shown` or `NOT_COMPARED`; `baseline` for the baseline, whose own
            change is taken as that of the machine.
        reason: Why it is not compared.
        change: Low, middle and high of after / before; above 1 is slower. The confidence is that of all intervals of a
            report together.
    """

    workload: str
    runtime: str
    verdict: str
    reason: str = ""
    before_ns: float | None = None
    after_ns: float | None = None
    change: Interval | None = None

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class RegressionReport:
    """How a model's latency changed between two reports.

    Attributes:
        verdict: `REGRESSION` if any row is slower, `no regression shown`, or `NOT_COMPARED` if no row was compared.
        relative: Whether changes are those of the ratio to `baseline`, or of the times alone.
        notes: What differs between the two runs, and what that means.
    """

    schema: Literal["attnport/regression/1"] = field(default="attnport/regression/1", kw_only=True)
    verdict: str
    model: str
    baseline: str
    relative: bool
    rows: tuple[ChangeRow, ...]
    notes: tuple[str, ...] = ()

    __pydantic_config__ = STRICT


def regression(before: LatencyReport, after: LatencyReport, seed: int = 0) -> RegressionReport:
    """Compares two reports, row by row.

    Raises:
        UsageError: their models, machines, threads or baselines differ.
    """
    _check_comparable(before, after)
    relative, notes = _grounds(before, after)
    todo = _pairs(before, after, relative)
    confidence = family_confidence(sum(pair.counts for pair in todo))
    rows = [_change(pair, confidence, seed + number) for number, pair in enumerate(todo)]
    notes += _machine(rows)
    verdicts = {row.verdict for row in rows}
    verdict = "REGRESSION" if "slower" in verdicts else "no regression shown"
    if verdicts <= {"NOT_COMPARED", "baseline"}:
        verdict = "NOT_COMPARED"
    widest = max((half_width(row.change) for row in rows if row.change and row.verdict != "baseline"), default=0.0)
    if widest > WIDE:
        notes.append(
            f"some changes are only known within {widest:.0%}, so that a smaller slowdown may not show; give bench "
            "more time (--budget), or use a machine that does nothing else"
        )
    return RegressionReport(verdict, after.model, after.baseline, relative, tuple(rows), tuple(notes))


def _check_comparable(before: LatencyReport, after: LatencyReport) -> None:
    for what, old, new in (
        ("model", before.model, after.model),
        ("baseline", before.baseline, after.baseline),
        *((key, before.settings.get(key, usual), after.settings.get(key, usual)) for key, usual in _EQUAL.items()),
    ):
        if old != new or old in (None, ""):
            raise UsageError(
                f"the two reports cannot be compared: {what} {old or 'not recorded'} before, {new or 'not recorded'} "
                "after.",
                hint="Compare bench --save reports of one model on one machine, with equal --threads and --starts.",
            )


def _grounds(before: LatencyReport, after: LatencyReport) -> tuple[bool, list[str]]:
    """Whether the baseline's change is that of the machine, and notes for the reader."""
    keys = [key for key in after.settings if key.startswith("version ")]
    keys += [key for key in before.settings if key.startswith("version ") and key not in keys]
    changed = [key for key in (*keys, "python") if before.settings.get(key) != after.settings.get(key)]
    notes = [
        f"{key.removeprefix('version ')}: {before.settings.get(key, 'none')} before, {after.settings.get(key, 'none')} "
        "after"
        for key in changed
    ]
    relative = "version torch" not in changed
    if not relative:
        notes.append(
            f"{after.baseline} is not the same before and after, so times are compared directly: if the machine itself "
            "became slower or faster, that counts as change"
        )
    if before.weights != after.weights:
        notes.append("the weights differ")
    return relative, notes


@dataclass(frozen=True)
class _Pair:
    """One runtime on one workload in two runs; `base` are the rows of the baseline for the ratio."""

    workload: str
    runtime: str
    old: LatencyRow | None
    new: LatencyRow | None
    base: tuple[LatencyRow, LatencyRow] | None
    same: bool
    is_base: bool

    @property
    def problem(self) -> str:
        """Why it cannot be compared; "" if it can."""
        if self.old is None or self.old.median_ns is None:
            return f"not measured before{f': {self.old.reason}' if self.old and self.old.reason else ''}"
        if self.new is None or self.new.median_ns is None:
            return f"not measured after{f': {self.new.reason}' if self.new and self.new.reason else ''}"
        return "" if self.same else "the two workloads of this name have different numbers of items or tokens"

    @property
    def counts(self) -> bool:
        """Whether it counts for the confidence of all comparisons together."""
        return not self.problem and not self.is_base


def _pairs(before: LatencyReport, after: LatencyReport, relative: bool) -> list[_Pair]:
    """A pair for everything that at least one of the runs measured."""
    pairs = []
    for workload in dict.fromkeys((*before.shapes, *after.shapes)):
        old, new = before.shapes.get(workload, {}), after.shapes.get(workload, {})
        same = (before.items.get(workload), before.tokens.get(workload)) == (
            after.items.get(workload),
            after.tokens.get(workload),
        )
        name = before.baseline
        base = (old[name], new[name]) if relative and name in old and name in new else None
        for runtime in dict.fromkeys((*old, *new)):
            rows = old.get(runtime), new.get(runtime)
            if any(row is not None and row.median_ns is not None for row in rows):
                is_base = relative and runtime == name
                pairs.append(_Pair(workload, runtime, *rows, None if is_base else base, same, is_base))
    return pairs


def _change(pair: _Pair, confidence: float, seed: int) -> ChangeRow:
    before_ns, after_ns = (None if row is None else row.median_ns for row in (pair.old, pair.new))
    names = pair.workload, pair.runtime
    if pair.problem or pair.old is None or pair.new is None:
        return ChangeRow(*names, "NOT_COMPARED", pair.problem, before_ns, after_ns)
    try:
        old, new = (row.rounds_ns for row in pair.base) if pair.base else (None, None)
        starts = pair.new.starts, pair.old.starts
        change = change_interval((pair.new.rounds_ns, new), (pair.old.rounds_ns, old), seed, confidence, starts)
    except ValueError as err:  # the baseline has fewer rounds, as its process failed, or the file was edited
        return ChangeRow(*names, "NOT_COMPARED", f"its samples do not pair up: {err}", before_ns, after_ns)
    verdict = "slower" if change[0] > 1 else "faster" if change[2] < 1 else "no difference shown"
    return ChangeRow(*names, "baseline" if pair.is_base else verdict, "", before_ns, after_ns, change)


def _machine(rows: Sequence[ChangeRow]) -> list[str]:
    """Notes where the baseline itself changed, which does not count in the other changes or the verdict."""
    return [
        f"{row.runtime} itself took {row.change[1]:.2f} times as long after as before on {row.workload}: that is taken "
        "as a change of the machine, and does not count in any change or in the verdict"
        for row in rows
        if row.verdict == "baseline" and row.change and not row.change[0] <= 1 <= row.change[2]
    ]
