"""What verbs without a file of their own here print: each function makes the blocks for one kind of value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.console.precision_tables import show_precision
from attnport.reporting import document as doc
from attnport.reporting import machines
from attnport.reporting.facts import count

if TYPE_CHECKING:
    from attnport.artifacts import Capabilities, EngineRecord, Manifest
    from attnport.machines import MachinesReport
    from attnport.verbs.doctor import DoctorReport
    from attnport.verbs.listing import Listing


def show_manifest(manifest: Manifest) -> Iterator[doc.Block]:
    """The model that was exported."""
    rows = (
        (f"{spec.name} ({side})", spec.dtype, ", ".join(map(str, spec.dims)))
        for side, specs in (("in", manifest.io.inputs), ("out", manifest.io.outputs))
        for spec in specs
    )
    yield doc.Table(f"{manifest.name}: opset {manifest.opset}", doc.words("tensor", "dtype", "dims"), doc.rows(rows))
    yield doc.Text(f"dims: {'  '.join(map(str, manifest.io.dims))}")
    yield doc.Text(f"{count(len(manifest.attentions), 'attention')} counted")


def show_engine(record: EngineRecord) -> Iterator[doc.Block]:
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
        yield from show_precision(record.precision)


def show_listing(listing: Listing) -> Iterator[doc.Block]:
    """Names and descriptions."""
    yield doc.Table(listing.what, doc.words("name", "what it is"), doc.rows(listing.items.items()))


def show_machines(report: MachinesReport) -> Iterator[doc.Block]:
    """The tables of the page; why something failed is on stderr."""
    yield from machines.blocks(report)


def show_doctor(report: DoctorReport) -> Iterator[doc.Block]:
    """The machine, versions, runtimes, and problems with how to solve them."""
    machine = report.machine
    yield doc.Text(f"attnport {report.attnport}, Python {machine.python}, {machine.platform}")
    yield doc.Text(f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB")
    gpus = ", ".join(f"{gpu.name} (SM {gpu.sm})" for gpu in machine.gpus) or f"none: {machine.gpu_note}"
    yield doc.Text(f"GPU: {gpus}")
    rows: list[tuple[doc.Line, ...]] = []
    for runtime in report.runtimes:
        state = doc.Verdict("yes", "pass") if runtime.available else doc.Verdict("no", "miss")
        why = f"{runtime.reason.rstrip('.')}; {runtime.hint}" if runtime.hint else runtime.reason
        rows.append((runtime.runtime, state, runtime.version, why or _able(runtime)))
    can = "what it can do, or why it is not available and how to get it"
    yield doc.Table("runtimes", doc.words("runtime", "there", "version", can), doc.rows(rows))
    for runtime in report.runtimes:
        wants = (f"{runtime.runtime} wants {name}: {path or 'not found'}" for name, path in runtime.libraries.items())
        yield doc.Commands(tuple(wants))
    packages = ((name, version or doc.Verdict("not installed", "miss")) for name, version in report.packages.items())
    yield doc.Table("packages", doc.words("package", "version"), doc.rows(packages))
    for problem in report.problems:
        yield doc.Text((doc.Span("problem", "fail"), f": {problem.what}"))
        for line in problem.mend:
            yield doc.Text(f"  {line}")
    if not report.problems:
        yield doc.Text("No problem found.")
    yield from cells.quiet("kept until the machine or a package changes; ask again: attnport doctor --refresh")


def _able(runtime: Capabilities) -> str:
    """Devices, precision plans and the newest opset of an available runtime."""
    opset = f"opset {runtime.max_opset}" if runtime.max_opset else ""
    return "; ".join(filter(None, (", ".join(runtime.devices), ", ".join(runtime.plans), opset)))
