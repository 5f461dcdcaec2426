"""The header of the page: the model, the verdicts, and what to embed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap

from attnport.artifacts import FusionReport, FusionTable, LatencyReport, Manifest, ParityReport
from attnport.reporting import absences
from attnport.reporting.absences import absent
from attnport.reporting.facts import UNCHECKED, count, failed, fastest_right, not_counted, not_run, reference, tallies
from attnport.reporting.markup import Html, el, join, name, text, verdict
from attnport.reporting.measures import milliseconds
from attnport.reporting.recommendation import Recommendation

_MOST_WORKLOADS = 4


def _card(title: str, *children: object) -> Html:
    return el("section", el("h2", title), *children, class_="card")


def _waiting(command: str) -> Html:
    return join((el("p", "not run yet", class_="big quiet"), el("p", el("code", command))))


def _parity(report: ParityReport | None, folder: str) -> Html:
    if report is None:
        return _card("Parity", _waiting(f"attnport check {folder}"))

    return _card(
        "Parity",
        el("p", verdict(report.verdict), class_="big"),
        *(el("p", line) for line in tallies(report)),
        el("p", "Outside: ", join((name(key) for key in failed(report)), ", ")) if failed(report) else None,
    )


def _fusion(report: FusionReport | None, folder: str) -> Html:
    if report is None:
        return _card("Attention fused", _waiting(f"attnport fuse {folder}"))
    if not report.targets:
        return _card("Attention fused", el("p", "no target", class_="big quiet"))
    rows = [el("div", el("dt", name(target)), el("dd", total(table))) for target, table in report.targets.items()]
    return _card("Attention fused", el("dl", *rows, class_="tally"))


def total(table: FusionTable) -> Html:
    """`6/6`, marked as met, missed or not proven."""
    met = table.fused == table.attentions
    return el("span", str(table), class_="v skip" if table.proved_by is None else "v pass" if met else "v miss")


def _latency(report: LatencyReport | None, parity: ParityReport | None, folder: str) -> Html:
    """The fastest runtime of each workload, of those that passed parity, and those not counted, with reasons."""
    if report is None:
        return _card("Fastest", _waiting(f"attnport bench {folder}"))
    rows = []
    best = fastest_right(report, parity)
    for workload, (runtime, winner) in list(best.items())[:_MOST_WORKLOADS]:
        if winner.ratio is None:
            value, shown = text("the baseline itself"), True
        else:
            low, mid, high = winner.ratio
            interval = el("span", f"[{low:.2f}, {high:.2f}]", class_="quiet")
            shown = winner.verdict in ("faster", "slower")
            value = join((el("b" if shown else "span", f"{mid:.2f}×"), " ", interval))
        rows.append(
            el(
                "div",
                el("dt", name(runtime), el("span", f"{workload}, {milliseconds(winner.median_ns)} ms", class_="sub")),
                el("dd", value, None if shown else el("span", winner.verdict, class_="sub")),
            )
        )
    left_out = not_counted(report, parity)
    reasons = [join((*(join((name(key), ", ")) for key in keys), why)) for why, keys in left_out.items()]
    others = el("p", "Not counted: ", join(reasons, "; "), class_="quiet") if reasons else None
    if not rows:
        message = "none of those that passed parity was timed" if left_out else "nothing measured"
        return _card("Fastest", el("p", message, class_="big quiet"), others)
    unchecked = el("p", el("span", UNCHECKED, class_="v miss")) if parity is None else None
    note = el("p", "Time relative to ", name(report.baseline), ", with its interval", class_="quiet")
    left = len(best) - len(rows)
    more = el("p", el("a", f"{left} more workloads", href="#latency"), class_="quiet") if left else None
    return _card("Fastest", el("dl", *rows, class_="tally"), unchecked, note, others, more)


def _advice(recommendation: Recommendation | None) -> Html | None:
    """The recommendation in a line; its reasons are in their section."""
    if recommendation is None:
        return None
    if recommendation.choice is None:
        line = el(
            "p", "nothing: ", recommendation.reason, ". ", el("a", "What would change that", href="#recommendation")
        )
    else:
        choice = recommendation.choice
        line = el(
            "p",
            el("b", name(choice.runtime), f", {choice.plan}"),
            ": ",
            join(map(name, choice.files), " and "),
            "; to embed it: ",
            el("code", choice.command),
            " ",
            el("a", "Why", href="#recommendation"),
        )
    return el("section", el("h2", "To deploy"), line, class_="notrun advised")


def _not_run(parity: ParityReport | None, latency: LatencyReport | None) -> Html | None:
    """What did not run, in a line that opens to show why, and one for all that this machine lacks."""
    shown = {join(map(name, reasons), ", "): reasons} if (reasons := not_run(parity, latency)) else {}
    shown |= {text(absences.line(list(lacking))): lacking} if (lacking := absent(parity, latency)) else {}
    if not shown:
        return None
    return el("section", el("h2", "Not run"), el("div", *starmap(_folded, shown.items())), class_="notrun")


def _folded(summary: Html, reasons: Mapping[str, str]) -> Html:
    items = (el("div", el("dt", name(key)), el("dd", reason)) for key, reason in reasons.items())
    return el("details", el("summary", summary), el("dl", *items))


def header(
    manifest: Manifest,
    fusion: FusionReport | None,
    parity: ParityReport | None,
    latency: LatencyReport | None,
    advice: Recommendation | None,
    folder: str,
) -> Html:
    """Name and origin of the model, the verdicts, what to embed, and what was not run."""
    facts = [
        name(manifest.source.text),
        f"opset {manifest.opset}",
        count(len(manifest.attentions), "attention"),
        *(f"{dim.name} {dim.span}" for dim in manifest.io.dims),
        *reference(manifest),
    ]
    return el(
        "header",
        el("p", "attnport report", class_="kicker"),
        el("h1", manifest.name),
        el("p", join(facts, " · "), class_="origin"),
        el("div", _parity(parity, folder), _fusion(fusion, folder), _latency(latency, parity, folder), class_="cards"),
        _advice(advice),
        _not_run(parity, latency),
    )
