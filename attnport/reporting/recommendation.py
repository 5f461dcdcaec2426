"""Recommends what to embed, the fastest runtime that passed parity and that a bundle can carry; why not the others."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnport.artifacts import Interval, LatencyReport, LatencyRow, ParityReport
from attnport.reporting import document as doc
from attnport.reporting.facts import wanting, without
from attnport.reporting.measures import milliseconds

Compare = Callable[[LatencyRow, LatencyRow], Interval | None]
"""Returns the interval of the ratio of two medians, first over second, on one workload; None if there is none."""

NO_PARITY = "parity was not checked"
NO_LATENCY = "nothing was timed"
BASIS = (
    "Of the runtimes that passed parity here, were timed on every workload and that a bundle can carry, the fastest."
)


@dataclass(frozen=True)
class Embeddable:
    """What a bundle can take for a runtime.

    Attributes:
        form: Its name for `attnport bundle --form`; "" if there is none.
        plan: Its precision plan.
        file: The file that the runtime opens.
        problem: Why a bundle would refuse it, or why its figures are not those of this file; "" if there is no problem.
        weights: The files beside it that the runtime reads too.
    """

    form: str
    plan: str
    file: str
    problem: str = ""
    weights: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    """The recommended runtime on one workload; `ratio` and `verdict` are against the report's baseline."""

    workload: str
    median_ns: float
    ratio: Interval | None
    verdict: str


@dataclass(frozen=True)
class Choice:
    """What is recommended, with the command that embeds it."""

    runtime: str
    form: str
    plan: str
    file: str
    command: str
    timings: tuple[Timing, ...]
    weights: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """What is deployed, the file that the runtime opens first."""
        return (self.file, *self.weights)


@dataclass(frozen=True)
class Recommendation:
    """The recommendation, or why there is none.

    Attributes:
        choice: What is recommended; None if nothing is.
        reason: Why nothing is recommended; "" if something is.
        commands: The commands that would change that.
        ties: Runtimes that could be embedded as well, with no difference shown on any workload.
        notes: Where another runtime is faster after all, and what the reader must know.
        others: Why each other runtime is not recommended.
    """

    choice: Choice | None
    reason: str = ""
    commands: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)


def recommend(
    parity: ParityReport | None,
    latency: LatencyReport | None,
    embeddable: Mapping[str, Embeddable],
    compare: Compare,
    folder: str,
    tuned: str = "",
) -> Recommendation:
    """Recommends what to embed from what was measured on this machine.

    Only a runtime that passed parity, that was timed on every workload and that a bundle can carry is recommended. Of
    these it is the one that `tune` chose, or else the one with the smallest geometric mean of its medians over the
    workloads.

    Args:
        embeddable: By runtime, with the names in the reports.
        compare: Compares two runtimes; see `Compare`.
        folder: The artifact folder, quoted for a shell.
        tuned: The runtime that `tune` chose, if `latency` is its timing.
    """
    failing = parity is not None and parity.verdict == "FAIL"
    commands = [f"attnport check {folder} --bisect"] if failing else []
    if parity is None:
        commands.append(f"attnport check {folder}")
    if latency is None:
        commands.append(f"attnport bench {folder}")
    if parity is None or latency is None:
        missing = [NO_PARITY] * (parity is None) + [NO_LATENCY] * (latency is None)
        return Recommendation(None, " and ".join(missing), tuple(commands))
    workloads = [
        name for name, rows in latency.shapes.items() if any(row.median_ns is not None for row in rows.values())
    ]
    names = list(dict.fromkeys([*parity.runtimes, *(name for rows in latency.shapes.values() for name in rows)]))
    others = {name: _against(name, parity, latency, workloads, embeddable) for name in names}
    fit = [name for name in names if not others[name]]
    if not fit:
        return Recommendation(
            None, "no runtime passed parity, was timed and can be embedded", _mending(folder, embeddable), others=others
        )
    best = tuned if tuned in fit else min(fit, key=lambda name: _mean(name, latency, workloads))
    ties, notes = [], []
    for name in names:
        if name == best or (others[name] and not _only_unembeddable(name, parity, latency, workloads, embeddable)):
            continue
        shown = _shown(name, best, latency, workloads, compare)
        faster = [workload for workload, interval in shown.items() if interval and interval[2] < 1]
        if name in fit and not any(
            interval is None or not interval[0] <= 1 <= interval[2] for interval in shown.values()
        ):
            ties.append(name)
            others[name] = f"no difference to {best} shown on any workload"
        elif name in fit:
            others[name] = f"its medians are {_over(name, best, latency, workloads):.2f} times those of {best}"
            alike = [workload for workload, interval in shown.items() if interval and interval[0] <= 1 <= interval[2]]
            others[name] += f"; no difference shown on {', '.join(alike)}" if alike else ""
        if faster:
            why = "" if name in fit else f", but {others[name]}"
            notes.append(f"{name} is faster than {best} on {', '.join(faster)}{why}")
    del others[best]
    chosen = embeddable[best]
    notes += _of_plan(best, fit, latency, workloads, embeddable)
    if best == tuned:
        notes.append(f"tune chose it, timed with --threads {latency.settings['threads']}")
    command = f"attnport bundle {folder} -o app/ --form {shlex.quote(chosen.form)} --lang python"
    timings = tuple(_timing(workload, latency.shapes[workload][best]) for workload in workloads)
    if not any(timing.verdict == "faster" for timing in timings) and best != latency.baseline:
        notes.append(f"on no workload is it shown to be faster than {latency.baseline}")
    choice = Choice(best, chosen.form, chosen.plan, chosen.file, command, timings, chosen.weights)
    return Recommendation(choice, ties=tuple(ties), notes=tuple(notes), others=others)


