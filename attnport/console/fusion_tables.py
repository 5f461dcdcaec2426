"""What `fuse` and `build` print: which attentions one kernel covers, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.reporting import document as doc
from attnport.reporting.fusion import of_padding

if TYPE_CHECKING:
    from attnport.artifacts import FusionReport, FusionTable


def fused(fusion: FusionReport | None, key: str) -> doc.Line:
    """The number of fused attentions and of all, in colour; "" if fusion was not examined."""
    table = fusion.targets.get(key) if fusion else None
    if table is None:
        return ""
    return doc.Verdict(str(table), "pass" if table.fused == table.attentions else "miss")


def show_fusion(report: FusionReport) -> Iterator[doc.Block]:
    """A row for each target, with reasons below."""
    columns = cells.columns("target", "fused", "kernel", "proved by", right=("fused",), whole=("target", "fused"))
    rows = (
        (key, fused(report, key), _kernels(table) or "-", table.proved_by or "-")
        for key, table in report.targets.items()
    )
    yield doc.Table("fusion", columns, doc.rows(rows))
    notes = {}
    for key, table in report.targets.items():
        reasons = dict.fromkeys(item.cost if item.fused else item.reason for item in table.items)
        reasons.pop("", None)
        reasons |= dict.fromkeys(of_padding(table))
        if reasons:
            notes[key] = "; ".join(reasons)
    yield cells.notes(notes)


def _kernels(table: FusionTable) -> str:
    return ", ".join(sorted({item.kernel for item in table.items if item.kernel}))


def show_engine_fusion(table: FusionTable) -> Iterator[doc.Block]:
    """One line: how many attentions an engine fuses, and in which kernels."""
    kernels = _kernels(table)
    yield doc.Text(f"{table} attentions fused{f': {kernels}' if kernels else ''}")


def show_fusion_explained(report: FusionReport) -> Iterator[doc.Block]:
    """What happened to each attention on each target, and why."""
    for key, table in report.targets.items():
        yield doc.Text((doc.Span(key, "strong"), f" ({table.plan}, {table.file}): {table}"))
        yield doc.Bullets(tuple(doc.Span(line, "quiet") for line in of_padding(table)), level=1)
        for item in table.items:
            unfused = doc.Verdict("not proven" if table.proved_by is None else "not fused", "miss")
            state = (doc.Verdict("fused", "pass"), f" in {item.kernel}") if item.fused else (unfused,)
            yield doc.Text((f"  {item.attention}: ", *state))
            details = (f"form {item.form}; mask {item.mask}", item.cost, item.evidence or item.reason)
            yield doc.Bullets(tuple(doc.Span(line, "quiet") for line in details if line), level=2)
