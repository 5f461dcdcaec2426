"""`check`, `bench` and `tune` on every machine of a Ray cluster: each is a task there, on a copy of the artifact."""

from __future__ import annotations

import importlib
import io
import logging
import os
import signal
import socket
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attnport import optional
from attnport.artifacts import MANIFEST, LatencyReport, ParityReport, TuneReport
from attnport.errors import PRECEDENCE, AttnportError, UnavailableError, UsageError, whole_cause
from attnport.folder.loading import VARIABLE, passes, require
from attnport.folder.machine import machine
from attnport.folder.workspace import check_files, open_folder
from attnport.jsonfile import from_json, to_json
from attnport.printed import Printed
from attnport.reporting import document as doc
from attnport.sources.file import is_file_name
from attnport.version import __version__

VERBS = ("check", "bench", "tune")
_CONNECT_S = 10.0


@dataclass(frozen=True)
class MachineResult:
    """One artifact on one machine.

    Attributes:
        machine: Its name in the cluster.
        folder: The artifact folder, as it was named.
        cpu: Its processor; "" where nothing could be run, and likewise 0 for `cores`.
        cores: Its physical cores.
        exit_code: With which the verb would end there.
        error: Why it is not 0, and how to fix it.
        report: None where the verb ended before there was one.
    """

    machine: str
    folder: str
    cpu: str
    cores: int
    exit_code: int
    error: str
    report: ParityReport | LatencyReport | TuneReport | None


@dataclass(frozen=True, repr=False)
class MachinesReport(Printed):
    """A verb's results by machine, and for each machine by artifact.

    Attributes:
        verb: `check`, `bench` or `tune`.
        exit_code: The first of `errors.PRECEDENCE` that a result has; 0 if none has one.
    """

    schema: Literal["attnport/machines/1"] = field(default="attnport/machines/1", kw_only=True)
    verb: str
    exit_code: int
    results: tuple[MachineResult, ...]


@dataclass(frozen=True)
class Work:
    """What a machine is told.

    Attributes:
        version: Of attnport, here.
        files: A zip file with the artifact and with what paths in `options` name, each under the option's name.
        options: Arguments of the verb; a path is relative to what was unpacked.
        trusted: What `folder.loading.passes` returns for the artifact's source: the code that may be run there.
    """

    verb: str
    version: str
    folder: str
    files: bytes
    options: Mapping[str, Any]
    trusted: str


