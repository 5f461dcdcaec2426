"""The sections about the files of a folder, what they were made with, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from attnport.artifacts import Manifest
from attnport.reporting import document as doc
from attnport.reporting.facts import again, embed
from attnport.reporting.measures import NONE, count, megabytes


def forms(manifest: Manifest) -> doc.Block:
    """The ONNX files, one for each form."""
    if not manifest.forms:
        return doc.Text("Only the model as exported.", "pending")
    groups = doc.rows(
        (doc.Name(form.file), doc.Name(form.target), form.plan, str(form.opset), str(len(form.anchors)))
        for form in manifest.forms.values()
    )
    columns = (*doc.words("File", "Target", "Precision plan"), *doc.numbers("Opset", "Attentions recognised"))
    return doc.Table("Lowered forms", columns, groups)


def engines(manifest: Manifest, folder: str) -> doc.Block:
    """The TensorRT engines with their target, size and device memory."""
    if not manifest.engines:
        return doc.pending(f"attnport build {folder} --target tensorrt_rtx --dtype fp16")
    groups = doc.rows(
        (
            doc.Name(engine.file),
            (doc.Name(engine.target), doc.Span(engine.version, "sub")),
            engine.plan,
            tuple(doc.Span(doc.Name(str(profile)), "sub") for profile in engine.profiles),
            ", ".join(f"SM{sm}" for sm in engine.sm) or "the builder’s default list",
            megabytes(engine.scratch_bytes),
            megabytes(engine.size_bytes),
            doc.Code(engine.digest[:12], engine.digest),
        )
        for engine in manifest.engines.values()
    )
    columns = doc.words("File", "Built by", "Precision plan", "Optimization profiles", "Compute capability")
    columns += (*doc.numbers("Scratch MB", "Size MB"), *doc.words("SHA-256"))
    return doc.Table("TensorRT engines", columns, groups)


def contract(manifest: Manifest) -> tuple[doc.Block, ...]:
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
    table = doc.Table("Inputs and outputs", doc.words("Name", "Side", "Type", "Dims", "Mask"), groups)
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
