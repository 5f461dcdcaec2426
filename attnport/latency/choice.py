"""Chooses how to run a model by what was measured: for `tune` among its candidates, for a folder what to deploy.

Both take the fastest candidate within the bound, or one of a plainer precision if the fastest is not shown to be
faster.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnport.artifacts import INTEGERS, PLANS, Candidate, Interval, LatencyReport, LatencyRow, ParityReport
from attnport.folder.workspace import name_of
from attnport.latency.statistics import ratio_interval
from attnport.reporting.choice import Choice, Deployable
from attnport.runtimes import base

CHOSEN, SLOWER, NO_FASTER, REFUSED, NOT_RUN, EARLIER = "chosen", "slower", "no faster", "refused", "NOT_RUN", "earlier"
NO_PARITY = "parity was not checked"
NO_LATENCY = "nothing was timed"


@dataclass(frozen=True)
class _Timed:
    """One way to run a model, with its rows by workload, of which each has a median."""

    name: str
    plan: str
    rows: Mapping[str, LatencyRow]
    threads: int = 0

    @property
    def mean(self) -> float:
        """The logarithm of the geometric mean of its medians."""
        return sum(math.log(row.median_ns or math.inf) for row in self.rows.values()) / max(1, len(self.rows))

    def over(self, other: _Timed) -> float:
        """The geometric mean of the ratios of its medians to those of another."""
        return math.exp(self.mean - other.mean)

    def ratios(self, other: _Timed) -> dict[str, Interval | None]:
        """By workload, the interval of its median over that of another; None if there is none."""
        return {workload: ratio(row, other.rows[workload]) for workload, row in self.rows.items()}

    def decisive(self, other: _Timed) -> tuple[str, Interval] | None:
        """The workload on which it is shown most clearly to be faster than another, or least clearly not to be."""
        known = {workload: shown for workload, shown in self.ratios(other).items() if shown is not None}
        return min(known.items(), key=lambda each: each[1][2], default=None)

    def is_faster(self, other: _Timed) -> bool:
        """Whether it is shown to be faster than another: on average, and by its interval on some workload.

        With other numbers of threads they were not timed in the same run, and medians alone decide.
        """
        if self.mean >= other.mean:
            return False
        shown = self.decisive(other)
        return self.threads != other.threads or (shown is not None and shown[1][2] < 1)


def ratio(ours: LatencyRow, theirs: LatencyRow) -> Interval | None:
    """The interval of the ratio of two runtimes' medians on one workload, from the rounds in which both were timed."""
    try:
        sides = [row.rounds_ns for row in (ours, theirs)]
        shared = min(map(len, sides))
        return ratio_interval(sides[0][:shared], sides[1][:shared], starts=ours.starts)
    except ValueError:  # samples that do not pair up, as the file was edited
        return None


def _best(timed: Sequence[_Timed]) -> _Timed:
    """The one with the least mean, or the plainest of those than which it is not shown to be faster."""
    fastest = min(timed, key=lambda one: one.mean)
    plainness = {plan: place for place, plan in enumerate(PLANS)}
    plain = sorted(timed, key=lambda one: (plainness.get(one.plan, len(PLANS)), one.mean))
    return next(one for one in plain if one is fastest or not fastest.is_faster(one))


def rank(candidates: Sequence[Candidate], latency: Mapping[int, LatencyReport]) -> tuple[Candidate, ...]:
    """The candidates with their verdicts, the chosen one first, then by time, then those that were not timed.

    Args:
        candidates: With `ms`, and the verdict "" where they may be chosen.
        latency: By the number of threads.
    """

    def timed(one: Candidate) -> _Timed:
        name = name_of(one.runtime, one.plan)
        rows = {shape: rows[name] for shape, rows in latency[one.threads].shapes.items()}
        return _Timed(name, one.plan, rows, one.threads)

    able = [(one, timed(one)) for one in candidates if not one.verdict and one.ms]
    best = _best([each for _, each in able]) if able else None
    judged = []
    for one, own in able:
        if best is None or own is best:
            verdict, why = CHOSEN, _chosen_by(own, [each for _, each in able])
        elif best.is_faster(own):
            verdict, why = SLOWER, _slower(own, best)
        else:
            verdict, why = NO_FASTER, _no_faster(own, best)
        reason = "; ".join(filter(None, (one.reason, why)))
        judged.append((verdict != CHOSEN, own.mean, dataclasses.replace(one, verdict=verdict, reason=reason)))
    rest = [dataclasses.replace(one, verdict=one.verdict or NOT_RUN) for one in candidates if one.verdict or not one.ms]
    rest.sort(key=lambda one: one.verdict != REFUSED)
    return (*(one for *_, one in sorted(judged, key=lambda each: each[:2])), *rest)


