"""The fusion section: what became of each attention on each target, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attnport.artifacts import FusionItem, FusionReport, FusionTable, SourceAttention
from attnport.reporting import document as doc
from attnport.reporting.facts import FUSED, count
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


def _masks(attention: str, report: FusionReport) -> doc.Line:
    """The mask of an attention; targets that see different ones are named."""
    found: dict[str, list[str]] = {}
    for target, table in report.targets.items():
        for item in table.items:
            if item.attention == attention and item.mask:
                found.setdefault(item.mask, []).append(target)
    if len(found) < 2:
        return doc.Name(next(iter(found), NONE))
    return tuple(doc.Span(f"{mask} ({', '.join(targets)})", "sub") for mask, targets in found.items())


def _cell(item: FusionItem | None, notes: Mapping[str, int], shared: str, *, proved: bool) -> doc.Line:
    """What one target made of one attention."""
    if item is None:
        return doc.Span("not in this form", "quiet")
    how = () if item.form == shared else (doc.Span(item.form, "how"),)
    if item.fused:
        cost = (doc.Span(item.cost, "how"),) if item.cost else ()
        return (doc.Verdict("FUSED", "pass"), " ", doc.Span(doc.Name(item.kernel or NONE), "kernel"), *how, *cost)
    why: doc.Line = doc.Span(item.reason or "no reason was given: please report this", "why")
    if item.reason in notes:
        number = notes[item.reason]
        why = doc.Span(f"note {number}", link=f"#fusion-note-{number}")
    return (doc.Verdict("NOT FUSED", "miss") if proved else doc.Verdict("NOT PROVEN", "skip"), " ", why, *how)


def _evidence(target: str, found: FusionTable) -> doc.Folded | None:
    """The proofs of one target, equal ones together."""
    grouped: dict[str, list[FusionItem]] = {}
    for item in found.items:
        if item.evidence:
            grouped.setdefault(item.evidence, []).append(item)
    if not grouped:
        return None
    blocks: list[doc.Block] = []
    for proof, items in grouped.items():
        shown = proof[:EVIDENCE_CHARS]
        cut = len(proof) - len(shown)
        more = f"\n… {cut} more characters in fusion.json" if cut else ""
        blocks += [
            doc.Text(doc.listed(doc.Name(item.attention) for item in items), "quiet"),
            doc.Commands((shown + more,)),
        ]
    return doc.Folded(("Evidence for ", doc.Name(target), ", from ", doc.Name(found.proved_by or NONE)), tuple(blocks))


def _heading(target: str, found: FusionTable) -> doc.Line:
    by = found.proved_by
    lines: tuple[doc.Line, ...] = (
        "not proven here" if by is None else f"{found.fused} of {found.attentions} fused",
        _shared(found),
        found.plan if by is None else (f"{found.plan}, proved by ", doc.Name(by)),
    )
    return (doc.Name(target), *(doc.Span(line, "sub") for line in lines if line))


def section(attentions: Sequence[SourceAttention], report: FusionReport | None, folder: str) -> Iterator[doc.Block]:
    """The table of attentions by targets, the reasons, and the evidence on demand."""
    if report is None:
        yield doc.pending(f"attnport fuse {folder}")
        return
    yield doc.Text(f"{count(len(attentions), 'attention')} counted in the torch graph at export. {FUSED}")
    if not report.targets:
        yield doc.Text("No target was lowered.", "pending")
        return
    # Attentions that a table names but the manifest does not still get a row: nothing is dropped silently.
    counted = [attention.name for attention in attentions]
    extra = {item.attention for found in report.targets.values() for item in found.items} - set(counted)
    notes = _notes(report)
    targets = [
        ({item.attention: item for item in found.items}, _shared(found), found.proved_by is not None)
        for found in report.targets.values()
    ]
    cells = (
        (
            doc.Name(attention),
            _masks(attention, report),
            *(_cell(items.get(attention), notes, shared, proved=proved) for items, shared, proved in targets),
        )
        for attention in (*counted, *sorted(extra))
    )
    columns = doc.words("Attention", "Mask", *(_heading(target, found) for target, found in report.targets.items()))
    evidence = filter(None, (_evidence(target, found) for target, found in report.targets.items()))
    yield doc.Table("Attentions by target", columns, doc.rows(cells), style="fusion", alike=True)
    if notes:
        yield doc.Text("Notes", "label")
        yield doc.Bullets(tuple(notes), anchor="fusion-note")
    yield doc.Only("page", tuple(evidence))
    yield doc.Only("markdown", (doc.Text(("The evidence is in ", doc.Name("fusion.json"), ".")),))
