"""The latency section: charts of the ratios, then every number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnport.artifacts import LatencyReport, LatencyRow, ParityReport
from attnport.reporting import document as doc
from attnport.reporting.absences import not_timed, without
from attnport.reporting.along import sizes
from attnport.reporting.facts import by_median, fastest_right, never_timed, ran
from attnport.reporting.measures import count, megabytes, milliseconds, significant
from attnport.reporting.timings import CACHED, DEVICE, KEPT, MEMORY, PARTS, has_cached, has_memory, on_device, ratio

_COLUMNS = (
    *doc.words("Runtime", "Verdict"),
    *doc.numbers("Median ms", "p90 ms", "Ratio", "Interval", "Items/s", "Tokens/s", "Peak MB"),
    *doc.words("Ran"),
)
_STYLES = {"faster": "pass", "slower": "miss"}


def _row(runtime: str, row: LatencyRow, best: bool) -> doc.Row:
    if row.median_ns is None:
        return doc.Row((doc.Name(runtime), doc.Verdict(row.verdict)), row.reason)
    verdict = doc.Verdict(row.verdict, _STYLES.get(row.verdict, "plain"))
    median = milliseconds(row.median_ns)
    cells: tuple[doc.Line, ...] = (
        doc.Name(runtime),
        (verdict, doc.Span(row.reason, "why")) if row.reason else verdict,
        doc.Best(median) if best and row.verdict in ("faster", "baseline") else median,
        milliseconds(row.p90_ns),
        *ratio(row.ratio, row.verdict),
        significant(row.items_per_s),
        significant(row.tokens_per_s),
        megabytes(row.peak_bytes),
        ran(row.ran),
    )
    return doc.Row(cells)


def _cold(report: LatencyReport) -> tuple[doc.Block, ...]:
    """Times of a fresh process, also with a cache if any runtime has one, and how the median was measured."""
    cached = has_cached(report)
    columns = doc.numbers("Load ms", "First call ms", *(CACHED if cached else ()), "p99 ms", "Warm-up calls", "Samples")
    groups = []
    for workload, rows in report.shapes.items():
        lines = tuple(
            doc.Row(
                (
                    doc.Name(runtime),
                    *map(milliseconds, (row.load_ns, row.first_ns)),
                    *(milliseconds(again) for again in (row.cached_load_ns, row.cached_first_ns) if cached),
                    milliseconds(row.p99_ns),
                    str(row.warm_calls),
                    str(len(row.samples_ns)),
                )
            )
            for runtime, row in by_median(rows)
            if row.median_ns is not None
        )
        groups += [doc.Group(lines, workload)] if lines else []
    caption = "Load and first call of a fresh process, packages imported; p99, warm-up and samples of the warm one"
    table = doc.Table(caption, (*doc.words("Runtime"), *columns), tuple(groups), "Workload")
    return (doc.Text(KEPT), table) if cached else (table,)


def _device(report: LatencyReport) -> Iterator[doc.Block]:
    """Times from events on a device, if there are any."""
    timed = on_device(report)
    if not timed:
        return
    compared = any(item.device_ratio for rows in timed.values() for _, item in rows)
    columns = doc.numbers(*PARTS.values(), *(("Ratio", "Interval") if compared else ()))
    groups = tuple(
        doc.Group(
            tuple(
                doc.Row(
                    (
                        doc.Name(runtime),
                        *(milliseconds(item.parts_ns.get(part)) for part in PARTS),
                        *(ratio(item.device_ratio, item.verdict) if compared else ()),
                    )
                )
                for runtime, item in rows
            ),
            workload,
        )
        for workload, rows in timed.items()
    )
    caption = "Parts of a call on the device, medians by workload"
    yield doc.Text(DEVICE)
    yield doc.Table(caption, (*doc.words("Runtime"), *columns), groups, "Workload")


def _group(report: LatencyReport, workload: str, rows: Mapping[str, LatencyRow], best: str) -> doc.Group:
    """The rows of one workload: measured ones by their median, then the others with their reason."""
    items, tokens = report.items.get(workload), report.tokens.get(workload)
    size = []
    if items is not None and "sentence" not in workload:
        size.append(f"{count(items)} item{'' if items == 1 else 's'}")
    if tokens is not None:
        size.append(f"{count(tokens)} real tokens")
    lines = (_row(runtime, row, runtime == best) for runtime, row in by_median(rows))
    return doc.Group(tuple(lines), (workload, doc.Span(f" {', '.join(size)}", "quiet")) if size else workload, workload)


def section(report: LatencyReport | None, parity: ParityReport | None, folder: str, more: str) -> Iterator[doc.Block]:
    """The charts, the table and how it was measured.

    Args:
        parity: The fastest runtime that passed is highlighted in the table.
        folder: The artifact folder, quoted for a shell.
        more: The command that times more sizes.
    """
    if report is None:
        yield doc.pending(f"attnport bench {folder}")
        return
    yield doc.Text(("Time relative to ", doc.Name(report.baseline), " in the same run; below 1 is faster."))
    yield doc.Ratios(report)
    right = {workload: runtime for workload, (runtime, _) in fastest_right(report, parity).items() if parity}
    absent = not_timed(report)
    never = without(absent, never_timed(report)) if len(report.shapes) > 1 else {}
    groups = []
    for workload, rows in report.shapes.items():
        shown = without((*never, *absent), rows)
        groups.append(_group(report, workload, shown, right.get(workload, "")))
    if never:
        skipped = (doc.Row((doc.Name(runtime), doc.Verdict("NOT_RUN")), why) for runtime, why in never.items())
        groups.append(doc.Group(tuple(skipped), "On no workload", "–"))
    yield doc.Table("Latency, throughput and memory by workload", _COLUMNS, tuple(groups), "Workload", "latency")
    if has_memory(report):
        yield doc.Text(MEMORY, "quiet")
    yield from _device(report)
    if any(timed_row.median_ns for rows in report.shapes.values() for timed_row in rows.values()):
        yield doc.Folded("Load, first call, tail", _cold(report))
    yield from sizes(report, more)
    if report.notes:
        yield doc.Bullets(report.notes)
    settings = {
        key: ("yes" if value else "no") if isinstance(value, bool) else str(value)
        for key, value in report.settings.items()
    }
    if settings:
        yield doc.Text("How it was measured", "label")
        yield doc.pairs(settings, "settings")
