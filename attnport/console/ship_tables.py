"""What `ship` prints: the stages, a table of all runtimes, and what to embed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.fusion_tables import fused
from attnport.console.parity_tables import not_here, those_not_here
from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.artifacts import LatencyRow, ParityReport
    from attnport.verbs.ship import ShipResult

BUNDLE = "bundle"
"""The stage of `ship`, and the runtime that opens bundles."""
_MOST_WORKLOADS = 3
_UNPROVEN = "-"  # a table with three workloads has no room for more


def show_ship(result: ShipResult) -> Iterator[doc.Block]:
    """The stages, a row for each runtime, and where the report is."""
    columns = cells.columns("stage", "status", "s", "result", right=("s",), whole=("stage", "status", "s"))
    rows = (
        (stage.stage, doc.Verdict(stage.status), f"{stage.seconds:.1f}", cells.short(stage.detail))
        for stage in result.stages
    )
    yield doc.Table("stages", columns, doc.rows(rows))
    if result.parity is not None:
        yield from _verdicts(result, result.parity)
    choice = result.recommendation.choice if result.recommendation else None
    if choice is not None:
        yield doc.Text(f"fastest within the bound: {choice.runtime}, {choice.plan}; to embed it:")
        yield doc.Commands((f"  {choice.command}",))
    end: doc.Line = doc.Verdict("shipped", "pass")
    if result.exit_code:
        end = (doc.Verdict("not shipped", "fail"), f" (exit {result.exit_code})")
    yield doc.Text((end, f": {result.folder}; read {result.folder}/report.html"))


def _verdicts(result: ShipResult, parity: ParityReport) -> Iterator[doc.Block]:
    """The verdict table: parity, fusion and speed of each runtime."""
    latency = result.latency
    shapes = list(latency.shapes)[:_MOST_WORKLOADS] if latency else []
    timed = [re.sub(r"(^|,)\w+=", lambda match: "x" if match[1] else "", shape) + " ms" for shape in shapes]  # 8x128
    whole = ("runtime", "parity", "fused")
    rows: list[tuple[doc.Line, ...]] = []
    left_out = []
    for name, row in parity.runtimes.items():
        proof = result.fusion.targets.get(name) if result.fusion else None
        proved = _UNPROVEN if proof and proof.proved_by is None else fused(result.fusion, name)
        times = [_short_latency(latency.shapes[shape].get(name)) for shape in shapes] if latency else []
        if row.verdict == "NOT_RUN" and proved in ("", _UNPROVEN) and not any(times):
            left_out.append(name)
        else:
            rows.append((name, doc.Verdict(row.verdict), proved, *times))
    columns = cells.columns(*whole, *timed, right=("fused", *timed), whole=whole)
    yield doc.Table(("verdict: ", doc.Verdict(parity.verdict)), columns, doc.rows(rows))
    yield from cells.quiet("parity: errors against a float64 run of the module, within its bound or not")
    if result.fusion is not None:
        meaning = "fused: attentions that one kernel of the runtime covers, proved, of those counted at export"
        yield from cells.quiet(f"{meaning}; {_UNPROVEN} where nothing here could prove it")
    if latency is not None:
        yield from cells.quiet(f"ms: median, and its ratio to {latency.baseline}; ~ where no difference was shown")
    reasons = {name: row.reason for name, row in parity.runtimes.items() if row.verdict != "PASS" and row.reason}
    notes = {name: reason for name, reason in reasons.items() if name not in left_out}
    for name, row in parity.forms.items():
        if row.verdict != "PASS":
            notes[f"graph of {name}"] = f"{row.verdict}: {row.reason}"
    yield cells.notes(notes)
    if BUNDLE in reasons and any(stage.stage == BUNDLE and not stage.exit_code for stage in result.stages):
        folder = shlex.quote(result.folder)  # parity was checked before there was a bundle
        reasons[BUNDLE] = f"made after the others ran, and verified; attnport check {folder} --bundle {folder}/{BUNDLE}"
    absent = [name for name in not_here(parity.runtimes) if name in left_out]
    not_run = {name: reasons[name] for name in left_out if name in reasons and name not in absent}
    if not_run:
        yield doc.Text((doc.Verdict("NOT_RUN"), ", so nothing was shown of these:"))
        yield cells.notes(not_run)
    yield from those_not_here(absent)
    passed = [name for name, row in parity.forms.items() if row.verdict == "PASS"]
    if passed:
        yield doc.Text(f"graphs of the lowered forms that pass: {', '.join(passed)}")


def _short_latency(row: LatencyRow | None) -> str:
    if row is None or row.median_ns is None:
        return ""
    ratio = "" if row.ratio is None else f" {'~' if row.verdict == 'no difference shown' else ''}{row.ratio[1]:.2f}x"
    return f"{row.median_ns / 1e6:.2f}{ratio}"