def _chosen_by(best: _Timed, timed: Sequence[_Timed]) -> str:
    """By what one is chosen among several."""
    fastest = min(timed, key=lambda one: one.mean)
    if fastest is not best:
        return f"in a plainer precision than {fastest.name}, which is not shown to be faster"
    if len(timed) == 1:
        return ""
    workloads = list(best.rows)
    return f"the least mean over {len(workloads)} workloads" if workloads[1:] else f"by {workloads[0]} alone"


def _slower(one: _Timed, best: _Timed) -> str:
    """Why one is not chosen that is shown to be slower: its mean, the workload that shows it most clearly, and how."""
    over = f"{one.over(best):.2f} times the chosen one's"
    decisive = best.decisive(one) if one.threads == best.threads else None
    if decisive is None:
        return f"{over}, by medians alone"
    workload, (low, mid, high) = decisive
    return f"{over}; decided by {workload}, where the chosen one takes {mid:.2f} [{low:.2f}, {high:.2f}] of its time"


def _no_faster(one: _Timed, best: _Timed) -> str:
    """Why one is not chosen that is not shown to be slower."""
    decisive = one.decisive(best) if one.threads == best.threads else None
    said = f"not shown to be faster than {best.name}"
    if decisive is None:
        return said
    workload, (low, mid, high) = decisive
    return f"{said}: it takes {mid:.2f} [{low:.2f}, {high:.2f}] of its time on {workload}"


def choose(
    folder: str, deployable: Sequence[Deployable], parity: ParityReport | None, latency: LatencyReport | None
) -> Choice:
    """Chooses what to deploy by what was measured on this machine.

    Only what passed parity, was timed on every workload and can be carried by a bundle is chosen.

    Args:
        folder: The artifact folder, quoted for a shell.
        deployable: What a bundle can carry of it.
    """
    commands = [f"attnport check {folder} --bisect"] if parity is not None and parity.verdict == "FAIL" else []
    if parity is None:
        commands.append(f"attnport check {folder}")
    if latency is None:
        commands.append(f"attnport bench {folder}")
    if parity is None or latency is None:
        missing = [NO_PARITY] * (parity is None) + [NO_LATENCY] * (latency is None)
        return Choice(None, reason=" and ".join(missing), commands=tuple(commands))
    workloads = [
        name for name, rows in latency.shapes.items() if any(row.median_ns is not None for row in rows.values())
    ]
    carried = {one.measured_as: one for one in deployable if one.measured_as}
    others = dict.fromkeys([*parity.runtimes, *(name for rows in latency.shapes.values() for name in rows)], "")
    timed, fit = dict[str, _Timed](), list[_Timed]()
    for name in others:
        if reason := _not_measured(name, parity, latency, workloads):
            others[name] = reason
            continue
        plan = carried[name].plan if name in carried else "fp32"
        timed[name] = _Timed(name, plan, {workload: latency.shapes[workload][name] for workload in workloads})
        if reason := carried[name].problem if name in carried else _not_carried(name):
            others[name] = reason
        else:
            fit.append(timed[name])
    if not fit:
        first = () if deployable else (f"attnport fuse {folder}",)
        commands = [*first, f"attnport check {folder} --bisect", f"attnport bench {folder}"]
        reason = "no runtime passed parity, was timed and can be embedded"
        return Choice(None, reason=reason, commands=tuple(commands), others=others)
    best = _best(fit)
    ties, notes = _beside(best, timed, fit, others)
    notes += _of_plan(best, fit, parity)
    if not any(row.verdict == "faster" for row in best.rows.values()) and best.name != latency.baseline:
        notes.append(f"on no workload is it shown to be faster than {latency.baseline}")
    deploy = carried[best.name]
    return Choice(
        deploy,
        {workload: dataclasses.replace(row, samples_ns=()) for workload, row in best.rows.items()},
        commands=(f"attnport bundle {folder} -o app/ --form {shlex.quote(deploy.name)} --lang python",),
        ties=tuple(ties),
        notes=tuple(notes),
        others={name: why for name, why in others.items() if name != best.name},
    )


