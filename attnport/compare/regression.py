"""Two latency reports of one model: what became slower between them, with the same statistics.

A run's rounds say nothing of another run's, so each is resampled on its own. What the machine did to a whole run is
taken out by the baseline that ran in turns with everything else: compared is the ratio to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.compare.statistics import Interval, change_interval, half_width
from attnport.dims import STRICT
from attnport.errors import UsageError

WIDE = 0.05
"""An interval that is wider to either side could hold a slowdown that matters."""

_EQUAL = ("threads", "machine")


@dataclass(frozen=True)
class ChangeRow:
    """One runtime on one workload, before and after.

    Attributes:
        verdict: `slower`, `faster`, `no difference shown` or `NOT_COMPARED`.
        reason: Why it is not compared.
        change: Low, middle and high of after / before; above 1 is slower.
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
    """What became of a model's latency between two reports.

    Attributes:
        verdict: `REGRESSION` if any row is slower, `no regression shown`, or `NOT_COMPARED` if no row could be.
        relative: Whether the changes are those of the ratio to `baseline`, and not of the times alone.
        notes: What differs between the two runs, and what that means.
    """

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
        UsageError: they are of other models, machines or threads, or of other baselines.
    """
    _check_comparable(before, after)
    relative, notes = _grounds(before, after)
    rows = []
    for workload in dict.fromkeys((*before.shapes, *after.shapes)):
        old, new = before.shapes.get(workload, {}), after.shapes.get(workload, {})
        same = (before.items.get(workload), before.tokens.get(workload)) == (
            after.items.get(workload),
            after.tokens.get(workload),
        )
        for number, runtime in enumerate(dict.fromkeys((*old, *new))):
            pair = old.get(runtime), new.get(runtime)
            if all(row is None or row.median_ns is None for row in pair):
                continue  # neither run measured it
            base = None
            if relative and runtime != before.baseline and before.baseline in old and before.baseline in new:
                base = old[before.baseline], new[before.baseline]
            rows.append(_change(workload, runtime, pair, base, same, seed + number))
    verdicts = {row.verdict for row in rows}
    verdict = "REGRESSION" if "slower" in verdicts else "no regression shown"
    if verdicts <= {"NOT_COMPARED"}:
        verdict = "NOT_COMPARED"
    widest = max((half_width(row.change) for row in rows if row.change), default=0.0)
    if widest > WIDE:
        notes.append(
            f"changes are known within {widest:.0%} at worst: a smaller slowdown can stay unseen; give bench more time "
            "(--budget), or a machine that does nothing else"
        )
    return RegressionReport(verdict, after.model, after.baseline, relative, tuple(rows), tuple(notes))


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
                hint="Compare reports of one model, made on one machine with equal threads by attnport bench --save.",
            )


def _grounds(before: LatencyReport, after: LatencyReport) -> tuple[bool, list[str]]:
    """Whether the baseline can stand for the machine, and what the reader must know."""
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
            f"{after.baseline} is not the same before and after, so times are compared as they are: what the machine "
            "did to a whole run counts as change"
        )
    if before.weights != after.weights:
        notes.append("the weights differ")
    return relative, notes


def _change(
    workload: str,
    runtime: str,
    pair: tuple[LatencyRow | None, LatencyRow | None],
    base: tuple[LatencyRow, LatencyRow] | None,
    same: bool,
    seed: int,
) -> ChangeRow:
    old, new = pair
    before_ns, after_ns = (None if row is None else row.median_ns for row in pair)
    reason = ""
    if old is None or old.median_ns is None:
        reason = f"not measured before{f': {old.reason}' if old and old.reason else ''}"
    elif new is None or new.median_ns is None:
        reason = f"not measured after{f': {new.reason}' if new and new.reason else ''}"
    elif not same:
        reason = "the workloads of this name have not as many items and tokens"
    if reason or old is None or new is None:
        return ChangeRow(workload, runtime, "NOT_COMPARED", reason, before_ns, after_ns)
    try:
        change = change_interval(
            (_rounds(new), base and _rounds(base[1])), (_rounds(old), base and _rounds(base[0])), seed
        )
    except ValueError as err:  # a baseline with fewer rounds, after its process failed, or a file that was edited
        return ChangeRow(workload, runtime, "NOT_COMPARED", f"its samples do not pair up: {err}", before_ns, after_ns)
    verdict = "slower" if change[0] > 1 else "faster" if change[2] < 1 else "no difference shown"
    return ChangeRow(workload, runtime, verdict, "", before_ns, after_ns, change)


def _rounds(row: LatencyRow) -> Sequence[Sequence[int]]:
    """The samples of a row by round.

    Raises:
        ValueError: they do not fill their rounds.
    """
    calls = row.calls
    if calls < 1 or len(row.samples_ns) % calls or not row.samples_ns:
        raise ValueError(f"{len(row.samples_ns)} samples are no rounds of {calls}.")
    return [row.samples_ns[start : start + calls] for start in range(0, len(row.samples_ns), calls)]
