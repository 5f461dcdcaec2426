"""The report of an artifact folder as a document: its head and its sections, from what the verbs found.

What is shown of the model, its forms and engines stands here too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from attnport.artifacts import (
    EngineRecord,
    FusionReport,
    LatencyReport,
    LayerReport,
    Manifest,
    ParityReport,
    PrecisionPlan,
    TuneReport,
)
from attnport.dims import values_of
from attnport.reporting import choice, fusion, latency, layers, parity
from attnport.reporting import document as doc
from attnport.reporting.choice import Choice
from attnport.reporting.document import interval, milliseconds
from attnport.reporting.facts import (
    absent,
    again,
    count,
    embed,
    failed,
    fastest_right,
    lacking,
    not_counted,
    not_run,
    of_absent,
    reference,
    tallies,
)

UNCHECKED = "numbers not checked"
_MOST_WORKLOADS = 4


@dataclass(frozen=True)
class Findings:
    """The results of verbs in a folder. None if a verb has not run; the report then says how to run it.

    Attributes:
        recommendation: What to embed; None = the report has no such section.
        maps: The attention weights; None = they were not asked for.
        environment: Facts about the machine and the time, by label.
        folder: The artifact folder.
        tuning: What `tune` tried; None = the report has no such section.
    """

    manifest: Manifest
    fusion: FusionReport | None = None
    parity: ParityReport | None = None
    latency: LatencyReport | None = None
    layers: LayerReport | None = None
    recommendation: Choice | None = None
    maps: doc.Maps | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "out/"
    tuning: TuneReport | None = None

    @property
    def quoted(self) -> str:
        """The folder, quoted for a shell."""
        return shlex.quote(self.folder)


def document(findings: Findings) -> doc.Document:
    """The report; stages that have not run are named with their command."""
    manifest = findings.manifest
    facts: tuple[doc.Line, ...] = (
        doc.Name(manifest.source.without_folders),
        f"opset {manifest.opset}",
        count(len(manifest.attentions), "attention"),
        *(f"{dim.name} {dim.span}" for dim in manifest.io.dims),
        *reference(manifest),
    )
    end = f"Made by attnport {manifest.attnport}."
    return doc.Document(manifest.name, facts, tuple(_head(findings)), _sections(findings), end)


def _sections(findings: Findings) -> tuple[doc.Section, ...]:
    """The sections of the report; stages that have not run are named with their command."""
    manifest, folder = findings.manifest, findings.quoted
    timed = [findings.latency, *(findings.tuning.latency.values() if findings.tuning else ())]
    baseline = next((report.baseline for report in timed if report), "")
    more = again(manifest, folder)[-1]
    not_here = list(absent(findings.parity, findings.latency))
    advised = [choice.section(findings.recommendation, baseline, not_here)] if findings.recommendation else []
    maps = findings.maps or doc.pending(f"attnport report {folder} --maps")
    return (
        *(doc.Section("recommendation", "Recommendation", blocks) for blocks in advised),
        doc.Section("fusion", "Fusion", fusion.section(manifest.attentions, findings.fusion, folder)),
        doc.Section("parity", "Parity", parity.section(findings.parity, folder)),
        doc.Section("layers", "Error by layer", layers.layers(findings.layers, folder)),
        doc.Section("latency", "Latency", latency.section(findings.latency, findings.parity, folder, more)),
        *([doc.Section("tuning", "Tuning", choice.tuned(findings.tuning, "page"))] if findings.tuning else []),
        doc.Section("attention", "Attention maps", (doc.Only("page", (maps,)),)),
        doc.Section("files", "Model and files", (doc.Only("page", _files(manifest, folder)),)),
        doc.Section("environment", "Environment", _environment(findings.environment, manifest)),
        doc.Section("next", "Run again, embed", _commands(manifest, folder)),
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


def _files(manifest: Manifest, folder: str) -> tuple[doc.Block, ...]:
    """Everything that a folder holds; `folder` is quoted for a shell."""
    return (*_contract(manifest, "Inputs and outputs"), _forms(manifest), _engines(manifest, folder))


def _forms(manifest: Manifest) -> doc.Block:
    """The ONNX files, one for each form."""
    if not manifest.forms:
        return doc.Text("Only the model as exported.", "pending")
    groups = doc.rows(
        (doc.Name(form.file), doc.Name(form.target), form.plan, str(form.opset), str(len(form.anchors)))
        for form in manifest.forms.values()
    )
    columns = (*doc.columns("file", "target", "precision plan"), *doc.numbers("opset", "attentions recognised"))
    return doc.Table("Lowered forms", columns, groups)


def _engines(manifest: Manifest, folder: str) -> doc.Block:
    """The TensorRT engines with their target, size and device memory."""
    if not manifest.engines:
        return doc.pending(f"attnport build {folder} --target tensorrt_rtx --precision fp16")
    groups = doc.rows(
        (
            doc.Name(engine.file),
            (doc.Name(engine.target), doc.Span(engine.version, "sub")),
            engine.plan,
            tuple(doc.Span(doc.Name(str(profile)), "sub") for profile in engine.profiles),
            engine.gpus,
            doc.mebibytes(engine.scratch_bytes),
            doc.mebibytes(engine.size_bytes),
            doc.Code(engine.digest[:12], engine.digest),
        )
        for engine in manifest.engines.values()
    )
    columns = doc.columns("file", "built by", "precision plan", "optimization profiles", "compute capability")
    columns += (*doc.numbers("scratch MiB", "size MiB"), *doc.columns("SHA-256"))
    return doc.Table("TensorRT engines", columns, groups)


def _contract(manifest: Manifest, title: str) -> tuple[doc.Block, ...]:
    """Inputs and outputs, with dynamic dims and masks."""
    rows = doc.rows(
        (
            doc.Name(spec.name),
            side,
            spec.dtype,
            doc.Code(f"[{', '.join(map(str, spec.dims))}]"),
            values_of(spec, manifest.io) or doc.NONE,
        )
        for side, specs in (("input", manifest.io.inputs), ("output", manifest.io.outputs))
        for spec in specs
    )
    table = doc.filled(doc.Table(title, doc.columns("name", "side", "type", "dims", "values"), rows))
    dims = doc.Text(f"dims, smallest:usual:largest: {', '.join(map(str, manifest.io.dims))}")
    return (table, dims) if manifest.io.dims else (table,)


def _environment(facts: Mapping[str, str], manifest: Manifest) -> tuple[doc.Block, ...]:
    """The machine that made the report, the versions at export, and when each stage ran."""
    stages = {
        key: f"{stage.made[:16].replace('T', ' ')}, {stage.seconds:.1f} s"
        for key, stage in manifest.stages.items()
        if key.partition(":")[0] != "report"
    }
    blocks: list[doc.Block] = []
    for label, values in (("This report", facts), ("Versions at export", manifest.versions), ("Stages, UTC", stages)):
        blocks += [doc.Text(label, "label"), doc.Pairs(tuple(values.items()), "settings")] if values else []
    return tuple(blocks)


def _commands(manifest: Manifest, folder: str) -> tuple[doc.Block, ...]:
    """How to make the folder again and how to embed it; `folder` is quoted for a shell."""
    return (
        doc.Commands(tuple(again(manifest, folder)), "Make it again, look closer"),
        doc.Commands(
            tuple(embed(folder)), "Embed it: a folder that needs its runtime and numpy alone, and checks itself"
        ),
    )


@doc.blocks.register(Manifest)
def exported(manifest: Manifest, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """The model that was exported."""
    yield from _contract(manifest, f"{manifest.name}: opset {manifest.opset}")
    if computed := [str(mask) for mask in manifest.io.masks if mask.input is None and mask.kinds != ("none",)]:
        yield doc.Text(f"computed masks: {', '.join(computed)}")
    yield doc.Text(f"{count(len(manifest.attentions), 'attention')} counted")


@doc.blocks.register(EngineRecord)
def engine(record: EngineRecord, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """One engine."""
    rows = [
        ("target", f"{record.target} {record.version}, {record.plan}"),
        ("compute capabilities", record.gpus),
        *(("profile", str(profile)) for profile in record.profiles),
        ("size", f"{record.size_bytes / 2**20:.1f} MiB"),
        ("scratch memory", "unknown" if record.scratch_bytes is None else f"{record.scratch_bytes / 2**20:.1f} MiB"),
    ]
    yield doc.Table(record.file, doc.columns("what", "value"), doc.rows(rows))
    if record.precision is not None:
        yield from _precision(record.precision)


def _precision(plan: PrecisionPlan) -> Iterator[doc.Block]:
    """The parts that stay in float32, and the error with and without them."""
    kept = f"{len(plan.islands) or 'none'} of {plan.parts} parts"
    if plan.islands:
        numbers = ("largest value", "without it")
        columns = doc.columns("part in fp32", "operators", *numbers, right=numbers, whole=numbers)
        rows = (
            (
                island.name,
                ", ".join(island.operators),
                f"{island.largest:.3g}",
                "not measured" if plan.capped and island.without is None else _share(island.without),
            )
            for island in plan.islands
        )
        yield doc.Table(f"{plan.half}, {kept} in fp32", columns, doc.rows(rows))
    else:
        yield doc.Text(f"{plan.half}: {kept} needs fp32")
    yield doc.Text(
        f"error: {_share(plan.share)} of the bound at a budget of {plan.budget:g}x; in {plan.half} alone "
        f"{_share(plan.share_of_half)}"
    )
    if plan.islands:
        yield from doc.quiet("without it: the error with that part alone in half precision too, of the bound")
    yield from doc.quiet(
        f"{count(plan.evaluations, 'graph')} run by {plan.evaluator} on {len(plan.cases)} "
        f"cases; tried on {plan.held_out} more"
    )
    if plan.capped:
        yield doc.Text("the search ended at its limit: the bound is kept, but fewer parts in fp32 may be enough")


def _share(share: float | None) -> str:
    return "NaN or Inf" if share is None else f"{share:.2f}x"
