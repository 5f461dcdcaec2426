"""The latency section: charts of the ratios, then every number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attnport.artifacts import LatencyReport, LatencyRow, ParityReport
from attnport.reporting.along import sizes
from attnport.reporting.chart import chart, domain, legend
from attnport.reporting.facts import by_median, fastest_right, never_timed, ran
from attnport.reporting.markup import Html, details, el, join, name, number, over_numbers, pending, row, table, verdict
from attnport.reporting.measures import count, megabytes, milliseconds, significant
from attnport.reporting.timings import CACHED, DEVICE, KEPT, MEMORY, PARTS, has_cached, has_memory, on_device, ratio

_NUMBERS = ("Median ms", "p90 ms", "Ratio", "Interval", "Items/s", "Tokens/s", "Peak MB")
_COLD = ("Load ms", "First call ms", "p99 ms", "Warm-up calls", "Samples")
_MOST_CHARTS = 12
_HEAD = ("Runtime", "Verdict", *over_numbers(*_NUMBERS), "Ran")


def _row(runtime: str, found: LatencyRow, best: bool) -> Html:
    if found.median_ns is None:
        why = el("td", el("span", found.reason, class_="why"), colspan=len(_HEAD) - 2)
        return row(name(runtime), verdict(found.verdict), why, class_="skipped")
    kind = {"faster": "v pass", "slower": "v miss"}.get(found.verdict, "v plain")
    return row(
        name(runtime),
        join(
            (el("span", found.verdict, class_=kind), el("span", found.reason, class_="why") if found.reason else None)
        ),
        number(milliseconds(found.median_ns), data_best=best and found.verdict in ("faster", "baseline")),
        number(milliseconds(found.p90_ns)),
        *map(number, ratio(found.ratio, found.verdict)),
        number(significant(found.items_per_s)),
        number(significant(found.tokens_per_s)),
        number(megabytes(found.peak_bytes)),
        ran(found.ran),
    )


def _cold(report: LatencyReport) -> Html:
    """What a fresh process takes, and how the median was come by; starts from a cache where any runtime has one."""
    cached = has_cached(report)
    head = [*_COLD[:2], *(CACHED if cached else ()), *_COLD[2:]]
    bodies = []
    for workload, rows in report.shapes.items():
        lines = [
            row(
                name(runtime),
                number(milliseconds(found.load_ns)),
                number(milliseconds(found.first_ns)),
                *(number(milliseconds(again)) for again in (found.cached_load_ns, found.cached_first_ns) if cached),
                number(milliseconds(found.p99_ns)),
                number(found.warm_calls),
                number(len(found.samples_ns)),
            )
            for runtime, found in by_median(rows)
            if found.median_ns is not None
        ]
        bodies += [_group(workload, lines, len(head) + 1)] if lines else []
    caption = "Load and first call of a fresh process, packages imported; p99, warm-up and samples of the warm one"
    return join(
        (
            el("p", KEPT) if cached else None,
            table(caption, ["Runtime", *over_numbers(*head)], bodies),
        )
    )


def _device(report: LatencyReport) -> Html | None:
    """What events on a device timed; None where none did."""
    found = on_device(report)
    if not found:
        return None
    compared = any(item.device_ratio for rows in found.values() for _, item in rows)
    head = ["Runtime", *over_numbers(*PARTS.values(), *(("Ratio", "Interval") if compared else ()))]
    bodies = [
        _group(
            workload,
            (
                row(
                    name(runtime),
                    *(number(milliseconds(item.parts_ns.get(part))) for part in PARTS),
                    *(map(number, ratio(item.device_ratio, item.verdict)) if compared else ()),
                )
                for runtime, item in rows
            ),
            len(head),
        )
        for workload, rows in found.items()
    ]
    return join((el("p", DEVICE), table("Parts of a call on the device, medians by workload", head, bodies)))


def _group(title: object, lines: Iterable[Html], columns: int = len(_HEAD)) -> Html:
    heading = el("th", title, scope="rowgroup", colspan=columns)
    return el("tbody", el("tr", heading, class_="group"), *lines)


def _body(report: LatencyReport, workload: str, rows: Mapping[str, LatencyRow], best: str) -> Html:
    """The rows of one workload: measured ones by their median, then the others with their reason."""
    items, tokens = report.items.get(workload), report.tokens.get(workload)
    size = []
    if items is not None and "sentence" not in workload:
        size.append(f"{count(items)} item{'' if items == 1 else 's'}")
    if tokens is not None:
        size.append(f"{count(tokens)} real tokens")
    title = join((workload, el("span", f" {', '.join(size)}", class_="quiet") if size else None))
    never = never_timed(report)
    return _group(
        title,
        (_row(runtime, found, runtime == best) for runtime, found in by_median(rows) if runtime not in never),
    )


def section(report: LatencyReport | None, parity: ParityReport | None, folder: str, more: str) -> Html:
    """The charts, the table and how it was measured.

    Args:
        parity: Of those that passed, the fastest stands out in the table.
        folder: The artifact folder, as a shell takes it.
        more: The command that times further sizes.
    """
    if report is None:
        return pending(f"attnport bench {folder}")
    everything = [found for rows in report.shapes.values() for found in rows.values()]
    within = domain(everything)
    charts = [
        chart(workload, report.baseline, rows, within)
        for workload, rows in report.shapes.items()
        if any(found.ratio for found in rows.values())
    ]
    left_out = len(charts) - _MOST_CHARTS
    right = {workload: runtime for workload, (runtime, _) in fastest_right(report, parity).items() if parity}
    bodies = [_body(report, workload, rows, right.get(workload, "")) for workload, rows in report.shapes.items()]
    if never := never_timed(report):
        bodies.append(_group("On no workload", (_row(runtime, found, best=False) for runtime, found in never.items())))
    settings = []
    for key, value in report.settings.items():
        said = ("yes" if value else "no") if isinstance(value, bool) else value
        settings.append(el("div", el("dt", key), el("dd", said)))
    return join(
        (
            el("p", "Time relative to ", name(report.baseline), " in the same run; left of 1 is faster."),
            el("div", *charts[:_MOST_CHARTS], class_="charts") if charts else None,
            el("p", f"{left_out} more workloads are in the table alone.", class_="quiet") if left_out > 0 else None,
            legend(report.baseline, [found.verdict for found in everything]) if charts else None,
            table(
                "Latency, throughput and memory by workload",
                _HEAD,
                bodies,
                class_="latency",
            ),
            el("p", MEMORY, class_="quiet") if has_memory(report) else None,
            _device(report),
            details("Load, first call, tail", _cold(report)) if any(found.median_ns for found in everything) else None,
            sizes(report, more),
            el("ul", *(el("li", note) for note in report.notes), class_="notes") if report.notes else None,
            el("p", "How it was measured", class_="label") if settings else None,
            el("dl", *settings, class_="settings") if settings else None,
        )
    )
