"""The latency section: charts of the ratios, then every number."""

from __future__ import annotations

from collections.abc import Mapping

from attnport.artifacts import LatencyReport, LatencyRow
from attnport.report.chart import chart, domain, legend
from attnport.report.markup import Html, el, join, name, number, over_numbers, pending, row, table, verdict
from attnport.report.measures import NONE, count, megabytes, milliseconds, significant
from attnport.report.parity import ran

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
        number(milliseconds(found.median_ns), data_best=best),
        number(milliseconds(found.p90_ns)),
        number(ratio),
        number(interval),
        number(significant(found.items_per_s)),
        number(significant(found.tokens_per_s)),
        number(megabytes(found.peak_bytes)),
        number(len(found.samples_ns)),
        ran(found.ran),
    )


def _body(report: LatencyReport, workload: str, rows: Mapping[str, LatencyRow]) -> Html:
    """The rows of one workload: measured ones by their median, then the others with their reason."""
    best = fastest(rows)
    ordered = sorted(rows.items(), key=lambda pair: (pair[1].median_ns is None, pair[1].median_ns or 0.0))
    items, tokens = report.items.get(workload), report.tokens.get(workload)
    size = ", ".join(
        part
        for part in (
            f"{count(items)} sentence{'' if items == 1 else 's'}"
            if items is not None and "sentence" not in workload
            else "",
            f"{count(tokens)} real tokens" if tokens is not None else "",
        )
        if part
    )
    title = el("th", workload, el("span", f" {size}", class_="quiet") if size else None)
    heading = el("tr", Html(title.replace("<th>", f'<th scope="rowgroup" colspan="{len(_HEAD)}">', 1)), class_="group")
    lines = [_row(runtime, found, best is not None and runtime == best[0]) for runtime, found in ordered]
    return el("tbody", heading, *lines)


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
    settings = []
    for key, value in report.settings.items():
        said = ("yes" if value else "no") if isinstance(value, bool) else value
        settings.append(el("div", el("dt", key.replace("_", " ")), el("dd", said)))
    return join(
        (
            el("p", "Time relative to ", name(report.baseline), " in the same run; left of 1 is faster."),
            el("div", *charts, class_="charts") if charts else None,
            legend(report.baseline, [found.verdict for found in everything]) if charts else None,
            table(
                "Latency, throughput and memory by workload",
                _HEAD,
                [_body(report, workload, rows) for workload, rows in report.shapes.items()],
                class_="latency",
            ),
            el("p", "How it was measured", class_="label") if settings else None,
            el("dl", *settings, class_="settings") if settings else None,
        )
    )
