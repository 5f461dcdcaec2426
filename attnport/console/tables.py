"""How values are printed in a terminal: tables that fit 80 columns. Each function prints one value to a console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnport.console import cells
from attnport.console.parity_tables import show_parity as show_parity
from attnport.console.precision_tables import show_precision
from attnport.console.runtime_tables import able, show_attention_forms, show_libraries

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import (
        EngineRecord,
        FusionReport,
        FusionTable,
        LatencyRow,
        Manifest,
        ParityReport,
    )
    from attnport.pipeline.doctor import DoctorReport
    from attnport.pipeline.inspect import Inspection
    from attnport.pipeline.listing import Listing
    from attnport.pipeline.ship import ShipResult

_MOST_WORKLOADS = 3
_UNPROVEN = "-"  # a table with three workloads has no room for more
_GRAPH_WORDS = {"elements": "weights", "weights_bytes": "bytes of weights", "external": "weights are in"}


def show_ship(console: Console, result: ShipResult) -> None:
    """Stages, one row a runtime with everything that was found about it, and where to read on."""
    table = cells.table("stages", "stage", "status", "s", "result", right=("s",), whole=("stage", "status", "s"))
    for stage in result.stages:
        table.add_row(
            stage.stage, cells.verdict(stage.status), f"{stage.seconds:.1f}", cells.plain(cells.short(stage.detail))
        )
    console.print(table)
    if result.parity is not None:
        _show_verdicts(console, result, result.parity)
    choice = result.recommendation.choice if result.recommendation else None
    if choice is not None:
        console.print(f"fastest within the bound: {cells.plain(f'{choice.runtime}, {choice.plan}')}; to embed it:")
        console.print(f"  {cells.plain(choice.command)}", soft_wrap=True)
    end = "[green]shipped[/]" if not result.exit_code else f"[bold red]not shipped[/] (exit {result.exit_code})"
    console.print(f"{end}: {cells.plain(result.folder)}; read {cells.plain(result.folder)}/report.html")


def _show_verdicts(console: Console, result: ShipResult, parity: ParityReport) -> None:
    """The verdict table: numbers, fusion and speed of each runtime side by side."""
    latency = result.latency
    shapes = list(latency.shapes)[:_MOST_WORKLOADS] if latency else []
    columns = [re.sub(r"(^|,)\w+=", lambda found: "x" if found[1] else "", shape) + " ms" for shape in shapes]  # 8x128
    table = cells.table(
        f"verdict: {cells.verdict(parity.verdict)}",
        "runtime",
        "parity",
        "fused",
        *columns,
        right=("fused", *columns),
        whole=("runtime", "parity", "fused"),
    )
    for name, row in parity.runtimes.items():
        rows = [latency.shapes[shape].get(name) for shape in shapes] if latency else []
        proof = result.fusion.targets.get(name) if result.fusion else None
        fused = _UNPROVEN if proof and proof.proved_by is None else _fused(result.fusion, name)
        table.add_row(name, cells.verdict(row.verdict), fused, *map(_short_latency, rows))
    console.print(table)
    about = ["parity: errors against a float64 run of the module, within its bound or not"]
    if result.fusion is not None:
        what = "fused: attentions that one kernel of the runtime covers, proved, of those counted at export"
        about.append(f"{what}; {_UNPROVEN} where nothing here could prove it")
    if latency is not None:
        about.append(f"ms: median, and its ratio to {latency.baseline}; ~ where no difference was shown")
    for line in about:
        console.print(line, style="dim")
    notes = {name: row.reason for name, row in parity.runtimes.items() if row.verdict != "PASS" and row.reason}
    for name, row in parity.forms.items():
        if row.verdict != "PASS":
            notes[f"graph of {name}"] = f"{row.verdict}: {row.reason}"
    cells.notes(console, notes)
    passed = [name for name, row in parity.forms.items() if row.verdict == "PASS"]
    if passed:
        console.print(f"graphs of the lowered forms that pass: {cells.plain(', '.join(passed))}")


def _fused(fusion: FusionReport | None, runtime: str) -> str:
    table = fusion.targets.get(runtime) if fusion else None
    if table is None:
        return ""
    return f"[{'green' if table.fused == table.attentions else 'yellow'}]{table}[/]"


def _short_latency(row: LatencyRow | None) -> str:
    if row is None or row.median_ns is None:
        return ""
    ratio = "" if row.ratio is None else f" {'~' if row.verdict == 'no difference shown' else ''}{row.ratio[1]:.2f}x"
    return f"{row.median_ns / 1e6:.2f}{ratio}"


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


def show_fusion(console: Console, report: FusionReport) -> None:
    """One row a target; reasons stand below."""
    table = cells.table("fusion", "target", "fused", "kernel", "proved by", right=("fused",), whole=("target", "fused"))
    notes: dict[str, str] = {}
    for key, found in report.targets.items():
        reasons = dict.fromkeys(item.cost if item.fused else item.reason for item in found.items)
        reasons.pop("", None)
        table.add_row(
            key, _fused(report, key), cells.plain(_kernels(found) or "-"), cells.plain(found.proved_by or "-")
        )
        if reasons:
            notes[key] = "; ".join(reasons)
    console.print(table)
    cells.notes(console, notes)


def _kernels(table: FusionTable) -> str:
    return ", ".join(sorted({item.kernel for item in table.items if item.kernel}))


def show_engine_fusion(console: Console, table: FusionTable) -> None:
    """One line: how many attentions an engine fuses, and in which kernels."""
    kernels = _kernels(table)
    console.print(f"{table} attentions fused{f': {cells.plain(kernels)}' if kernels else ''}")


def show_fusion_explained(console: Console, report: FusionReport) -> None:
    """What happened to each attention on each target, and why."""
    from rich.padding import Padding

    for key, found in report.targets.items():
        console.print(f"[bold]{cells.plain(key)}[/] ({found.plan}, {cells.plain(found.file)}): {found}")
        for item in found.items:
            unfused = "[yellow]not proven[/]" if found.proved_by is None else "[yellow]not fused[/]"
            state = f"[green]fused[/] in {cells.plain(item.kernel)}" if item.fused else unfused
            console.print(f"  {cells.plain(item.attention)}: {state}")
            for line in filter(None, (f"form {item.form}; mask {item.mask}", item.cost, item.evidence or item.reason)):
                console.print(Padding(cells.plain(line), (0, 0, 0, 4)), style="dim")


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
