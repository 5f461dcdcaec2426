"""The model and the files of a folder: its contract, forms and engines, what they were made with, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnport.artifacts import EngineRecord, Manifest, PrecisionPlan
from attnport.reporting import document as doc
from attnport.reporting.facts import again, embed
from attnport.reporting.facts import count as some
from attnport.reporting.measures import NONE, count, mebibytes


def model(manifest: Manifest, folder: str) -> tuple[doc.Block, ...]:
    """Everything that a folder holds; `folder` is quoted for a shell."""
    return (*_contract(manifest), _forms(manifest), _engines(manifest, folder))


def _forms(manifest: Manifest) -> doc.Block:
    """The ONNX files, one for each form."""
    if not manifest.forms:
        return doc.Text("Only the model as exported.", "pending")
    groups = doc.rows(
        (doc.Name(form.file), doc.Name(form.target), form.plan, str(form.opset), str(len(form.anchors)))
        for form in manifest.forms.values()
    )
    columns = (*doc.words("file", "target", "precision plan"), *doc.numbers("opset", "attentions recognised"))
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
            ", ".join(f"SM{sm}" for sm in engine.sm) or "the builder’s default list",
            mebibytes(engine.scratch_bytes),
            mebibytes(engine.size_bytes),
            doc.Code(engine.digest[:12], engine.digest),
        )
        for engine in manifest.engines.values()
    )
    columns = doc.words("file", "built by", "precision plan", "optimization profiles", "compute capability")
    columns += (*doc.numbers("scratch MiB", "size MiB"), *doc.words("SHA-256"))
    return doc.Table("TensorRT engines", columns, groups)


def _contract(manifest: Manifest) -> tuple[doc.Block, ...]:
    """Inputs and outputs, with dynamic dims and masks."""
    masks = {mask.input: str(mask) for mask in manifest.io.masks if mask.input}
    groups = doc.rows(
        (
            doc.Name(spec.name),
            side,
            spec.dtype,
            doc.Code(f"[{', '.join(map(str, spec.dims))}]"),
            masks.get(spec.name, NONE),
        )
        for side, specs in (("input", manifest.io.inputs), ("output", manifest.io.outputs))
        for spec in specs
    )
    dims = ", ".join(
        f"{dim.name} {count(dim.min)} to {count(dim.max)}" + (f" in steps of {dim.step}" if dim.step > 1 else "")
        for dim in manifest.io.dims
    )
    table = doc.Table("Inputs and outputs", doc.words("name", "side", "type", "dims", "mask"), groups)
    return (table, doc.Text(f"Dynamic dims: {dims}.")) if dims else (table,)


def environment(facts: Mapping[str, str], manifest: Manifest) -> tuple[doc.Block, ...]:
    """The machine that made the report, the versions at export, and when each stage ran."""
    stages = {
        key: f"{stage.made[:16].replace('T', ' ')}, {stage.seconds:.1f} s"
        for key, stage in manifest.stages.items()
        if key.partition(":")[0] != "report"
    }
    blocks: list[doc.Block] = []
    for label, values in (("This report", facts), ("Versions at export", manifest.versions), ("Stages, UTC", stages)):
        blocks += [doc.Text(label, "label"), doc.pairs(values, "settings")] if values else []
    return tuple(blocks)


def commands(manifest: Manifest, folder: str) -> tuple[doc.Block, ...]:
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
    rows = (
        (f"{spec.name} ({side})", spec.dtype, ", ".join(map(str, spec.dims)))
        for side, specs in (("in", manifest.io.inputs), ("out", manifest.io.outputs))
        for spec in specs
    )
    yield doc.Table(f"{manifest.name}: opset {manifest.opset}", doc.words("tensor", "dtype", "dims"), doc.rows(rows))
    yield doc.Text(f"dims: {'  '.join(map(str, manifest.io.dims))}")
    yield doc.Text(f"{some(len(manifest.attentions), 'attention')} counted")


@doc.blocks.register(EngineRecord)
def engine(record: EngineRecord, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """One engine."""
    rows = [
        ("target", f"{record.target} {record.version}, {record.plan}"),
        ("compute capabilities", ", ".join(map(str, record.sm)) or "the builder's default"),
        *(("profile", str(profile)) for profile in record.profiles),
        ("size", f"{record.size_bytes / 2**20:.1f} MiB"),
        ("scratch memory", "unknown" if record.scratch_bytes is None else f"{record.scratch_bytes / 2**20:.1f} MiB"),
    ]
    yield doc.Table(record.file, doc.words("what", "value"), doc.rows(rows))
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
        f"{some(plan.evaluations, 'graph')} run by {plan.evaluator} on {len(plan.cases)} "
        f"cases; tried on {plan.held_out} more"
    )
    if plan.capped:
        yield doc.Text("the search ended at its limit: the bound is kept, but fewer parts in fp32 may be enough")


def _share(share: float | None) -> str:
    return "NaN or Inf" if share is None else f"{share:.2f}x"
