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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnport import optional
from attnport.artifacts import MANIFEST
from attnport.errors import PRECEDENCE, AttnportError, UnavailableError, UsageError, whole_cause
from attnport.folder.machine import machine
from attnport.folder.trust import VARIABLE, passes, require
from attnport.folder.workspace import check_files, open_folder
from attnport.jsonfile import from_json, to_json
from attnport.machines import MachineResult, MachinesReport
from attnport.parity.evaluate import Progress
from attnport.reporting.facts import count
from attnport.sources.code import file_of_module
from attnport.sources.digests import is_own
from attnport.sources.file import is_file_name
from attnport.version import __version__

VERBS = ("check", "bench", "tune")
_CONNECT_S = 10.0
_METRIC = "metric"
"""The option that names a function in a file or in a Python module."""


@dataclass(frozen=True)
class Work:
    """What a machine is told.

    Attributes:
        verb: Of `VERBS`.
        version: Of attnport, here.
        files: A zip file with the artifact and with what paths in `options` name, each under the option's name.
        options: Arguments of the verb; a path is relative to what was unpacked.
        trusted: What `trust.passes` says of the artifact's source.
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
    progress: Progress = lambda message: None,
    **options: Any,
) -> MachinesReport:
    """Runs a verb for artifacts on every machine of a Ray cluster.

    A machine runs one artifact after another, and is given to each with all CPUs that Ray has of it. The artifact is
    sent there, with the files that options name; what the verb writes stays there, and is removed. attnport has to be
    installed there in this version. Code that a folder names is run there as here: where it was asked for, and only if
    it is the same code in the same place.

    Args:
        verb: `check`, `bench` or `tune`.
        folders: Artifact folders.
        address: As of `ray.init`: a cluster's, `auto` for the one that runs here, `local` for one of this machine.
        trust_source: As of the verb.
        options: Other arguments of the verb, by name.

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
        task = ray.remote(max_retries=0)(run_here)
        nodes = _nodes(ray)
        todo = {
            _task(ray, task, node).remote(work): (name, str(folder))
            for name, node in nodes.items()
            for work, folder in zip(sent, folders, strict=True)
        }
        progress(f"{verb} of {count(len(folders), 'artifact')} on {count(len(nodes), 'machine')}")
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
        with tempfile.TemporaryDirectory(prefix="attnport-machine-") as scratch, _trusting(work.trusted):
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
    files, told = {f"folder/{name}": folder / name for name in (*manifest.files, MANIFEST)}, {**options, "force": True}
    for name, value in options.items():
        path = _file_of(value) if name == _METRIC and value else value
        if not isinstance(path, Path):
            continue
        if not path.exists():
            raise UsageError(f"--{name} {path} does not exist.")
        files[f"{name}/{path.name}"] = path
        kept = Path(name, path.name)
        told[name] = f"{kept}:{value.rpartition(':')[2]}" if name == _METRIC else kept
    return Work(verb, __version__, str(folder), _packed(files), told, passes(manifest.source))


def _file_of(metric: str) -> Path | None:
    """The file of a metric, which is sent; None for one of an installed package, which has to be installed there."""
    place = metric.rpartition(":")[0]
    if is_file_name(place):
        return Path(place)
    file = file_of_module(place) if is_own(place) else None
    return Path(file) if file else None


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
    told = {name: root / value if isinstance(value, Path) else value for name, value in options.items()}
    metric = str(told.get(_METRIC) or "")
    return told | ({_METRIC: f"{root / metric}"} if is_file_name(metric.rpartition(":")[0]) else {})


@contextmanager
def _trusting(names: str) -> Iterator[None]:
    """Lets this process run the code that was asked for elsewhere; Ray gives it other work afterwards."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f"{before or ''} {names}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


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
    for node in sorted(alive, key=lambda node: (node["NodeManagerHostname"], node["NodeManagerPort"])):
        host = str(node["NodeManagerHostname"])
        same = sum(name == host or name.startswith(f"{host}#") for name in found)
        found[f"{host}#{same + 1}" if same else host] = node
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