def _beside(
    best: _Timed, timed: Mapping[str, _Timed], fit: Sequence[_Timed], others: dict[str, str]
) -> tuple[list[str], list[str]]:
    """The ties of what is chosen, and notes where another is faster; adds to `others` why those that fit are not."""
    ties, notes = [], []
    for name, one in timed.items():
        if one is best:
            continue
        shown = one.ratios(best)
        alike = [workload for workload, of in shown.items() if of and of[0] <= 1 <= of[2]]
        faster = [workload for workload, of in shown.items() if of and of[2] < 1]
        if one in fit and len(alike) == len(shown):
            ties.append(name)
            others[name] = f"no difference to {best.name} shown on any workload"
        elif one in fit:
            others[name] = f"its medians are {one.over(best):.2f} times those of {best.name}"
            others[name] += f"; no difference shown on {', '.join(alike)}" if alike else ""
        if faster:
            why = "" if one in fit else f", but {others[name]}"
            notes.append(f"{name} is faster than {best.name} on {', '.join(faster)}{why}")
    return ties, notes


def _not_measured(name: str, parity: ParityReport, latency: LatencyReport, workloads: Sequence[str]) -> str:
    """Why a runtime's numbers or its speed are not known; "" if both are."""
    judged = parity.runtimes.get(name)
    if judged is None:
        return NO_PARITY
    if judged.verdict != "PASS":
        return f"parity {'failed' if judged.verdict == 'FAIL' else 'was not run'}: {judged.reason}"
    rows = [latency.shapes[workload].get(name) for workload in workloads]
    lost = [row.reason if row else "" for row in rows if row is None or row.median_ns is None]
    if rows and not lost:
        return ""
    why = latency.absent.get(name) or next(filter(None, lost), "")
    return f"not timed{' on every workload' if len(lost) < len(rows) else ''}" + (f": {why}" if why else "")


def _not_carried(name: str) -> str:
    """Why no bundle can carry what reports name so."""
    runtime, _, form = name.partition(".")
    kind = base.get(runtime).opens if runtime in base.names() else ""
    if kind == "module":
        return "it runs the module in PyTorch, which no bundle carries"
    return f"it is {form} through the reader of a bundle" if kind == "bundle" and form else "no bundle can carry it"


def _of_plan(best: _Timed, fit: Sequence[_Timed], parity: ParityReport) -> list[str]:
    """What the reader must know of a choice that does not compute in fp32: its errors, and the fastest that does."""
    plain = [one for one in fit if one.plan == "fp32"]
    if best.plan == "fp32":
        return []
    note = f"it computes in {best.plan}, within the bound of PyTorch in {best.plan}{_off(parity, best.name)}"
    if best.plan in INTEGERS:  # which PyTorch has no bound for
        note = f"it computes in {best.plan}: {parity.runtimes[best.name].reason}"
    if plain:
        nearest = min(plain, key=lambda one: one.mean)
        note += f"; in fp32 {nearest.name} is the fastest, at {nearest.over(best):.2f} times its medians"
        note += _off(parity, nearest.name)
    return [note]


def _off(parity: ParityReport, name: str) -> str:
    """The largest error of a runtime over all cases, in words: bounds of two precisions cannot be compared."""
    errors = [case.relative for case in parity.runtimes[name].cases if case.relative is not None]
    return f", off by up to {max(errors):.1e} of the values" if errors else ""
