"""Compares latency reports of one model before and after a change, to find what became slower.

The rounds of two runs are independent, so each run is resampled on its own. Ratios to the baseline are compared: the
baseline ran in turns with everything else, which takes out most of what the machine changed between the runs. Not all,
since a machine does not become slower for everything alike. If several pairs of runs are given, each pair counts as one
observation, so that the intervals include this.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from attnport.artifacts import Interval, LatencyReport, LatencyRow
from attnport.errors import ArtifactError, CouldNotTell, LatencyRegressed, UsageError
from attnport.jsonfile import read
from attnport.latency.statistics import change_interval, family_confidence, half_width, mean_change
from attnport.printed import Printed
from attnport.reporting import document as doc
from attnport.reporting.document import interval, milliseconds

FILE = "latency.json"
WIDE = 0.05
"""The largest half width of an interval at which a slowdown that matters would be seen."""
UNSEEN = 1.5
"""The slowdown that may not go unseen: where an interval reaches it, and 1 too, nothing was told."""
UNTOLD = "could not tell"

FEWEST_PAIRS = 5
"""Below so many pairs of runs, Student's interval is so wide that little can be told."""

_EQUAL = ("threads", "machine", "starts")
"""The settings that must be equal."""


@dataclass(frozen=True)
class ChangeRow:
    """One runtime on one workload, before and after.

    Attributes:
        verdict: `slower`, `faster` or `no difference shown`; `could not tell` where no difference is shown and a
            slowdown of the limit is not excluded either; `NOT_COMPARED`; `baseline` for the baseline, which is not
            judged beside another runtime, nor where its own change is taken as that of the machine.
        reason: Why it is not compared, or could not be told.
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


@dataclass(frozen=True, repr=False)
class RegressionReport(Printed):
    """How a model's latency changed between two reports, or between the reports of several pairs of runs.

    Attributes:
        verdict: `REGRESSION` if any row is slower; else `could not tell` if that is so of any row; else `no regression
            shown`, or `NOT_COMPARED` if no row was compared.
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


def compare(before: Path, after: Path, *more: tuple[Path, Path], limit: float = UNSEEN) -> RegressionReport:
    """Compares two reports of `bench`; a folder stands for its `latency.json`.

    Args:
        more: The reports before and after of further pairs of runs, measured in turns with the first; each pair then
            counts as one observation.
        limit: The slowdown that may not go unseen, as a factor above 1.

    Raises:
        ArtifactError: a file is missing, or is not a latency report.
        UsageError: the models, machines or numbers of threads of the reports differ; or two reports are equal, or the
            pairs are not of the same two versions.
    """
    paths = [path / FILE if path.is_dir() else path for pair in ((before, after), *more) for path in pair]
    if gone := next((path for path in paths if not path.is_file()), None):
        hint = f"Write one with: attnport bench FOLDER --save {shlex.quote(str(gone))}"
        raise ArtifactError(f"{gone} cannot be read: it is not a file.", hint=hint)
    reports = [read(LatencyReport, path) for path in paths]
    if any(one == other for one, other in itertools.combinations(reports, 2)):
        raise UsageError(
            "a report is given twice, or is a copy of another: each has to be of a run of its own.",
            hint="Measure each anew: bench --force --save FILE.",
        )
    return regression(reports[0], reports[1], *zip(reports[2::2], reports[3::2], strict=True), limit=limit)


def raise_for(report: RegressionReport) -> None:
    """Raises LatencyRegressed if anything became slower, and CouldNotTell where that could not be told."""
    slower = [f"{row.runtime} on {row.workload}" for row in report.rows if row.verdict == "slower"]
    if slower:
        raise LatencyRegressed(f"slower than before: {', '.join(slower)}.")
    untold = [row for row in report.rows if row.verdict == report.verdict and row.reason]
    reasons = "; ".join(dict.fromkeys(row.reason for row in untold)) or "no row has times"
    if report.verdict == "NOT_COMPARED":
        hint = f"Both runs have to time the same workloads in one runtime at least, besides {report.baseline}."
        raise CouldNotTell(f"nothing could be compared, so that no slowdown would show: {reasons}.", hint=hint)
    if report.verdict == UNTOLD:
        places = ", ".join(f"{row.runtime} on {row.workload}" for row in untold)
        hint = "It is not shown to be slower either; the last of the notes says how to measure more surely."
        raise CouldNotTell(f"whether {places} became slower could not be told: {reasons}.", hint=hint)


