"""What the folder holds, what it was made with, and what to do with it next."""

from __future__ import annotations

from collections.abc import Mapping

from attnport.artifacts import Manifest
from attnport.reporting.facts import again, embed
from attnport.reporting.markup import Html, el, join, name, number, over_numbers, pending, row, table
from attnport.reporting.measures import NONE, count, megabytes


def forms(manifest: Manifest) -> Html:
    """The ONNX files, one a target."""
    if not manifest.forms:
        return el("p", "Only the model as exported.", class_="pending")
    rows = [
        row(
            name(form.file),
            name(form.target),
            form.plan,
            number(form.opset),
            number(len(form.anchors)),
        )
        for form in manifest.forms.values()
    ]
    head = ["File", "Target", "Precision plan", *over_numbers("Opset", "Attentions recognised")]
    return table("Lowered forms", head, [el("tbody", *rows)])


def engines(manifest: Manifest, folder: str) -> Html:
    """The TensorRT engines: for what, how large, and how much device memory they want."""
    if not manifest.engines:
        return pending(f"attnport build {folder} --target tensorrt_rtx --dtype fp16")
    rows = [
        row(
            name(engine.file),
            join((name(engine.target), el("span", engine.version, class_="sub"))),
            engine.plan,
            join(el("span", name(str(profile)), class_="sub") for profile in engine.profiles),
            ", ".join(f"SM{sm}" for sm in engine.sm) or "the builder’s default list",
            number(megabytes(engine.scratch_bytes)),
            number(megabytes(engine.size_bytes)),
            el("code", engine.digest[:12], title=engine.digest),
        )
        for engine in manifest.engines.values()
    ]
    head: list[object] = ["File", "Built by", "Precision plan", "Optimization profiles", "Compute capability"]
    head += [*over_numbers("Scratch MB", "Size MB"), "SHA-256"]
    return table("TensorRT engines", head, [el("tbody", *rows)])


def contract(manifest: Manifest) -> Html:
    """What goes in and comes out, with its dynamic dims and masks."""
    masks = {mask.input: str(mask) for mask in manifest.io.masks if mask.input}
    rows = [
        row(
            name(spec.name),
            side,
            spec.dtype,
            el("code", f"[{', '.join(map(str, spec.dims))}]"),
            masks.get(spec.name, NONE),
        )
        for side, specs in (("input", manifest.io.inputs), ("output", manifest.io.outputs))
        for spec in specs
    ]
    dims = ", ".join(f"{dim.name} {count(dim.min)} to {count(dim.max)}" for dim in manifest.io.dims)
    return join(
        (
            table("Inputs and outputs", ["Name", "Side", "Type", "Dims", "Mask"], [el("tbody", *rows)]),
            el("p", f"Dynamic dims: {dims}.") if dims else None,
        )
    )


def environment(facts: Mapping[str, str], manifest: Manifest) -> Html:
    """The machine that made the page, the versions at export, and when each stage ran."""

    def listing(label: str, values: Mapping[str, str]) -> Html | None:
        if not values:
            return None
        pairs = (el("div", el("dt", key), el("dd", value)) for key, value in values.items())
        return join((el("p", label, class_="label"), el("dl", *pairs, class_="settings")))

    stages = {
        key: f"{stage.made[:16].replace('T', ' ')}, {stage.seconds:.1f} s"
        for key, stage in manifest.stages.items()
        if key.partition(":")[0] != "report"
    }
    return join(
        (listing("This page", facts), listing("Versions at export", manifest.versions), listing("Stages, UTC", stages))
    )


def commands(manifest: Manifest, folder: str) -> Html:
    """How to make it again, how to embed it; `folder` as a shell takes it."""
    return join(
        (
            el("p", "Make it again, look closer", class_="label"),
            el("pre", "\n".join(again(manifest, folder)), tabindex="0"),
            el("p", "Embed it: a folder that needs its runtime and numpy alone, and checks itself", class_="label"),
            el("pre", "\n".join(embed(folder)), tabindex="0"),
        )
    )