def on_machines(
    verb: str,
    folders: Sequence[Path],
    address: str,
    *,
    trust_source: bool = False,
    progress: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> MachinesReport:
    """Runs a verb for artifacts on every machine of a Ray cluster.

    A machine runs one artifact after another, and is given to each with all CPUs that Ray has of it. The artifact is
    sent there, with the files that options name; what the verb writes stays there, and is removed. attnport has to be
    installed there in this version, and so has the package of a metric that is named as a module. Code that a folder
    names is run there as here: where it was asked for, and only if it is the same code in the same place.

    Args:
        address: As of `ray.init`: a cluster's, `auto` for the one that runs here, `local` for one of this machine.

    Raises:
        ArtifactError, IntegrityError, SpecError: as the verb, for what is known before it is sent.
        MissingDependency: Ray is not installed.
        UnavailableError: there is no cluster at the address, or no machine in it.
        UsageError: a file that an option names is not there.
    """
    if verb not in VERBS:
        raise UsageError(f"verb {verb!r}: expected one of {', '.join(VERBS)}.")
    works = [_work(verb, folder, trust_source, options) for folder in folders]
    found = []
    with _cluster(address) as ray:
        sent = [ray.put(work) for work in works]
        task = ray.remote(max_retries=0, max_calls=1)(run_here)  # a process for each, which trusts this source alone
        nodes = _nodes(ray)
        todo = {
            _task(ray, task, node).remote(work): (name, str(folder))
            for name, node in nodes.items()
            for work, folder in zip(sent, folders, strict=True)
        }
        progress(f"{verb}: folders: {len(folders)}, machines: {len(nodes)}")
        left = list(todo)
        while left:
            done, left = ray.wait(left)
            name, folder = todo[done[0]]
            found.append(_result(ray, done[0], name, folder))
            progress(f"{name} is done with {folder}; {len(left)} left")
    order = list(todo.values())
    found.sort(key=lambda result: order.index((result.machine, result.folder)))
    codes = {result.exit_code for result in found}
    return MachinesReport(verb, next((code for code in PRECEDENCE if code in codes), 0), tuple(found))


def run_here(work: Work) -> str:
    """Runs a verb on this machine. Returns a MachineResult as JSON, to which the caller adds the machine's name."""
    here = machine()
    result = MachineResult("", work.folder, here.cpu, here.cores, 0, "", None)
    try:
        if work.version != __version__:
            raise UnavailableError(f"attnport {__version__} is installed there, {work.version} here.")
        verb: Any = importlib.import_module(f"attnport.verbs.{work.verb}")
        os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')} {work.trusted}".strip()
        with tempfile.TemporaryDirectory(prefix="attnport-machine-") as scratch:
            with zipfile.ZipFile(io.BytesIO(work.files)) as packed:
                packed.extractall(scratch)
            report = getattr(verb, work.verb)(Path(scratch, "folder"), **_unpacked(work.options, Path(scratch)))
        result = replace(result, report=report)
        if hasattr(verb, "raise_for"):
            verb.raise_for(report, work.options.get("runtimes") or ())
    except AttnportError as err:
        result = replace(result, exit_code=err.exit_code, error=f"{err.message} {err.hint}".strip())
    return to_json(result)


def _work(verb: str, folder: Path, trust_source: bool, options: Mapping[str, Any]) -> Work:
    """What is sent for one artifact, once it is known to be whole and that its code may be run.

    With `force`, as a report in the folder may be of this machine, or of another with the same processor.
    """
    manifest = open_folder(folder)
    check_files(folder, manifest)
    require(manifest.source, given=trust_source)
    files = {f"folder/{name}": folder / name for name in (*manifest.files, MANIFEST)}
    sent = {**options, "force": True}
    for name, value in options.items():
        place, _, function = str(value).rpartition(":") if name == "metric" else ("", "", "")
        path = Path(place) if is_file_name(place) else value
        if not isinstance(path, Path):
            continue
        if not path.exists():
            raise UsageError(f"--{name} {path} does not exist.")
        files[f"{name}/{path.name}"] = path
        sent[name] = Path(name, f"{path.name}:{function}" if function else path.name)
    return Work(verb, __version__, str(folder), _packed(files), sent, passes(manifest.source))


def _packed(paths: Mapping[str, Path]) -> bytes:
    """A zip file of files and folders."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", strict_timestamps=False) as packed:
        for name, path in paths.items():
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    packed.write(file, Path(name, file.relative_to(path)))
    return data.getvalue()


def _unpacked(options: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The options, with paths of this machine."""
    here = {name: root / value if isinstance(value, Path) else value for name, value in options.items()}
    return here | ({"metric": str(here["metric"])} if here.get("metric") else {})


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, connected; a connection that was there before stays."""
    ray: Any = optional.require("ray")
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster for one command reports to nobody
    handler = signal.getsignal(signal.SIGTERM)
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        if port.isdecimal():  # Ray itself asks for minutes
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        with suppress(ValueError):  # not the main thread, whose handler Ray leaves alone
            signal.signal(signal.SIGTERM, handler)
    except (OSError, OverflowError, RuntimeError, ValueError) as err:
        raise UnavailableError(
            f"--ray {address}: there is no cluster: {whole_cause(err)}",
            hint="Give the address that `ray start --head` printed, auto for the cluster of this machine, or local.",
        ) from err
    try:
        yield ray
    finally:
        ray.shutdown()


def _nodes(ray: Any) -> dict[str, Mapping[str, Any]]:
    """Machines that compute, by their name: the host's, and its number where a host has several."""
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if not alive:
        raise UnavailableError("the cluster has no machine with a CPU for Ray's tasks.")
    found: dict[str, Mapping[str, Any]] = {}
    nodes_of: Counter[str] = Counter()
    for node in sorted(alive, key=lambda node: (node["NodeManagerHostname"], node["NodeManagerPort"])):
        host = str(node["NodeManagerHostname"])
        nodes_of[host] += 1
        found[f"{host}#{nodes_of[host]}" if nodes_of[host] > 1 else host] = node
    return found


def _task(ray: Any, task: Any, node: Mapping[str, Any]) -> Any:
    """The task on one machine and no other, with all of its CPUs."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return task.options(num_cpus=node["Resources"]["CPU"], scheduling_strategy=strategy)


def _result(ray: Any, done: Any, name: str, folder: str) -> MachineResult:
    """What a task found, or how it ended."""
    try:
        return replace(from_json(MachineResult, ray.get(done), f"what {name} answered"), machine=name)
    except ray.exceptions.RayError as err:
        cause = getattr(err, "cause", None)
        bug = isinstance(err, ray.exceptions.RayTaskError) and not isinstance(cause, ImportError)
        why = whole_cause(cause or err)
        return MachineResult(name, folder, "", 0, 1 if bug else UnavailableError.exit_code, why, None)


@doc.blocks.register(MachinesReport)
def _blocks(report: MachinesReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """The tables of each machine and artifact, each after the other."""
    for result in report.results:
        yield doc.Text(f"{result.machine}, {result.folder}", "strong")
        if result.cpu:
            yield doc.Text(f"{result.cpu}, {result.cores} cores", "quiet")
        if result.error:
            yield doc.Text(result.error, "fail")
        if result.report is not None:
            yield from doc.blocks(result.report, detail)
