"""The fusion section: what became of each attention on each target, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attnport.artifacts import FusionItem, FusionReport, FusionTable, SourceAttention
from attnport.reporting.facts import FUSED, count
from attnport.reporting.markup import Html, details, el, join, name, pending, row, table
from attnport.reporting.measures import NONE

EVIDENCE_CHARS = 6000
"""Evidence longer than this is cut in the page; `fusion.json` holds all of it."""
INLINE_REASON_CHARS = 90


def _notes(report: FusionReport) -> dict[str, int]:
    """The reasons that stand below the table, with their numbers: those that are long, or that many cells share."""
    reasons = Counter(
        item.reason for target in report.targets.values() for item in target.items if not item.fused and item.reason
    )
    below = [reason for reason, count in reasons.items() if count > 1 or len(reason) > INLINE_REASON_CHARS]
    return {reason: number for number, reason in enumerate(below, start=1)}


def _shared(found: FusionTable) -> str:
    """The form that all attentions of a target have, to be said once, in the heading; empty when they differ."""
    forms = {item.form for item in found.items}
    return forms.pop() if len(forms) == 1 else ""


def _masks(attention: str, report: FusionReport) -> Html:
    """The mask of an attention; targets that see different ones are named."""
    found: dict[str, list[str]] = {}
    for target, table_ in report.targets.items():
        for item in table_.items:
            if item.attention == attention and item.mask:
                found.setdefault(item.mask, []).append(target)
    if len(found) < 2:
        return el("td", name(next(iter(found), NONE)))
    return el("td", *(el("span", f"{mask} ({', '.join(targets)})", class_="sub") for mask, targets in found.items()))


def _cell(item: FusionItem | None, notes: Mapping[str, int], shared: str, *, proved: bool) -> Html:
    """What one target made of one attention."""
    if item is None:
        return el("td", el("span", "not in this form", class_="quiet"))
    how = None if item.form == shared else el("span", item.form, class_="how")
    if item.fused:
        cost = el("span", item.cost, class_="how") if item.cost else None
        kernel = el("span", name(item.kernel or NONE), class_="kernel")
        return el("td", el("span", "FUSED", class_="v pass"), kernel, how, cost)
    why: Html
    if item.reason in notes:
        number = notes[item.reason]
        why = el("a", f"note {number}", href=f"#fusion-note-{number}")
    else:
        why = el("span", item.reason or "no reason was given: please report this", class_="why")
    state = el("span", "NOT FUSED", class_="v miss") if proved else el("span", "NOT PROVEN", class_="v skip")
    return el("td", state, " ", why, how)


def _evidence(target: str, found: FusionTable) -> Html | None:
    """The proofs of one target, equal ones together."""
    grouped: dict[str, list[FusionItem]] = {}
    for item in found.items:
        if item.evidence:
            grouped.setdefault(item.evidence, []).append(item)
    if not grouped:
        return None
    blocks = []
    for proof, items in grouped.items():
        shown = proof[:EVIDENCE_CHARS]
        cut = len(proof) - len(shown)
        blocks.append(el("p", join((name(item.attention) for item in items), ", "), class_="quiet"))
        blocks.append(el("pre", shown, f"\n… {cut} more characters in fusion.json" if cut else None, tabindex="0"))
    summary = join(("Evidence for ", name(target), ", from ", name(found.proved_by or NONE)))
    return details(summary, *blocks)


def _heading(target: str, found: FusionTable) -> Html:
    by = found.proved_by
    lines: list[object] = [
        "not proven here" if by is None else f"{found.fused} of {found.attentions} fused",
        _shared(found),
        found.plan if by is None else join((f"{found.plan}, proved by ", name(by))),
    ]
    return join((name(target), *(el("span", line, class_="sub") for line in lines if line)))


def section(attentions: Sequence[SourceAttention], report: FusionReport | None, folder: str) -> Html:
    """The table of attentions by targets, the reasons, and the evidence on demand."""
    if report is None:
        return pending(f"attnport fuse {folder}")
    lead = el(
        "p",
        f"{count(len(attentions), 'attention')} counted in the torch graph at export. {FUSED}",
    )
    if not report.targets:
        return join((lead, el("p", "No target was lowered.", class_="pending")))
    # Attentions that a table names but the manifest does not still get a row: nothing is dropped silently.
    counted = [attention.name for attention in attentions]
    extra = {item.attention for found in report.targets.values() for item in found.items} - set(counted)
    notes = _notes(report)
    columns = [
        ({item.attention: item for item in found.items}, _shared(found), found.proved_by is not None)
        for found in report.targets.values()
    ]
    rows = [
        row(
            name(attention),
            _masks(attention, report),
            *(_cell(items.get(attention), notes, shared, proved=proved) for items, shared, proved in columns),
        )
        for attention in (*counted, *sorted(extra))
    ]
    head = ["Attention", "Mask", *(_heading(target, found) for target, found in report.targets.items())]
    reasons = [el("li", reason, id_=f"fusion-note-{number}") for reason, number in notes.items()]
    return join(
        (
            lead,
            table("Attentions by target", head, [el("tbody", *rows)], class_="fusion"),
            join((el("p", "Notes", class_="label"), el("ol", *reasons, class_="notes"))) if reasons else None,
            *(_evidence(target, found) for target, found in report.targets.items()),
        )
    )


def total(found: FusionTable) -> Html:
    """`6/6`, marked as met, missed or not proven."""
    met = found.fused == found.attentions
    return el("span", str(found), class_="v skip" if found.proved_by is None else "v pass" if met else "v miss")
