"""What `ship` prints: the stages, everything about each runtime side by side, what to embed."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.fusion_tables import fused

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import LatencyRow, ParityReport
    from attnport.verbs.ship import ShipResult

BUNDLE = "bundle"
"""The stage of `ship`, and the runtime that opens bundles."""
_MOST_WORKLOADS = 3
_UNPROVEN = "-"  # a table with three workloads has no room for more


def show_ship(console: Console, result: ShipResult) -> None:
    """Stages, one row a runtime with everything that was found about it, and where to read on."""
    table = cells.table("stages", "stage", "status", "s", "result", right=("s",), whole=("stage", "status", "s"))
    for stage in result.stages:
        table.add_row(
            stage.stage, cells.verdict(stage.status), f"{stage.seconds:.1f}", cells.plain(cells.short(stage.detail))
        )
    console.print(table)
    if result.parity is not None:
        _show_verdicts(console, result, result.parity)
    choice = result.recommendation.choice if result.recommendation else None
    if choice is not None:
        console.print(f"fastest within the bound: {cells.plain(f'{choice.runtime}, {choice.plan}')}; to embed it:")
        console.print(f"  {cells.plain(choice.command)}", soft_wrap=True)
    end = "[green]shipped[/]" if not result.exit_code else f"[bold red]not shipped[/] (exit {result.exit_code})"
    console.print(f"{end}: {cells.plain(result.folder)}; read {cells.plain(result.folder)}/report.html")


def _show_verdicts(console: Console, result: ShipResult, parity: ParityReport) -> None:
    """The verdict table: numbers, fusion and speed of each runtime side by side."""
    latency = result.latency
    shapes = list(latency.shapes)[:_MOST_WORKLOADS] if latency else []
    columns = [re.sub(r"(^|,)\w+=", lambda found: "x" if found[1] else "", shape) + " ms" for shape in shapes]  # 8x128
    table = cells.table(
        f"verdict: {cells.verdict(parity.verdict)}",
        "runtime",
        "parity",
        "fused",
        *columns,
        right=("fused", *columns),
        whole=("runtime", "parity", "fused"),
    )
    left_out = []
    for name, row in parity.runtimes.items():
        proof = result.fusion.targets.get(name) if result.fusion else None
        proved = _UNPROVEN if proof and proof.proved_by is None else fused(result.fusion, name)
        times = [_short_latency(latency.shapes[shape].get(name)) for shape in shapes] if latency else []
        if row.verdict == "NOT_RUN" and proved in ("", _UNPROVEN) and not any(times):
            left_out.append(name)
        else:
            table.add_row(name, cells.verdict(row.verdict), proved, *times)
    console.print(table)
    about = ["parity: errors against a float64 run of the module, within its bound or not"]
    if result.fusion is not None:
        what = "fused: attentions that one kernel of the runtime covers, proved, of those counted at export"
        about.append(f"{what}; {_UNPROVEN} where nothing here could prove it")
    if latency is not None:
        about.append(f"ms: median, and its ratio to {latency.baseline}; ~ where no difference was shown")
    for line in about:
        console.print(line, style="dim")
    reasons = {name: row.reason for name, row in parity.runtimes.items() if row.verdict != "PASS" and row.reason}
    notes = {name: reason for name, reason in reasons.items() if name not in left_out}
    for name, row in parity.forms.items():
        if row.verdict != "PASS":
            notes[f"graph of {name}"] = f"{row.verdict}: {row.reason}"
    cells.notes(console, notes)
    if BUNDLE in reasons and any(stage.stage == BUNDLE and not stage.exit_code for stage in result.stages):
        folder = shlex.quote(result.folder)  # parity was checked before there was a bundle
        reasons[BUNDLE] = f"made after the others ran, and verified; attnport check {folder} --bundle {folder}/{BUNDLE}"
    not_run = {name: reasons[name] for name in left_out if name in reasons}
    if not_run:
        console.print(f"{cells.verdict('NOT_RUN')}, so nothing was shown of these:")
        cells.notes(console, not_run)
    passed = [name for name, row in parity.forms.items() if row.verdict == "PASS"]
    if passed:
        console.print(f"graphs of the lowered forms that pass: {cells.plain(', '.join(passed))}")


def _short_latency(row: LatencyRow | None) -> str:
    if row is None or row.median_ns is None:
        return ""
    ratio = "" if row.ratio is None else f" {'~' if row.verdict == 'no difference shown' else ''}{row.ratio[1]:.2f}x"
    return f"{row.median_ns / 1e6:.2f}{ratio}"
