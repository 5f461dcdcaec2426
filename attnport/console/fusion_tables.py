"""What `fuse` and `build` print: which attentions one kernel covers, and why others are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.console import cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import FusionReport, FusionTable


def fused(fusion: FusionReport | None, key: str) -> str:
    """How many attentions are fused, of how many, in colour; "" where that was not asked."""
    table = fusion.targets.get(key) if fusion else None
    if table is None:
        return ""
    return f"[{'green' if table.fused == table.attentions else 'yellow'}]{table}[/]"


def show_fusion(console: Console, report: FusionReport) -> None:
    """One row a target; reasons stand below."""
    table = cells.table("fusion", "target", "fused", "kernel", "proved by", right=("fused",), whole=("target", "fused"))
    notes: dict[str, str] = {}
    for key, found in report.targets.items():
        reasons = dict.fromkeys(item.cost if item.fused else item.reason for item in found.items)
        reasons.pop("", None)
        table.add_row(key, fused(report, key), cells.plain(_kernels(found) or "-"), cells.plain(found.proved_by or "-"))
        if reasons:
            notes[key] = "; ".join(reasons)
    console.print(table)
    cells.notes(console, notes)


def _kernels(table: FusionTable) -> str:
    return ", ".join(sorted({item.kernel for item in table.items if item.kernel}))


def show_engine_fusion(console: Console, table: FusionTable) -> None:
    """One line: how many attentions an engine fuses, and in which kernels."""
    kernels = _kernels(table)
    console.print(f"{table} attentions fused{f': {cells.plain(kernels)}' if kernels else ''}")


def show_fusion_explained(console: Console, report: FusionReport) -> None:
    """What happened to each attention on each target, and why."""
    from rich.padding import Padding

    for key, found in report.targets.items():
        console.print(f"[bold]{cells.plain(key)}[/] ({found.plan}, {cells.plain(found.file)}): {found}")
        for item in found.items:
            unfused = "[yellow]not proven[/]" if found.proved_by is None else "[yellow]not fused[/]"
            state = f"[green]fused[/] in {cells.plain(item.kernel)}" if item.fused else unfused
            console.print(f"  {cells.plain(item.attention)}: {state}")
            for line in filter(None, (f"form {item.form}; mask {item.mask}", item.cost, item.evidence or item.reason)):
                console.print(Padding(cells.plain(line), (0, 0, 0, 4)), style="dim")
