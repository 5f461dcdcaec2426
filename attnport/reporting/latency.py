"""The latency section: charts of the ratios, then every number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.reporting.chart import chart, domain, legend
from attnport.reporting.markup import Html, el, join, name, number, over_numbers, pending, row, table, verdict
from attnport.reporting.measures import NONE, count, megabytes, milliseconds, significant
from attnport.reporting.parity import ran

_NUMBERS = ("Median ms", "p90 ms", "Ratio", "Interval", "Sentences/s", "Tokens/s", "Peak MB", "Samples")
_HEAD = ("Runtime", "Verdict", *over_numbers(*_NUMBERS), "Ran")


def fastest(rows: Mapping[str, LatencyRow]) -> tuple[str, LatencyRow] | None:
    """The runtime with the smallest median, or None where nothing was measured."""
    timed = [(runtime, found) for runtime, found in rows.items() if found.median_ns is not None]
    return min(timed, key=lambda pair: pair[1].median_ns or 0.0) if timed else None


def _row(runtime: str, found: LatencyRow, best: bool) -> Html:
    if found.median_ns is None:
        why = el("td", el("span", found.reason, class_="why"), colspan=len(_HEAD) - 2)
        return row(name(runtime), verdict(found.verdict), why, class_="skipped")
    ratio = f"{found.ratio[1]:.3f}" if found.ratio else "1" if found.verdict == "baseline" else NONE
    interval = NONE if found.ratio is None else f"{found.ratio[0]:.3f} to {found.ratio[2]:.3f}"
    kind = {"faster": "v pass", "slower": "v miss"}.get(found.verdict, "v plain")
    return row(
        name(runtime),
        join(
            (el("span", found.verdict, class_=kind), el("span", found.reason, class_="why") if found.reason else None)
        ),
        number(milliseconds(found.median_ns), data_best=best and found.verdict in ("faster", "baseline")),
        number(milliseconds(found.p90_ns)),
        number(ratio),
        number(interval),
        number(significant(found.items_per_s)),
        number(significant(found.tokens_per_s)),
        number(megabytes(found.peak_bytes)),
        number(len(found.samples_ns)),
        ran(found.ran),
    )


def _never(report: LatencyReport) -> dict[str, LatencyRow]:
    """The runtimes that no workload was measured on, for one and the same reason."""
    found: dict[str, list[LatencyRow]] = {}
    for rows in report.shapes.values():
        for runtime, row_ in rows.items():
            found.setdefault(runtime, []).append(row_)
    return {
        runtime: rows[0]
        for runtime, rows in found.items()
        if len(report.shapes) > 1
        and len(rows) == len(report.shapes)
        and all(row_.median_ns is None and row_.reason == rows[0].reason for row_ in rows)
    }


def _group(title: object, lines: Iterable[Html]) -> Html:
    heading = el("th", title, scope="rowgroup", colspan=len(_HEAD))
    return el("tbody", el("tr", heading, class_="group"), *lines)


def _body(report: LatencyReport, workload: str, rows: Mapping[str, LatencyRow]) -> Html:
    """The rows of one workload: measured ones by their median, then the others with their reason."""
    best = fastest(rows)
    ordered = sorted(rows.items(), key=lambda pair: (pair[1].median_ns is None, pair[1].median_ns or 0.0))
    items, tokens = report.items.get(workload), report.tokens.get(workload)
    size = []
    if items is not None and "sentence" not in workload:
        size.append(f"{count(items)} sentence{'' if items == 1 else 's'}")
    if tokens is not None:
        size.append(f"{count(tokens)} real tokens")
    title = join((workload, el("span", f" {', '.join(size)}", class_="quiet") if size else None))
    never = _never(report)
    return _group(
        title,
        (
            _row(runtime, found, best is not None and runtime == best[0])
            for runtime, found in ordered
            if runtime not in never
        ),
    )


def section(report: LatencyReport | None, folder: str) -> Html:
    """The charts, the table and how it was measured."""
    if report is None:
        return pending(f"attnport bench {folder}")
    everything = [found for rows in report.shapes.values() for found in rows.values()]
    within = domain(everything)
    charts = [
        chart(workload, report.baseline, rows, within)
        for workload, rows in report.shapes.items()
        if any(found.ratio for found in rows.values())
    ]
    bodies = [_body(report, workload, rows) for workload, rows in report.shapes.items()]
    if never := _never(report):
        bodies.append(_group("On no workload", (_row(runtime, found, best=False) for runtime, found in never.items())))
    settings = []
    for key, value in report.settings.items():
        said = ("yes" if value else "no") if isinstance(value, bool) else value
        settings.append(el("div", el("dt", key), el("dd", said)))
    return join(
        (
            el("p", "Time relative to ", name(report.baseline), " in the same run; left of 1 is faster."),
            el("div", *charts, class_="charts") if charts else None,
            legend(report.baseline, [found.verdict for found in everything]) if charts else None,
            table(
                "Latency, throughput and memory by workload",
                _HEAD,
                bodies,
                class_="latency",
            ),
            el("p", "How it was measured", class_="label") if settings else None,
            el("dl", *settings, class_="settings") if settings else None,
        )
    )