def _of_plan(
    best: str, fit: list[str], latency: LatencyReport, workloads: list[str], embeddable: Mapping[str, Embeddable]
) -> list[str]:
    """What the reader must know of a choice that does not compute in fp32: the time of the fastest that does."""
    plan, plain = embeddable[best].plan, [name for name in fit if embeddable[name].plan == "fp32"]
    if plan == "fp32":
        return []
    note = f"it computes in {plan}, within the bound of PyTorch in {plan}"
    if plain:
        nearest = min(plain, key=lambda name: _mean(name, latency, workloads))
        over = _over(nearest, best, latency, workloads)
        note += f"; in fp32 {nearest} is the fastest, at {over:.2f} times its medians"
    return [note]


def _against(
    name: str,
    parity: ParityReport,
    latency: LatencyReport,
    workloads: list[str],
    embeddable: Mapping[str, Embeddable],
) -> str:
    """Why a runtime cannot be recommended, whatever its speed; "" if it can."""
    judged = parity.runtimes.get(name)
    if judged is None:
        return NO_PARITY
    if judged.verdict != "PASS":
        return f"parity {'failed' if judged.verdict == 'FAIL' else 'was not run'}: {judged.reason}"
    carried = embeddable.get(name)
    if carried is None:
        return "no bundle can carry it"
    rows = [latency.shapes[workload].get(name) for workload in workloads]
    if not rows or any(row is None or row.median_ns is None for row in rows):
        reasons = [row.reason for row in rows if row is not None and row.median_ns is None and row.reason]
        return f"not timed{' on every workload' if len(reasons) < len(rows) and rows else ''}" + (
            f": {reasons[0].removeprefix('not timed: ')}" if reasons else ""
        )
    return carried.problem


def _only_unembeddable(
    name: str,
    parity: ParityReport,
    latency: LatencyReport,
    workloads: list[str],
    embeddable: Mapping[str, Embeddable],
) -> bool:
    """Whether a runtime passed parity and was timed, so that it gets a note where it is faster."""
    pretended = {**embeddable, name: Embeddable("", "", "")}
    return not _against(name, parity, latency, workloads, pretended)


def _mean(name: str, latency: LatencyReport, workloads: list[str]) -> float:
    """The logarithm of the geometric mean of a runtime's medians."""
    return sum(math.log(latency.shapes[workload][name].median_ns or math.inf) for workload in workloads) / len(
        workloads
    )


def _over(name: str, best: str, latency: LatencyReport, workloads: list[str]) -> float:
    """The geometric mean of the ratios of a runtime's medians to those of `best`."""
    return math.exp(_mean(name, latency, workloads) - _mean(best, latency, workloads))


def _shown(
    name: str, best: str, latency: LatencyReport, workloads: list[str], compare: Compare
) -> dict[str, Interval | None]:
    """By workload, the interval of a runtime's median over that of `best`."""
    return {workload: compare(latency.shapes[workload][name], latency.shapes[workload][best]) for workload in workloads}


def _timing(workload: str, row: LatencyRow) -> Timing:
    return Timing(workload, row.median_ns or 0.0, row.ratio, row.verdict)


def _mending(folder: str, embeddable: Mapping[str, Embeddable]) -> tuple[str, ...]:
    """The commands that lead to a recommendation; forms must exist before they are checked and timed."""
    first = () if any(item.form for item in embeddable.values()) else (f"attnport fuse {folder}",)
    return (*first, f"attnport check {folder} --bisect", f"attnport bench {folder}")


def section(recommendation: Recommendation, baseline: str, absent: Sequence[str] = ()) -> Iterator[doc.Block]:
    """The recommended runtime with its times and its command, and why the others are not recommended.

    Args:
        absent: The runtimes that this machine lacks, which share a line.
    """
    if recommendation.choice is None:
        yield doc.Text(f"Nothing can be recommended: {recommendation.reason}.", "big")
        if recommendation.commands:
            yield doc.Commands(recommendation.commands)
    else:
        yield from _choice(recommendation, recommendation.choice, baseline)
    if recommendation.others:
        told = without(absent, recommendation.others)
        others: tuple[tuple[doc.Line, doc.Line], ...] = tuple((doc.Name(key), why) for key, why in told.items())
        if absent:
            others += ((doc.listed(map(doc.Name, absent)), wanting(absent)),)
        yield doc.Folded("Why not the others", (doc.Pairs(others, "reasons"),))


def _choice(recommendation: Recommendation, choice: Choice, baseline: str) -> Iterator[doc.Block]:
    file = (" (", doc.listed(map(doc.Name, choice.files), " and "), ")")
    yield doc.Text((doc.Name(choice.runtime), f", {choice.plan}, form ", doc.Name(choice.form), *file), "big")
    yield doc.Text(BASIS, "quiet")
    yield doc.Pairs(
        tuple((timing.workload, _against_baseline(timing, baseline)) for timing in choice.timings), "tally timings"
    )
    if recommendation.ties:
        ties = doc.listed(map(doc.Name, recommendation.ties))
        yield doc.Text(("No difference shown to ", ties, " on any workload."))
    if recommendation.notes:
        yield doc.Bullets(recommendation.notes)
    yield doc.Commands((choice.command,), ("Embed it; ", doc.Code("--lang cpp"), " adds the reader in C++"))


def _against_baseline(timing: Timing, baseline: str) -> doc.Line:
    shown = f"{milliseconds(timing.median_ns)} ms"
    if timing.ratio is None:
        return shown
    low, mid, high = timing.ratio
    return shown, doc.Span(f"{mid:.2f}× {baseline} [{low:.2f}, {high:.2f}], {timing.verdict}", "sub")
