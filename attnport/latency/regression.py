"""Compares latency reports of one model before and after a change, to find what became slower.

The rounds of two runs are independent, so each run is resampled on its own. Ratios to the baseline are compared: the
baseline ran in turns with everything else, which takes out most of what the machine changed between the runs. Not all,
since a machine does not become slower for everything alike. If several pairs of runs are given, each pair counts as one
observation, so that the intervals include this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from attnport.artifacts import Interval, LatencyReport, LatencyRow
from attnport.errors import UsageError
from attnport.latency.statistics import Run, change_interval, family_confidence, half_width, mean_change
from attnport.printed import Printed
from attnport.reporting import document as doc
from attnport.reporting.measures import interval, milliseconds

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
        before_ns, after_ns: The median call; of several pairs of runs, the median of theirs.
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


@dataclass(frozen=True)
class RegressionReport(Printed):
    """How a model's latency changed between two reports, or between the reports of several pairs of runs.

    Attributes:
        verdict: `REGRESSION` if any row is slower, `no regression shown`, or `NOT_COMPARED` if no row was compared.
        relative: Whether changes are those of the ratio to `baseline`, or of the times alone.
        pairs: How many pairs of runs were compared; if several, each is one observation of every change.
        notes: What differs between the two runs, and what that means.
    """

    schema: Literal["attnport/regression/1"] = field(default="attnport/regression/1", kw_only=True)
    verdict: str
    model: str
    baseline: str
    relative: bool
    rows: tuple[ChangeRow, ...]
    notes: tuple[str, ...] = ()
    pairs: int = 1


def regression(
    before: LatencyReport, after: LatencyReport, *more: tuple[LatencyReport, LatencyReport], seed: int = 0
) -> RegressionReport:
    """Compares two reports, row by row.

    Args:
        more: The reports before and after of further pairs of runs, measured in turns with the first.

    Raises:
        UsageError: their models, machines, threads or baselines differ, or what differs between before and after is
            not the same in every pair.
    """
    runs = [(before, after), *more]
    for old, new in runs:
        _check_comparable(before, old)
        _check_comparable(old, new)
    grounds = [_grounds(*run) for run in runs]
    if other := next((each for each in grounds if each != grounds[0]), None):
        differ = " and ".join(f"({'; '.join(notes) or 'no other version'})" for _, notes in (grounds[0], other))
        raise UsageError(f"the pairs of reports are not of the same change: {differ}.")
    relative, notes = grounds[0]
    todo = _grouped([_pairs(old, new, relative) for old, new in runs])
    confidence = family_confidence(sum(all(pair.counts for pair in group) for group in todo))
    rows = [_change(group, confidence, seed + number) for number, group in enumerate(todo)]
    notes += _machine(rows)
    verdicts = {row.verdict for row in rows}
    verdict = "REGRESSION" if "slower" in verdicts else "no regression shown"
    if verdicts <= {"NOT_COMPARED", "baseline"}:
        verdict = "NOT_COMPARED"
    widest = max((half_width(row.change) for row in rows if row.change and row.verdict != "baseline"), default=0.0)
    if widest > WIDE:
        notes.append(
            f"some changes are only known within {widest:.0%}, so that a smaller slowdown may not show; "
            + ("measure more pairs of runs" if more else "give bench more time (--budget)")
            + ", or use a machine that does nothing else"
        )
    return RegressionReport(verdict, after.model, after.baseline, relative, tuple(rows), tuple(notes), len(runs))


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
    def runs(self) -> tuple[Run, Run]:
        """After and before."""
        bases = (None, None) if self.base is None else (self.base[1].rounds_ns, self.base[0].rounds_ns)
        after, before = (row.rounds_ns if row else () for row in (self.new, self.old))
        return (after, bases[0]), (before, bases[1])

    @property
    def starts(self) -> tuple[Sequence[int], Sequence[int]]:
        """Of both runs, after and before."""
        return self.new.starts if self.new else (), self.old.starts if self.old else ()

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


def _grouped(runs: Sequence[Sequence[_Pair]]) -> list[tuple[_Pair, ...]]:
    """The pairs of every run, by runtime and workload; one that a run did not measure is a pair without rows."""
    by_name = [{(pair.workload, pair.runtime): pair for pair in run} for run in runs]
    groups = []
    for name in dict.fromkeys(name for run in by_name for name in run):
        is_base = any(name in run and run[name].is_base for run in by_name)
        groups.append(tuple(run.get(name, _Pair(*name, None, None, None, True, is_base)) for run in by_name))
    return groups


def _change(group: Sequence[_Pair], confidence: float, seed: int) -> ChangeRow:
    """The row of one runtime on one workload, from its pair in every run."""
    first = group[0]
    names = first.workload, first.runtime
    before_ns, after_ns = _median([pair.old for pair in group]), _median([pair.new for pair in group])
    if problem := next((pair.problem for pair in group if pair.problem), ""):
        return ChangeRow(*names, "NOT_COMPARED", problem, before_ns, after_ns)
    try:
        if len(group) > 1:
            change = mean_change([pair.runs for pair in group], confidence)
        else:
            change = change_interval(*first.runs, seed, confidence, first.starts)
    except ValueError as err:  # the baseline has fewer rounds, as its process failed, or the file was edited
        return ChangeRow(*names, "NOT_COMPARED", f"its samples do not pair up: {err}", before_ns, after_ns)
    verdict = "slower" if change[0] > 1 else "faster" if change[2] < 1 else "no difference shown"
    return ChangeRow(*names, "baseline" if first.is_base else verdict, "", before_ns, after_ns, change)


def _median(rows: Sequence[LatencyRow | None]) -> float | None:
    times = [row.median_ns for row in rows if row is not None and row.median_ns is not None]
    return median(times) if times else None


def _machine(rows: Sequence[ChangeRow]) -> list[str]:
    """Notes where the baseline itself changed, which does not count in the other changes or the verdict."""
    return [
        f"{row.runtime} itself took {row.change[1]:.2f} times as long after as before on {row.workload}: that is taken "
        "as a change of the machine, and does not count in any change or in the verdict"
        for row in rows
        if row.verdict == "baseline" and row.change and not row.change[0] <= 1 <= row.change[2]
    ]


@doc.blocks.register(RegressionReport)
def _blocks(report: RegressionReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """A row for each runtime and workload, then the verdict."""
    numbers = ("before ms", "after ms")
    columns = doc.columns("runtime", *numbers, "after / before", "verdict", right=numbers, whole=("runtime",))
    for workload in dict.fromkeys(row.workload for row in report.rows):
        changes = [row for row in report.rows if row.workload == workload]
        rows = (
            (
                row.runtime,
                milliseconds(row.before_ns),
                milliseconds(row.after_ns),
                interval(row.change) if row.change else "",
                _coloured(row.verdict),
            )
            for row in changes
        )
        yield doc.Table(f"change: {report.model}, {workload}", columns, doc.rows(rows))
        yield doc.notes({row.runtime: row.reason for row in changes if row.reason})
    yield from doc.warnings(report.notes)
    if report.relative:
        about = f"after / before: of the ratio to {report.baseline} in the same run; of {report.baseline}: of its times"
        yield from doc.quiet(about)
    if report.pairs > 1:
        yield from doc.quiet(f"each of the {report.pairs} pairs of runs is one observation; ms: the median of the runs")
    yield doc.Text(("verdict: ", _coloured(report.verdict)))


def _coloured(verdict: str) -> doc.Verdict:
    style = {"REGRESSION": "fail", "slower": "fail", "faster": "pass", "NOT_COMPARED": "miss"}.get(verdict, "")
    return doc.Verdict(verdict, style)
