"""What the verbs print that have no file of their own here: each function prints one value to a console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnport.console import cells
from attnport.console.precision_tables import show_precision
from attnport.console.runtime_tables import able, show_attention_forms, show_libraries

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import (
        EngineRecord,
        Manifest,
    )
    from attnport.verbs.doctor import DoctorReport
    from attnport.verbs.inspect import Inspection
    from attnport.verbs.listing import Listing

_GRAPH_WORDS = {"elements": "weights", "weights_bytes": "bytes of weights", "external": "weights are in"}


def show_manifest(console: Console, manifest: Manifest) -> None:
    """What was exported."""
    table = cells.table(f"{cells.plain(manifest.name)}: opset {manifest.opset}", "tensor", "dtype", "dims")
    for spec in manifest.io.inputs:
        table.add_row(f"{spec.name} (in)", spec.dtype, ", ".join(map(str, spec.dims)))
    for spec in manifest.io.outputs:
        table.add_row(f"{spec.name} (out)", spec.dtype, ", ".join(map(str, spec.dims)))
    console.print(table)
    console.print(f"dims: {cells.plain('  '.join(map(str, manifest.io.dims)))}")
    count = len(manifest.attentions)
    console.print(f"{count} attention{'' if count == 1 else 's'} counted")


def show_engine(console: Console, record: EngineRecord) -> None:
    """One engine."""
    table = cells.table(cells.plain(record.file), "what", "value")
    table.add_row("target", f"{record.target} {record.version}, {record.plan}")
    table.add_row("compute capabilities", ", ".join(map(str, record.sm)) or "the builder's default")
    for profile in record.profiles:
        table.add_row("profile", cells.plain(profile))
    table.add_row("size", f"{record.size_bytes / 2**20:.1f} MiB")
    table.add_row("scratch memory", f"{record.scratch_bytes / 2**20:.1f} MiB")
    console.print(table)
    if record.precision is not None:
        show_precision(console, record.precision)


def show_listing(console: Console, found: Listing) -> None:
    """Names and descriptions."""
    table = cells.table(found.what, "name", "what it is")
    for name, text in found.items.items():
        table.add_row(name, cells.plain(text))
    console.print(table)


def show_doctor(console: Console, found: DoctorReport) -> None:
    """The machine, versions, runtimes, and what would mend what is wrong."""
    machine = found.machine
    console.print(f"attnport {found.attnport}, Python {machine.python}, {cells.plain(machine.platform)}")
    console.print(f"{cells.plain(machine.cpu)}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB")
    gpus = ", ".join(f"{gpu.name} (SM {gpu.sm})" for gpu in machine.gpus) or f"none: {machine.gpu_note}"
    console.print(f"GPU: {cells.plain(gpus)}")
    table = cells.table(
        "runtimes", "runtime", "there", "version", "what it can do, or why it is not there and what brings it"
    )
    for runtime in found.runtimes:
        state = "[green]yes[/]" if runtime.available else "[yellow]no[/]"
        why = f"{runtime.reason.rstrip('.')}; {runtime.hint}" if runtime.hint else runtime.reason
        table.add_row(runtime.runtime, state, runtime.version, cells.plain(why or able(runtime)))
    console.print(table)
    show_libraries(console, found.runtimes)
    show_attention_forms(console, found.runtimes)
    packages = cells.table("packages", "package", "version")
    for name, version in found.packages.items():
        packages.add_row(name, version or "[yellow]not installed[/]")
    console.print(packages)
    for problem in found.problems:
        console.print(f"[bold red]problem[/]: {cells.plain(problem.what)}")
        for line in problem.mend:
            console.print(f"  {cells.plain(line)}")
    if not found.problems:
        console.print("No problem found.")


def show_inspection(console: Console, found: Inspection) -> None:
    """What a file or folder is."""
    table = cells.table(f"{found.kind} {cells.plain(found.path)}", "what", "value")
    for what, value in _facts(found):
        table.add_row(what, cells.plain(value))
    console.print(table)


def _facts(found: Inspection) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [("name", found.name), ("size", f"{found.size_bytes:,} bytes")]
    rows.append(("SHA-256", found.digest))
    if found.source:
        rows.append(("source", found.source))
    if found.io is not None:
        rows += [("input", spec) for spec in found.io.inputs] + [("output", spec) for spec in found.io.outputs]
        rows += [("dim", dim) for dim in found.io.dims] + [("mask", mask) for mask in found.io.masks]
    if found.graph is not None:
        rows += _graph_facts(found.graph, with_tensors=found.io is None)
    if found.engine is not None:
        rows.append(("TensorRT", found.engine.version))
        rows.append(("compute capabilities", ", ".join(map(str, found.engine.sm))))
    rows += [("precision", f"{name}: {text}") for name, text in found.precision.items()]
    rows += [("verdict", f"{name}: {verdict}") for name, verdict in found.verdicts.items()]
    if found.files:
        rows.append(("files", ", ".join(sorted(found.files))))
    return rows


def _graph_facts(graph: Any, *, with_tensors: bool) -> list[tuple[str, Any]]:
    import dataclasses

    rows: list[tuple[str, Any]] = []
    for field in dataclasses.fields(graph):
        value = getattr(graph, field.name)
        if not value or (field.name in ("inputs", "outputs") and not with_tensors):
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name or 'ai.onnx'} {count}" for name, count in value.items())
        elif isinstance(value, tuple | list):
            value = ", ".join(map(str, value))
        elif isinstance(value, int) and field.name != "ir_version":
            value = f"{value:,}"
        rows.append((_GRAPH_WORDS.get(field.name, field.name.replace("_", " ")), value))
    return rows