def regression(
    before: LatencyReport,
    after: LatencyReport,
    *more: tuple[LatencyReport, LatencyReport],
    seed: int = 0,
    limit: float = UNSEEN,
) -> RegressionReport:
    """Compares two reports, row by row.

    Args:
        more: The reports before and after of further pairs of runs, measured in turns with the first.
        limit: The slowdown that may not go unseen, as a factor above 1.

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
    places = dict.fromkeys(place for run in runs for report in run for place in _timed(report))
    problems = {place: next(filter(None, (_problem(*run, *place) for run in runs)), "") for place in places}
    base = before.baseline
    # What an application runs is judged. The baseline alone is there where nobody named another runtime.
    judged = {runtime for _, runtime in places} - {base} or ({base} if not relative else set())
    confidence = family_confidence(sum(not why and place[1] in judged for place, why in problems.items()))
    rows = [
        _change(runs, place, why, base if relative else "", place[1] in judged, confidence, seed + number, limit)
        for number, (place, why) in enumerate(problems.items())
    ]
    notes += _machine(rows) if relative else []
    verdicts = {row.verdict for row in rows}
    verdict = "REGRESSION" if "slower" in verdicts else UNTOLD if UNTOLD in verdicts else "no regression shown"
    if verdicts <= {"NOT_COMPARED", "baseline"}:
        verdict = "NOT_COMPARED"
    told = [row.change for row in rows if row.change and row.verdict not in ("baseline", UNTOLD)]
    widest = max(map(half_width, told), default=0.0)
    if widest > WIDE:
        notes.append(f"some changes are only known within {widest:.0%}, so that a smaller slowdown may not show")
    if widest > WIDE or verdict == UNTOLD:
        pairs = "more" if len(runs) >= FEWEST_PAIRS else str(FEWEST_PAIRS)
        notes.append(
            f"to be surer, measure {pairs} pairs of runs, before and after in turns, or one pair with --starts 5 on a "
            "machine that does nothing else"
        )
    return RegressionReport(verdict, after.model, after.baseline, relative, tuple(rows), tuple(notes), len(runs))


def _check_comparable(before: LatencyReport, after: LatencyReport) -> None:
    for what, old, new in (
        ("model", before.model, after.model),
        ("baseline", before.baseline, after.baseline),
        *((key, before.settings.get(key), after.settings.get(key)) for key in _EQUAL),
    ):
        if old != new or old in (None, ""):
            raise UsageError(
                f"the two reports cannot be compared: {what} {old or 'not recorded'} before, {new or 'not recorded'} "
                "after.",
                hint="Compare bench --save reports of one model, which is called by the last part of its path, on one "
                "machine, with equal --threads and --starts.",
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
    differ = [what for what in ("weights", "code") if getattr(before, what) != getattr(after, what)]
    notes += [f"the {what} of the model is not the same" if what == "code" else "the weights differ" for what in differ]
    # What makes a model slower makes it slower in PyTorch as well, so that the ratio to PyTorch does not show it.
    relative = "version torch" not in changed and not differ
    if not relative:
        notes.append(
            f"{after.baseline} is not the same before and after, so times are compared directly: if the machine itself "
            "became slower or faster, that counts as change"
        )
    return relative, notes


def _timed(report: LatencyReport) -> Iterator[tuple[str, str]]:
    """The workloads and runtimes with figures."""
    for workload, rows in report.shapes.items():
        yield from ((workload, runtime) for runtime, row in rows.items() if row.median_ns is not None)


def _row(report: LatencyReport, workload: str, runtime: str) -> LatencyRow | None:
    return report.shapes.get(workload, {}).get(runtime)


def _problem(before: LatencyReport, after: LatencyReport, workload: str, runtime: str) -> str:
    """Why two runs cannot be compared; "" if they can."""
    for when, report in (("before", before), ("after", after)):
        row = _row(report, workload, runtime)
        if row is None or row.median_ns is None:
            why = row.reason if row else report.absent.get(runtime)
            return f"not measured {when}{f': {why}' if why else ''}"
    first, second = ((report.items.get(workload), report.tokens.get(workload)) for report in (before, after))
    return "" if first == second else "the two workloads of this name have different numbers of items or tokens"


def _change(
    runs: Sequence[tuple[LatencyReport, LatencyReport]],
    place: tuple[str, str],
    problem: str,
    base: str,
    judged: bool,
    confidence: float,
    seed: int,
    limit: float,
) -> ChangeRow:
    """The row of one runtime on one workload, which is its `place`, from all pairs of runs.

    Args:
        problem: Why it is not compared; "" if it is.
        base: The baseline, whose own change is taken as that of the machine; "" if times are compared directly.
        judged: Whether the change counts in the verdict of the report.
    """
    workload, runtime = place
    found = [[_row(report, *place) for report in run] for run in runs]
    before_ns, after_ns = (_median(rows) for rows in zip(*found, strict=True))
    if problem:
        return ChangeRow(*place, "NOT_COMPARED", problem, before_ns, after_ns)
    sides = []
    for run, rows in zip(runs, found, strict=True):
        bases = [_row(report, workload, base) if runtime != base else None for report in run]
        old, new = (
            (row.rounds_ns if row else (), ours.rounds_ns if ours and all(bases) else None)
            for row, ours in zip(rows, bases, strict=True)
        )
        sides.append((new, old))
    try:
        if len(runs) > 1:
            change = mean_change(sides, confidence)
        else:
            old_starts, new_starts = (row.starts if row else () for row in found[0])
            change = change_interval(*sides[0], seed, confidence, (new_starts, old_starts))
    except ValueError as err:  # the baseline has fewer rounds, as its process failed, or the file was edited
        return ChangeRow(*place, "NOT_COMPARED", f"its samples do not pair up: {err}", before_ns, after_ns)
    verdict = "slower" if change[0] > 1 else "faster" if change[2] < 1 else "no difference shown"
    shown: Interval | None = change
    reason = ""
    if verdict == "no difference shown" and change[2] >= limit:
        verdict = UNTOLD
        if 1 < len(runs) < FEWEST_PAIRS:
            shown, reason = None, f"too few pairs of runs for an interval ({len(runs)} of {FEWEST_PAIRS} needed)"
        elif judged:
            reason = f"it may be {limit:g} times as slow"
    return ChangeRow(*place, verdict if judged else "baseline", reason, before_ns, after_ns, shown)


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
    styles = {"REGRESSION": "fail", "slower": "fail", "faster": "pass", "NOT_COMPARED": "miss", UNTOLD: "miss"}
    return doc.Verdict(verdict, styles.get(verdict, ""))
