"""The report of an artifact folder as a document: its head and its sections, from what the verbs found."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnport.artifacts import FusionReport, LatencyReport, LayerReport, Manifest, ParityReport, TuneReport
from attnport.reporting import choice, files, fusion, latency, layers, parity
from attnport.reporting import document as doc
from attnport.reporting.choice import Choice
from attnport.reporting.facts import (
    absent,
    again,
    count,
    failed,
    fastest_right,
    lacking,
    not_counted,
    not_run,
    of_absent,
    reference,
    tallies,
)
from attnport.reporting.heatmap import Heatmap
from attnport.reporting.measures import interval, milliseconds

UNCHECKED = "numbers not checked"
_MOST_WORKLOADS = 4


@dataclass(frozen=True)
class Findings:
    """The results of verbs in a folder. None if a verb has not run; the report then says how to run it.

    Attributes:
        recommendation: What to embed; None = the report has no such section.
        heatmaps: The attention weights for one sentence, an item for each attention.
        environment: Facts about the machine and the time, by label.
        folder: The artifact folder.
        sentence: The sentence, or a description of the inputs, for the heatmaps.
        heatmap_note: Why there are no heatmaps.
        tuning: What `tune` tried; None = the report has no such section.
    """

    manifest: Manifest
    fusion: FusionReport | None = None
    parity: ParityReport | None = None
    latency: LatencyReport | None = None
    layers: LayerReport | None = None
    recommendation: Choice | None = None
    heatmaps: Sequence[Heatmap] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "out/"
    sentence: str = ""
    heatmap_note: str = ""
    tuning: TuneReport | None = None

    @property
    def quoted(self) -> str:
        """The folder, quoted for a shell."""
        return shlex.quote(self.folder)


def document(findings: Findings) -> doc.Document:
    """The report; stages that have not run are named with their command."""
    manifest = findings.manifest
    facts: tuple[doc.Line, ...] = (
        doc.Name(manifest.source.text),
        f"opset {manifest.opset}",
        count(len(manifest.attentions), "attention"),
        *(f"{dim.name} {dim.span}" for dim in manifest.io.dims),
        *reference(manifest),
    )
    end = f"Made by attnport {manifest.attnport}."
    return doc.Document("attnport report", manifest.name, facts, tuple(_head(findings)), _sections(findings), end)


def _sections(findings: Findings) -> tuple[doc.Section, ...]:
    """The sections of the report; stages that have not run are named with their command."""
    manifest, folder = findings.manifest, findings.quoted
    timed = [findings.latency, *(findings.tuning.latency.values() if findings.tuning else ())]
    baseline = next((report.baseline for report in timed if report), "")
    more = again(manifest, folder)[-1]
    not_here = list(absent(findings.parity, findings.latency))
    advised = [choice.section(findings.recommendation, baseline, not_here)] if findings.recommendation else []
    maps = doc.Maps(findings.heatmaps, findings.sentence, findings.heatmap_note)
    return (
        *(doc.Section("recommendation", "Recommendation", blocks) for blocks in advised),
        doc.Section("fusion", "Fusion", fusion.section(manifest.attentions, findings.fusion, folder)),
        doc.Section("parity", "Parity", parity.section(findings.parity, folder)),
        doc.Section("layers", "Error by layer", layers.layers(findings.layers, folder)),
        doc.Section("latency", "Latency", latency.section(findings.latency, findings.parity, folder, more)),
        *([doc.Section("tuning", "Tuning", choice.tuned(findings.tuning, "page"))] if findings.tuning else []),
        doc.Section("attention", "Attention maps", (maps,)),
        doc.Section("files", "Model and files", (doc.Only("page", files.model(manifest, folder)),)),
        doc.Section("environment", "Environment", files.environment(findings.environment, manifest)),
        doc.Section("next", "Run again, embed", files.commands(manifest, folder)),
    )


def _head(findings: Findings) -> Iterator[doc.Block]:
    """A card each for parity, fusion and latency, then what to deploy and what was not run, and why."""
    folder = findings.quoted
    yield doc.Cards(
        (
            doc.Card("Parity", tuple(_parity(findings.parity, folder))),
            doc.Card("Attention fused", tuple(_fusion(findings.fusion, folder))),
            doc.Card("Fastest", tuple(_latency(findings.latency, findings.parity, folder))),
        )
    )
    if findings.recommendation is not None:
        yield doc.Only("page", (doc.Aside("To deploy", (_advice(findings.recommendation),), "advised"),))
    if left_out := tuple(_not_run(findings.parity, findings.latency)):
        yield doc.Aside("Not run", left_out)


def _waiting(command: str) -> Iterator[doc.Block]:
    yield doc.Text("not run yet", "big quiet")
    yield doc.Text(doc.Code(command))


def _parity(report: ParityReport | None, folder: str) -> Iterator[doc.Block]:
    if report is None:
        yield from _waiting(f"attnport check {folder}")
        return
    yield doc.Text(doc.Verdict(report.verdict), "big")
    for line in tallies(report):
        yield doc.Text(line)
    if wrong := failed(report):
        yield doc.Text(("Outside: ", doc.listed(map(doc.Name, wrong))))


def _fusion(report: FusionReport | None, folder: str) -> Iterator[doc.Block]:
    if report is None:
        yield from _waiting(f"attnport fuse {folder}")
    elif not report.targets:
        yield doc.Text("no target", "big quiet")
    else:
        yield doc.Pairs(tuple((doc.Name(key), fusion.total(table)) for key, table in report.targets.items()), "tally")


def _latency(report: LatencyReport | None, parity: ParityReport | None, folder: str) -> Iterator[doc.Block]:
    """The fastest runtime of each workload, of those that passed parity, and those not counted, with reasons."""
    if report is None:
        yield from _waiting(f"attnport bench {folder}")
        return
    best = fastest_right(report, parity)
    rows: list[tuple[doc.Line, doc.Line]] = []
    for workload, (name, row) in list(best.items())[:_MOST_WORKLOADS]:
        if row.ratio is None:
            value: doc.Line = "the baseline itself"
        elif row.verdict in ("faster", "slower"):
            value = doc.Span(interval(row.ratio), "strong")
        else:
            value = (interval(row.ratio), doc.Span(row.verdict, "sub"))
        rows.append(((doc.Name(name), doc.Span(f"{workload}, {milliseconds(row.median_ns)} ms", "sub")), value))
    left_out = not_counted(report, parity)
    if rows:
        yield doc.Pairs(tuple(rows), "tally")
        if parity is None:
            yield doc.Text(doc.Verdict(UNCHECKED, "miss"))
        yield doc.Text(("Time relative to ", doc.Name(report.baseline), ", with its interval"), "quiet")
    else:
        message = "none of those that passed parity was timed" if left_out else "nothing measured"
        yield doc.Text(message, "big quiet")
    if left_out:
        reasons = ((doc.listed(map(doc.Name, names)), f", {why}") for why, names in left_out.items())
        yield doc.Text(("Not counted: ", doc.listed(reasons, "; ")), "quiet")
    if more := len(best) - len(rows):
        yield doc.Text(doc.Span(f"{more} more workloads", link="#latency"), "quiet")


def _advice(advised: Choice) -> doc.Block:
    """The recommendation in a line; its reasons are in their section."""
    deploy = advised.deploy
    if deploy is None:
        why = doc.Span("What would change that", link="#recommendation")
        return doc.Text((f"nothing: {advised.reason}. ", why))
    files = doc.listed(map(doc.Name, deploy.files), " and ")
    why = doc.Span("Why", link="#recommendation")
    chosen = doc.Span((doc.Name(deploy.measured_as), f", {deploy.plan}"), "strong")
    return doc.Text((chosen, ": ", files, "; to embed it: ", *map(doc.Code, advised.commands), " ", why))


def _not_run(parity: ParityReport | None, latency: LatencyReport | None) -> Iterator[doc.Block]:
    """What did not run, in a line that opens to show why, and one for all that this machine lacks."""

    def folded(summary: doc.Line, reasons: Mapping[str, str]) -> doc.Block:
        return doc.Folded(summary, (doc.Pairs(tuple((doc.Name(key), why) for key, why in reasons.items())),))

    if reasons := not_run(parity, latency):
        yield folded(doc.listed(map(doc.Name, reasons)), reasons)
    if names := absent(parity, latency):
        yield doc.Only("page", (folded(of_absent(list(names)), names),))
        yield doc.Only("markdown", tuple(lacking(list(names))))
