"""The runtimes that nobody installed, or that want hardware which this machine lacks: one line of each result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from attnport.artifacts import LatencyReport, ParityReport, RuntimeParity
from attnport.reporting import document as doc

T = TypeVar("T")


def not_checked(parities: Mapping[str, RuntimeParity]) -> list[str]:
    """Those of a parity report; none where nothing else was run either, as the reasons are then all there is to say."""
    if all(row.verdict == "NOT_RUN" for row in parities.values()):
        return []
    return [name for name, row in parities.items() if row.absent]


def not_timed(report: LatencyReport) -> list[str]:
    """Those of a latency report; none where nothing was timed."""
    rows = (row for rows in report.shapes.values() for row in rows.values())
    return list(report.absent) if any(row.median_ns is not None for row in rows) else []


def absent(parity: ParityReport | None, latency: LatencyReport | None) -> dict[str, str]:
    """Those of both reports, as far as there are any, and why."""
    reasons = {name: row.reason for rows in (latency.shapes.values() if latency else ()) for name, row in rows.items()}
    reasons |= {name: row.reason for name, row in (parity.runtimes.items() if parity else ())}
    found = [not_checked(parity.runtimes)] if parity else []
    found += [not_timed(latency)] if latency else []
    return {name: reasons[name] for name in (found[0] if found else ()) if all(name in names for names in found)}


def line(names: Sequence[str]) -> doc.Line:
    """One line for all of them."""
    return (f"{len(names)} more {wanting(names)}: ", doc.listed(map(doc.Name, names)))


def lacking(names: Sequence[str]) -> Iterator[doc.Block]:
    """That line below a table, and where to read why; nothing for none."""
    if names:
        yield doc.Text((line(names), "; why: ", doc.Code("attnport doctor")))


def wanting(names: Sequence[str]) -> str:
    """What they want."""
    return f"want{'s' if len(names) == 1 else ''} a GPU or a package"


def without(names: Iterable[str], by_name: Mapping[str, T]) -> dict[str, T]:
    """What has a name, but for these names."""
    left_out = set(names)
    return {name: value for name, value in by_name.items() if name not in left_out}
