"""What `ship` prints: a table of all runtimes, what to deploy, the stages, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.fusion_tables import fused
from attnport.console.parity_tables import show_forms, those_not_here
from attnport.reporting import document as doc
from attnport.reporting.absences import not_checked, without

if TYPE_CHECKING:
    from attnport.artifacts import LatencyReport, LatencyRow, ParityReport
    from attnport.reporting.recommendation import Recommendation
    from attnport.verbs.ship import ShipResult

_MOST_WORKLOADS = 3
_UNPROVEN = "-"  # a table with three workloads has no room for more


def show_ship(result: ShipResult) -> Iterator[doc.Block]:
    """Verdict, fusion and speed of each runtime, and the file to deploy; then the stages, and what to do next."""
    if result.parity is not None:
        yield _verdicts(result, result.parity)
    advice = result.recommendation
    if advice is not None and advice.choice is not None:
        chosen = advice.choice
        why = f" ({chosen.runtime}, {chosen.plan}, the fastest within the bound)"
        yield doc.Text(("to deploy: ", doc.Span(" and ".join(chosen.files), "strong"), why))
    if result.parity is not None:
        yield from _legend(result)
        yield from _others(result, result.parity)
    yield from _stages(result)
    end: doc.Line = doc.Verdict("shipped", "pass")
    if result.exit_code:
        end = (doc.Verdict("not shipped", "fail"), f" (exit {result.exit_code})")
    yield doc.Text((end, f": {result.folder}; read {result.folder}/report.html"))
    yield from _next(advice)


def _stages(result: ShipResult) -> Iterator[doc.Block]:
    columns = cells.columns("stage", "status", "s", "result", right=("s",), whole=("stage", "status", "s"))
    rows = (
        (stage.stage, doc.Verdict(stage.status), f"{stage.seconds:.1f}", cells.short(stage.detail))
        for stage in result.stages
    )
    yield doc.Table("stages", columns, doc.rows(rows))
    # stderr has the whole of what failed
    cut = (stage for stage in result.stages if not stage.exit_code and cells.short(stage.detail) != stage.detail)
    yield cells.notes({stage.stage: stage.detail for stage in cut})


def _next(advice: Recommendation | None) -> Iterator[doc.Block]:
    """The commands that follow: embed what was chosen, test it where it lands and time it there; or mend it."""
    if advice is None:
        return
    if advice.choice is None:
        yield doc.Text(f"nothing to deploy: {advice.reason}; next:")
        yield doc.Commands(tuple(f"  {command}" for command in advice.commands))
        return
    yield doc.Text("next, embed it, test it where it lands, and time it there:")
    there = (f"  (cd app/python && python -m attnport_bundle {verb})" for verb in ("selftest", "bench"))
    yield doc.Commands((f"  {advice.choice.command}", *there))


def _verdicts(result: ShipResult, parity: ParityReport) -> doc.Table:
    """The verdict table: parity, fusion and speed of each runtime."""
    latency = result.latency
    shapes = _shapes(latency)
    timed = [f"{cells.short_shape(shape)} ms" for shape in shapes]
    whole = ("runtime", "parity", "fused")
    rows: list[tuple[doc.Line, ...]] = []
    left_out = _left_out(result, parity)
    for name, row in parity.runtimes.items():
        if name not in left_out:
            times = [_short_latency(latency.shapes[shape].get(name)) for shape in shapes] if latency else []
            rows.append((name, doc.Verdict(row.verdict), _proved(result, name), *times))
    columns = cells.columns(*whole, *timed, right=("fused", *timed), whole=whole)
    return doc.Table(("verdict: ", doc.Verdict(parity.verdict)), columns, doc.rows(rows))


def _legend(result: ShipResult) -> Iterator[doc.Block]:
    """What the columns of the verdict table are."""
    yield from cells.quiet("parity: errors against a float64 run of the module, within its bound or not")
    if result.fusion is not None:
        yield from cells.quiet(
            "fused: attentions that one kernel of the runtime covers, proved, of those",
            f"counted at export; {_UNPROVEN} where nothing here could prove it",
        )
    if result.latency is not None:
        baseline = result.latency.baseline
        yield from cells.quiet(f"ms: median, and its ratio to {baseline}; ~ where no difference was shown")


def _others(result: ShipResult, parity: ParityReport) -> Iterator[doc.Block]:
    """The reasons of what did not pass, and a line each for what passed besides and for what this machine lacks."""
    left_out = _left_out(result, parity)
    absent = [name for name in not_checked(parity.runtimes) if name in left_out]
    reasons = {name: row.reason for name, row in parity.runtimes.items() if row.verdict != "PASS" and row.reason}
    yield cells.notes(without(left_out, reasons))
    if not_run := {name: reasons[name] for name in left_out if name in reasons and name not in absent}:
        yield doc.Text((doc.Verdict("NOT_RUN"), ", so nothing was shown of these:"))
        yield cells.notes(not_run)
    yield from show_forms(parity.forms)
    yield from those_not_here(absent)


def _left_out(result: ShipResult, parity: ParityReport) -> list[str]:
    """The runtimes without a row in the table: nothing of them was run, proved or timed."""
    timed = _shapes(result.latency)
    return [
        name
        for name, row in parity.runtimes.items()
        if row.verdict == "NOT_RUN"
        and _proved(result, name) in ("", _UNPROVEN)
        and not any(result.latency and _short_latency(result.latency.shapes[shape].get(name)) for shape in timed)
    ]


def _shapes(latency: LatencyReport | None) -> list[str]:
    return list(latency.shapes)[:_MOST_WORKLOADS] if latency else []


def _proved(result: ShipResult, name: str) -> doc.Line:
    proof = result.fusion.targets.get(name) if result.fusion else None
    return _UNPROVEN if proof and proof.proved_by is None else fused(result.fusion, name)


def _short_latency(row: LatencyRow | None) -> str:
    if row is None or row.median_ns is None:
        return ""
    ratio = "" if row.ratio is None else f" {'~' if row.verdict == 'no difference shown' else ''}{row.ratio[1]:.2f}x"
    return f"{row.median_ns / 1e6:.2f}{ratio}"
