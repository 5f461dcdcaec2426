"""Fusion: whether each attention is fused on each target, and the evidence."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attnport.artifacts import FusionItem, FusionReport, FusionTable, SourceAttention
from attnport.reporting import document as doc
from attnport.reporting.document import NONE
from attnport.reporting.facts import count

UNPROVEN = "not proven"
FUSED = "Fused means that one runtime kernel covers it from QKᵀ to PV."
EVIDENCE_CHARS = 6000
"""Longer evidence is cut in the page; `fusion.json` has all of it."""
INLINE_REASON_CHARS = 90


@doc.blocks.register(FusionReport)
def fusion(report: FusionReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """A row for each target, with reasons below; from `whole` on, what happened to each attention, and why."""
    if detail != "brief":
        yield from _explained(report)
        return

    def reasons_of(table: FusionTable) -> str:
        reasons = (item.cost if item.fused else item.reason for item in table.items)
        return "; ".join(filter(None, dict.fromkeys((*reasons, *_of_padding(table)))))

    columns = doc.columns("target", "fused", "kernel", "proved by", right=("fused",), whole=("target", "fused"))
    rows = (
        doc.Row((doc.Name(target), total(table), _kernels(table) or NONE, table.proved_by or NONE), reasons_of(table))
        for target, table in report.targets.items()
    )
    yield doc.Table("fusion", columns, (doc.Group(tuple(rows)),))
    if any(table.proved_by is None for table in report.targets.values()):
        yield from doc.quiet(
            f"{UNPROVEN}: nothing here can run the form and tell its kernels; NOT_RUN is that of its numbers"
        )


@doc.blocks.register(FusionTable)
def fusion_of_one(table: FusionTable, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """One line: how many attentions an engine fuses, and in which kernels."""
    kernels = _kernels(table)
    yield doc.Text(f"{table} attentions fused{f': {kernels}' if kernels else ''}")


def total(table: FusionTable) -> doc.Verdict:
    """`6/6`, marked as met, missed or not proven."""
    met = table.fused == table.attentions
    return doc.Verdict(str(table), "pass" if met else "skip" if table.proved_by is None else "miss")


def _kernels(table: FusionTable) -> str:
    return ", ".join(sorted({item.kernel for item in table.items if item.kernel}))


def _of_padding(table: FusionTable) -> tuple[str, ...]:
    """A line for each padding mask: whether the form computes padding, and why."""
    return tuple(
        f"computes padding: {reason}" if reason else f"only real tokens of {mask}; outputs are zero for padding"
        for mask, reason in table.padding.items()
    )


def _state(item: FusionItem, table: FusionTable) -> doc.Line:
    """Whether an attention is fused, and in what."""
    if item.fused:
        return (doc.Verdict("fused", "pass"), " in ", doc.Span(doc.Name(item.kernel or NONE), "kernel"))
    return doc.Verdict(UNPROVEN, "skip") if table.proved_by is None else doc.Verdict("not fused", "miss")


def _explained(report: FusionReport) -> Iterator[doc.Block]:
    """A line for each attention of each target, with what is known of it below."""
    for target, table in report.targets.items():
        yield doc.Text((doc.Span(target, "strong"), f" ({table.plan}, {table.file}): {table}"))
        yield doc.Bullets(tuple(doc.Span(line, "quiet") for line in _of_padding(table)))
        told = [
            (_state(item, table), f"form {item.form}; mask {item.mask}", item.cost, item.reason) for item in table.items
        ]
        for (state, *known), pairs in itertools.groupby(zip(told, table.items, strict=True), key=lambda pair: pair[0]):
            first, *others = [item for _, item in pairs]
            yield doc.Bullets(((doc.together([item.attention for item in (first, *others)]), ": ", state),))
            if first.evidence:
                known[-1] = f"of {first.attention}: {first.evidence}" if others else first.evidence
            yield doc.Bullets(tuple(doc.Span(line, "quiet") for line in known if line), level=2)


def section(attentions: Sequence[SourceAttention], report: FusionReport | None, folder: str) -> Iterator[doc.Block]:
    """The table of attentions by targets, the reasons, and the evidence on demand; `folder` is quoted for a shell."""
    if report is None:
        yield doc.pending(f"attnport fuse {folder}")
        return
    yield doc.Text(f"{count(len(attentions), 'attention')} counted in the torch graph at export. {FUSED}")
    if not report.targets:
        yield doc.Text("No target was lowered.", "pending")
        return
    notes = _notes(report)
    targets = [({item.attention: item for item in table.items}, table) for table in report.targets.values()]
    cells = (
        (
            doc.Name(attention.name),
            _masks(attention.name, report),
            *(_cell(items.get(attention.name), notes, table) for items, table in targets),
        )
        for attention in attentions
    )
    columns = doc.columns("attention", "mask", *(_heading(target, table) for target, table in report.targets.items()))
    yield doc.Table("Attentions by target", columns, doc.rows(doc.merged(cells)), style="fusion")
    if notes:
        yield doc.Text("Notes", "label")
        yield doc.Bullets(tuple(notes), anchor="fusion-note")
    told = tuple(
        (doc.Name(key), "; ".join(_of_padding(table))) for key, table in report.targets.items() if table.padding
    )
    if told:
        yield doc.Text("Padding", "label")
        yield doc.Pairs(told, "reasons")
    evidence = (_evidence(target, table) for target, table in report.targets.items())
    yield doc.Only("page", tuple(filter(None, evidence)))
    yield doc.Only("markdown", (doc.Text(("The evidence is in ", doc.Name("fusion.json"), ".")),))


def _notes(report: FusionReport) -> dict[str, int]:
    """The reasons listed below the table, with their numbers: those that are long or that several cells share."""
    reasons = Counter(
        item.reason for target in report.targets.values() for item in target.items if not item.fused and item.reason
    )
    below = [reason for reason, count in reasons.items() if count > 1 or len(reason) > INLINE_REASON_CHARS]
    return {reason: number for number, reason in enumerate(below, start=1)}


def _shared(table: FusionTable) -> str:
    """The form of all attentions of a target, to show once in the heading; "" if they differ."""
    forms = {item.form for item in table.items}
    return forms.pop() if len(forms) == 1 else ""


def _masks(attention: str, report: FusionReport) -> doc.Line:
    """The mask of an attention; if targets have different ones, each with its targets."""
    targets_by_mask: dict[str, list[str]] = {}
    for target, table in report.targets.items():
        for item in table.items:
            if item.attention == attention and item.mask:
                targets_by_mask.setdefault(item.mask, []).append(target)
    if len(targets_by_mask) < 2:
        return doc.Name(next(iter(targets_by_mask), NONE))
    return tuple(doc.Span(f"{mask} ({', '.join(targets)})", "sub") for mask, targets in targets_by_mask.items())


def _cell(item: FusionItem | None, notes: Mapping[str, int], table: FusionTable) -> doc.Line:
    """The state of one attention on one target."""
    if item is None:
        return doc.Span("not in this form", "quiet")
    below = [item.form] * (item.form != _shared(table)) + [item.cost] * item.fused
    how = tuple(doc.Span(line, "how") for line in below if line)
    if item.fused:
        return (_state(item, table), *how)
    why: doc.Line = doc.Span(item.reason or "no reason was given: please report this", "why")
    if item.reason in notes:
        number = notes[item.reason]
        why = doc.Span(f"note {number}", link=f"#fusion-note-{number}")
    return (_state(item, table), " ", why, *how)


def _evidence(target: str, table: FusionTable) -> doc.Folded | None:
    """The evidence for one target, with equal evidence together."""
    grouped: dict[str, list[FusionItem]] = {}
    for item in table.items:
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
    return doc.Folded(("Evidence for ", doc.Name(target), ", from ", doc.Name(table.proved_by or NONE)), tuple(blocks))


def _heading(target: str, table: FusionTable) -> doc.Line:
    by = table.proved_by
    lines: tuple[doc.Line, ...] = (
        f"{UNPROVEN} here" if by is None else f"{table.fused} of {table.attentions} fused",
        _shared(table),
        table.plan if by is None else (f"{table.plan}, proved by ", doc.Name(by)),
    )
    return (doc.Name(target), *(doc.Span(line, "sub") for line in lines if line))
