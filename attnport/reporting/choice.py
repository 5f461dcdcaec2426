"""What to deploy, why nothing else, and what `tune` tried: a row for each candidate, with why it was not chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnport.artifacts import Candidate, LatencyRow, Score, TuneReport
from attnport.reporting import document as doc
from attnport.reporting.document import NONE, milliseconds
from attnport.reporting.facts import count, short_shape, wanting, without

BASIS = (
    "Of what passed parity here, was timed on every workload and a bundle can carry: the fastest, or one in a plainer "
    "precision that is not shown to be slower."
)


@dataclass(frozen=True)
class Deployable:
    """A form or an engine that a bundle can carry.

    Attributes:
        name: Its name for `attnport bundle --form`: of an engine its target, where that has no other.
        runtime: The package that opens it.
        plan: Its precision plan.
        files: Sizes in bytes by name: the file that is opened, then its weights.
        parity: Its verdict.
        fused: Attentions that one kernel covers, of all; "" if that was not examined.
        measured_as: Its name in reports; "" if no runtime here opens it.
        problem: Why a bundle refuses it, or why its times are not its own; "" if there is no problem.
    """

    name: str
    runtime: str
    plan: str
    files: Mapping[str, int]
    parity: str
    fused: str
    measured_as: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Choice:
    """What to deploy, or why nothing can be recommended.

    Attributes:
        deploy: What is recommended; None if nothing is.
        rows: Its figures by workload, without samples.
        commands: The command that embeds it, or those that would lead to a recommendation.
        reason: Why nothing is recommended; "" if something is.
        ties: Runtimes that could be embedded as well, with no difference shown on any workload.
        notes: Where another runtime is faster after all, and what the reader must know.
        others: Why each other runtime is not recommended.
    """

    deploy: Deployable | None
    rows: Mapping[str, LatencyRow] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    reason: str = ""
    ties: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)


def section(choice: Choice, baseline: str, absent: Sequence[str] = ()) -> Iterator[doc.Block]:
    """What is recommended with its times and its command, and why the others are not.

    Args:
        absent: The runtimes that this machine lacks, which share a line.
    """
    if choice.deploy is None:
        yield doc.Text(f"Nothing can be recommended: {choice.reason}.", "big")
        if choice.commands:
            yield doc.Commands(choice.commands)
    else:
        yield from _deploy(choice, choice.deploy, baseline)
    if choice.others:
        told = without(absent, choice.others)
        others: tuple[tuple[doc.Line, doc.Line], ...] = tuple((doc.Name(key), why) for key, why in told.items())
        if absent:
            others += ((doc.listed(map(doc.Name, absent)), wanting(absent)),)
        yield doc.Folded("Why not the others", (doc.Pairs(others, "reasons"),))


def _deploy(choice: Choice, deploy: Deployable, baseline: str) -> Iterator[doc.Block]:
    files = (" (", doc.listed(map(doc.Name, deploy.files), " and "), ")")
    yield doc.Text((doc.Name(deploy.measured_as), f", {deploy.plan}, form ", doc.Name(deploy.name), *files), "big")
    yield doc.Text(BASIS, "quiet")
    yield doc.Pairs(
        tuple((workload, _against_baseline(row, baseline)) for workload, row in choice.rows.items()), "tally timings"
    )
    if choice.ties:
        yield doc.Text(("No difference shown to ", doc.listed(map(doc.Name, choice.ties)), " on any workload."))
    if choice.notes:
        yield doc.Bullets(choice.notes)
    yield doc.Commands(choice.commands, ("Embed it; ", doc.Code("--lang cpp"), " adds the reader in C++"))


def _against_baseline(row: LatencyRow, baseline: str) -> doc.Line:
    shown = f"{milliseconds(row.median_ns)} ms"
    if row.ratio is None:
        return shown
    low, mid, high = row.ratio
    return shown, doc.Span(f"{mid:.2f}× {baseline} [{low:.2f}, {high:.2f}], {row.verdict}", "sub")


@doc.blocks.register(TuneReport)
def tuned(report: TuneReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """A table of the candidates, the chosen one first, and why each other was not chosen; then the next command.

    MiB: of the files that a bundle has of it, the model and its weights.
    """
    shapes = list(dict.fromkeys(shape for one in report.candidates for shape in one.ms))
    threads = {one.threads for one in report.candidates}
    several = ["threads"] * (len(threads) > 1)
    scored = ("metric", "change") if any(one.score for one in report.candidates) else ()
    # A terminal has room for a form's name beside all numbers if no heading is longer than these.
    workloads = (re.sub(r" sentences?$", " sent.", short_shape(shape)) for shape in shapes)
    numbers = (*several, *workloads, "MiB", *scored)
    whole = () if several else ("form", "verdict")
    columns = doc.columns("form", *numbers, "verdict", right=numbers, whole=whole)
    rows = tuple(
        doc.Row(
            (
                doc.Name(one.form),
                *[str(one.threads) for _ in several],
                *(f"{one.ms[shape]:.3g}" if shape in one.ms else NONE for shape in shapes),
                doc.mebibytes(one.size_bytes or None),
                *((_value(report, one.score), change(one)) if scored else ()),
                doc.Verdict(one.verdict, "pass" if one.verdict == "chosen" else "quiet"),
            ),
            "; ".join(filter(None, (one.reason, one.score.same if one.score else "", _least(one)))),
        )
        for one in report.candidates
    )
    same = f", with {count(threads.pop(), 'thread')}" if len(threads) == 1 else ""
    yield doc.Table(f"every candidate, the chosen one first{same}; times in ms", columns, (doc.Group(rows),))
    yield from doc.warnings(report.notes)
    if report.metric:
        yield from doc.quiet(_meaning(report))
    if report.chosen is None:
        yield doc.Text("nothing is chosen: no candidate was timed and within the bound")
    elif detail != "page":
        chosen = report.chosen
        yield doc.Text(("chosen: ", doc.Span(chosen.form, "strong"), f", threads={chosen.threads}; embed it:"))
        yield doc.Commands((f"  attnport bundle FOLDER -o app/ --form {chosen.form}",))


def change(one: Candidate) -> str:
    """`-0.16%`: how the metric changes; "" where nothing was scored."""
    return "" if one.drop is None else f"{-one.drop:+z.2%}"


def _least(one: Candidate) -> str:
    """`least cosine 0.9871 of the 100 that were judged`: of the vectors of an item by the candidate and by float32, and
    not of the items that the ranges are made of; "" of no embedder."""
    if one.score is None or (least := one.score.parts.get("least cosine")) is None:
        return ""
    judged = max((every for _, every in one.score.counts.values()), default=0)
    return f"least cosine {least:.4f} of the {judged} that were judged"


def _value(report: TuneReport, score: Score | None) -> str:
    """A score as its metric is named: of perplexity, whose negative is judged, the perplexity itself; "" of none."""
    return "" if score is None else f"{score.parts.get(report.metric, score.value):#.4g}"


def _meaning(report: TuneReport) -> str:
    """What the columns of the metric say, with what it is in float32, on each runtime where these differ."""
    references = {one.runtime: _value(report, one.reference) for one in report.candidates if one.reference}
    by_value: dict[str, list[str]] = {}
    for runtime, value in references.items():
        by_value.setdefault(value, []).append(runtime)
    shown = ", ".join(f"{value} on {' and '.join(runtimes)}" for value, runtimes in by_value.items())
    plain = f"float32 ({shown})" if shown else "float32"
    return f"metric: {report.metric}; change: against {plain}; in integers it may be {report.max_drop:.2%} worse"
