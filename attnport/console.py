"""How values are printed in a terminal: tables that fit 80 columns. Only `cli` uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attnport.artifacts import (
        EngineRecord,
        FusionReport,
        LatencyReport,
        Manifest,
        ParityReport,
        RuntimeParity,
    )
    from attnport.pipeline.doctor import DoctorReport
    from attnport.pipeline.inspect import Inspection
    from attnport.pipeline.listing import Listing
    from attnport.pipeline.ship import ShipResult
    from attnport.pipeline.verify import VerifyResult

WIDTH = 80
_COLOURS = {"PASS": "green", "FAIL": "bold red", "NOT_RUN": "yellow", "done": "green", "failed": "bold red"}


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal and console.width >= WIDTH else Console(highlight=False, width=WIDTH)


def _table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _plain(text: object) -> str:
    from rich.markup import escape

    return escape(str(text))


def _verdict(text: str) -> str:
    colour = _COLOURS.get(text)
    return f"[{colour}]{text}[/]" if colour else text


def show_ship(result: ShipResult) -> None:
    """Stages, then what they found."""
    console = _console()
    table = _table(f"attnport ship: {_plain(result.folder)}", "stage", "status", "s", "result", right=("s",))
    for stage in result.stages:
        table.add_row(stage.stage, _verdict(stage.status), f"{stage.seconds:.1f}", _plain(stage.detail))
    console.print(table)
    if result.fusion is not None:
        show_fusion(result.fusion)
    if result.parity is not None:
        show_parity(result.parity)
    if result.latency is not None:
        show_latency(result.latency)


def show_manifest(manifest: Manifest) -> None:
    """What was exported."""
    console = _console()
    table = _table(f"{_plain(manifest.name)}: opset {manifest.opset}", "tensor", "dtype", "dims")
    for spec in manifest.io.inputs:
        table.add_row(f"{spec.name} (in)", spec.dtype, ", ".join(map(str, spec.dims)))
    for spec in manifest.io.outputs:
        table.add_row(f"{spec.name} (out)", spec.dtype, ", ".join(map(str, spec.dims)))
    console.print(table)
    console.print(f"dims: {_plain('  '.join(map(str, manifest.io.dims)))}")
    console.print(f"{len(manifest.attentions)} attentions counted")


def show_fusion(report: FusionReport) -> None:
    """One row a target."""
    table = _table("fusion", "target", "fused", "kernel or reason", "proved by")
    for key, found in report.targets.items():
        kernels = sorted({item.kernel for item in found.items if item.kernel})
        reasons = [item.reason for item in found.items if not item.fused]
        text = ", ".join(kernels) if not reasons else "; ".join(dict.fromkeys(reasons))
        colour = "green" if found.fused == found.attentions else "yellow"
        table.add_row(key, f"[{colour}]{found.fused}/{found.attentions}[/]", _plain(text), _plain(found.proved_by))
    _console().print(table)


def show_fusion_explained(report: FusionReport) -> None:
    """What happened to each attention on each target, and why."""
    console = _console()
    for key, found in report.targets.items():
        console.print(f"[bold]{_plain(key)}[/] ({found.plan}, {_plain(found.file)}): {found.fused}/{found.attentions}")
        for item in found.items:
            state = f"[green]fused[/] in {_plain(item.kernel)}" if item.fused else "[yellow]not fused[/]"
            console.print(f"  {_plain(item.attention)}: {state}")
            console.print(f"    form {_plain(item.form)}; mask {_plain(item.mask)}", style="dim")
            console.print(f"    {_plain(item.evidence or item.reason)}", style="dim")


def show_parity(report: ParityReport) -> None:
    """One row a runtime and a lowered form, with the case that comes closest to its bound."""
    console = _console()
    title = f"parity against float64: {_verdict(report.verdict)}"
    table = _table(title, "runtime", "verdict", "precision", "cases", "worst", "reason", right=("cases", "worst"))
    _parity_rows(table, report.runtimes)
    console.print(table)
    forms = _table("graph parity of the lowered forms", "form", "verdict", "run on", "cases", "worst", "reason",
                   right=("cases", "worst"))  # fmt: skip
    _parity_rows(forms, report.forms)
    if report.forms:
        console.print(forms)
    console.print("worst: the largest error over its bound, over all cases and outputs; above 1 fails.", style="dim")
    for note in report.notes:
        console.print(f"note: {_plain(note)}", style="dim")


def _parity_rows(table: Table, rows: Mapping[str, RuntimeParity]) -> None:
    for name, row in rows.items():
        ran = f"{row.ran.provider} {row.ran.precision}" if row.ran else row.plan
        shares = [
            error / bound
            for case in row.cases
            for error, bound in ((case.rms_error, case.rms_bound), (case.max_error, case.max_bound))
            if error is not None and bound
        ]
        worst = f"{max(shares):.2f}" if shares else ""
        cases = str(len({case.case for case in row.cases})) if row.cases else ""
        table.add_row(name, _verdict(row.verdict), _plain(ran), cases, worst, _plain(row.reason))


def show_latency(report: LatencyReport) -> None:
    """One table a workload: medians, intervals of the ratio to the baseline, throughput, memory."""
    console = _console()
    for shape, rows in report.shapes.items():
        table = _table(f"latency: {_plain(shape)}", "runtime", "median ms", f"ratio to {report.baseline}", "items/s",
                       "tokens/s", "peak MiB", right=("median ms", "items/s", "tokens/s", "peak MiB"))  # fmt: skip
        for name, row in rows.items():
            if row.median_ns is None:
                table.add_row(name, _verdict("NOT_RUN"), _plain(row.reason), "", "", "")
                continue
            ratio = f"{row.ratio[1]:.2f} [{row.ratio[0]:.2f}, {row.ratio[2]:.2f}] {row.verdict}" if row.ratio else ""
            table.add_row(
                name,
                f"{row.median_ns / 1e6:.2f}",
                _plain(ratio or row.verdict),
                _number(row.items_per_s),
                _number(row.tokens_per_s),
                "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}",
            )
        console.print(table)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def show_engine(record: EngineRecord) -> None:
    """One engine."""
    console = _console()
    table = _table(_plain(record.file), "what", "value")
    table.add_row("target", f"{record.target} {record.version}, {record.plan}")
    table.add_row("compute capabilities", ", ".join(map(str, record.sm)) or "the builder's default")
    for profile in record.profiles:
        table.add_row("profile", _plain(profile))
    table.add_row("size", f"{record.size_bytes / 2**20:.1f} MiB")
    table.add_row("scratch memory", f"{record.scratch_bytes / 2**20:.1f} MiB")
    console.print(table)


def show_verify(result: VerifyResult) -> None:
    """One row a check."""
    note = " (unverified: parity was not run)" if result.unverified else ""
    table = _table(
        f"{result.kind} {_plain(result.path)}: {_verdict(result.verdict)}{note}", "check", "verdict", "detail"
    )
    for row in result.rows:
        table.add_row(_plain(row.check), _verdict(row.verdict), _plain(row.detail))
    _console().print(table)


def show_listing(found: Listing) -> None:
    """Names and descriptions."""
    table = _table(found.what, "name", "what it is")
    for name, text in found.items.items():
        table.add_row(name, _plain(text))
    _console().print(table)


def show_doctor(found: DoctorReport) -> None:
    """The machine, versions, runtimes, and what would mend what is wrong."""
    console = _console()
    machine = found.machine
    console.print(f"attnport {found.attnport}, Python {machine.python}, {_plain(machine.platform)}")
    console.print(f"{_plain(machine.cpu)}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB")
    gpus = ", ".join(f"{gpu.name} (SM {gpu.sm})" for gpu in machine.gpus) or f"none: {machine.gpu_note}"
    console.print(f"GPU: {_plain(gpus)}")
    table = _table("runtimes", "runtime", "available", "version", "reason, and what brings it")
    for runtime in found.runtimes:
        state = "[green]yes[/]" if runtime.available else "[yellow]no[/]"
        why = " ".join(filter(None, (runtime.reason, runtime.hint)))
        table.add_row(runtime.runtime, state, runtime.version, _plain(why))
    console.print(table)
    packages = _table("packages", "package", "version")
    for name, version in found.packages.items():
        packages.add_row(name, version or "[yellow]not installed[/]")
    console.print(packages)
    for problem in found.problems:
        console.print(f"[bold red]problem[/]: {_plain(problem.what)}")
        for line in problem.mend:
            console.print(f"  {_plain(line)}")
    if not found.problems:
        console.print("No problem found.")


def show_inspection(found: Inspection) -> None:
    """What a file or folder is."""
    console = _console()
    table = _table(f"{found.kind} {_plain(found.path)}", "what", "value")
    for what, value in _facts(found):
        table.add_row(what, _plain(value))
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
            value = ", ".join(f"{name} {count}" for name, count in value.items())
        elif isinstance(value, tuple | list):
            value = ", ".join(map(str, value))
        rows.append((field.name.replace("_", " "), value))
    return rows
