"""`attnport doctor`: shows what is installed, what it can do here, and the commands that solve problems."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from attnport import registry
from attnport.artifacts import Capabilities
from attnport.folder.machine import Machine, machine, normal, version, versions
from attnport.options import Note, Option, Progress
from attnport.printed import Printed
from attnport.processes import isolated
from attnport.reporting import document as doc
from attnport.runtimes import base
from attnport.runtimes._ort import ONNX_RUNTIMES
from attnport.verbs._arguments import verb
from attnport.version import __version__

_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Problem:
    """A problem of the installation, and the commands that solve it, in order."""

    what: str
    mend: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class DoctorReport(Printed):
    """The report of `attnport doctor`.

    Attributes:
        packages: Version by distribution name, of what attnport requires (None = not installed), then of what the
            runtimes that are installed consist of.
        runtimes: Each runtime's probe; a runtime that is not available has a reason and the command that installs it.
        targets: The names of all lowering targets.
    """

    schema: Literal["attnport/doctor/2"] = field(default="attnport/doctor/2", kw_only=True)
    attnport: str
    machine: Machine
    packages: Mapping[str, str | None]
    runtimes: tuple[Capabilities, ...]
    targets: tuple[str, ...]
    problems: tuple[Problem, ...]


@verb
def doctor(
    folder: Annotated[
        Path | None, Note("The folder whose free disk space is measured; default: the current folder.")
    ] = None,
    *,
    refresh: Annotated[bool, Option("Probe every runtime again; kept answers are otherwise believed.")] = False,
    progress: Progress = lambda message: None,
) -> DoctorReport:
    """Examines this installation and this machine."""
    wanted = requirements()
    packages = {name: version(name) for name in _required(wanted)} | versions(base.distributions(base.names()))
    installed = {name: version(name) for name in ONNX_RUNTIMES} | packages
    progress("probing every runtime, which takes up to a minute the first time")
    every = [base.get(name) for name in base.names()]
    # A runtime that crashes, hangs or raises is listed as not available, with its last output.
    runtimes = tuple(isolated.probe_all(every, isolated.Limits(_TIMEOUT_S), refresh=refresh).values())
    return DoctorReport(
        attnport=__version__,
        machine=machine(folder),
        packages=packages,
        runtimes=runtimes,
        targets=tuple(registry.names("attnport.exporter.targets")),
        problems=(
            *onnxruntime_problems(installed),
            *tensorrt_problems(installed, runtimes),
            *version_problems(installed, wanted),
        ),
    )


def onnxruntime_problems(installed: Mapping[str, str | None]) -> tuple[Problem, ...]:
    """Problems if two ONNX Runtime wheels are installed, or one lost its files when another was uninstalled.

    Two in different folders of the module path (`pip install --target`) are none if the one that is imported is whole.
    """
    wheels = [name for name in ONNX_RUNTIMES if installed.get(name)]
    wanted = "onnxruntime-gpu" if "onnxruntime-gpu" in wheels else "onnxruntime"
    mend = (f"pip uninstall -y {' '.join(wheels)}", f"pip install {wanted}")
    module = importlib.util.find_spec("onnxruntime") if wheels else None
    # After another wheel was uninstalled, the folder has no __init__.py, and imports as an empty namespace.
    whole = module is not None and module.origin is not None
    folders = {str(importlib.metadata.distribution(name).locate_file("")) for name in wheels}
    if len(wheels) > 1 and not (whole and len(folders) == len(wheels)):
        versions = " and ".join(f"{name} {installed[name]}" for name in wheels)
        return (Problem(f"{versions} are both installed and overwrite each other's files.", mend),)
    if wheels and not whole:
        return (Problem(f"{wheels[0]} {installed[wheels[0]]} is installed, but its files are gone.", mend),)
    return ()


def tensorrt_problems(installed: Mapping[str, str | None], runtimes: Sequence[Capabilities]) -> tuple[Problem, ...]:
    """The problem if onnxruntime-gpu's TensorRT provider wants another major release of TensorRT than is installed."""
    got = installed.get("tensorrt-cu13")
    for runtime in runtimes:
        for name, path in runtime.libraries.items():
            wants = name.removeprefix("libnvinfer.so.")
            if runtime.runtime == "ort_tensorrt" and not path and wants.isdecimal() and got:
                what = (
                    f"tensorrt-cu13 {got} is installed, but the TensorRT provider of onnxruntime-gpu wants {name}: "
                    "ort_tensorrt does not start. Only tensorrt runs with the release that is there; for ort_tensorrt, "
                    "make an environment without attnport's extra tensorrt, and install there:"
                )
                return (Problem(what, (f'pip install "tensorrt-cu13=={wants}.*"',)),)
    return ()


def requirements() -> list[str]:
    """The requirements in the metadata of the installed attnport, with those of extras."""
    try:
        return importlib.metadata.requires("attnport") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _required(requirements: Sequence[str]) -> list[str]:
    """The distributions that attnport requires, those of its extras for runtimes and models included."""
    return list(
        dict.fromkeys(
            normal(one.name)
            for one in map(Requirement, requirements)
            if not one.name.startswith("attnport")
            if not any(f'extra == "{extra}"' in str(one.marker) for extra in ("dev", "fuzz"))
        )
    )


def version_problems(installed: Mapping[str, str | None], wanted: Sequence[str]) -> tuple[Problem, ...]:
    """Problems of packages of releases that attnport does not accept; packages that are not installed are left out.

    Args:
        installed: Version by distribution name.
        wanted: Requirements such as `torch>=2.11` or `onnxruntime>=1.26; extra == "cpu"`.
    """
    problems = []
    for one in map(Requirement, wanted):
        got, needs = installed.get(normal(one.name)), f"{normal(one.name)}{one.specifier}"
        with suppress(InvalidVersion):
            if got and not one.specifier.contains(Version(got), prereleases=True):
                what = f"{normal(one.name)} {got} is installed; attnport needs {needs}."
                problems.append(Problem(what, (f'pip install "{needs}"',)))
    return tuple(problems)


@doc.blocks.register(DoctorReport)
def _blocks(report: DoctorReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
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
    yield doc.Table("runtimes", doc.columns("runtime", "there", "version", can), doc.rows(rows))
    for runtime in report.runtimes:
        wants = (f"{runtime.runtime} wants {name}: {path or 'not found'}" for name, path in runtime.libraries.items())
        yield doc.Commands(tuple(wants))
    packages = ((name, version or doc.Verdict("not installed", "miss")) for name, version in report.packages.items())
    yield doc.Table("packages", doc.columns("package", "version"), doc.rows(packages))
    for problem in report.problems:
        yield doc.Text((doc.Span("problem", "fail"), f": {problem.what}"))
        for line in problem.mend:
            yield doc.Text(f"  {line}")
    if not report.problems:
        yield doc.Text("No problem found.")
    yield from doc.quiet("kept until the machine or a package changes; ask again: attnport doctor --refresh")


def _able(runtime: Capabilities) -> str:
    """Devices, precision plans and the newest opset of an available runtime, and what else its trial showed."""
    opset = f"opset {runtime.max_opset}" if runtime.max_opset else ""
    details = (f"{name}: {text}" for name, text in runtime.details.items())
    return "; ".join(filter(None, (", ".join(runtime.devices), ", ".join(runtime.plans), opset, *details)))
