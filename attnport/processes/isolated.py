"""A session in a process of its own, so that a crash of the runtime does not end the caller; and probes likewise.

First the parent's side of a worker process: start, ask, kill. If it dies, the error has its last lines of output. While
a verb waits for an answer, it also looks at the time at which its work has to end, see `ending_at`.

Arrays are passed in files in a temporary folder, everything else in the worker's frames. What a probe found is kept, as
asking again takes seconds: packages are imported, and small graphs are run. A file in this user's cache is called
`probe.RUNTIME.DIGEST.json`. The digest covers everything that the answer depends on: the machine, the packages as they
are installed, the code that asks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import math
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnport_bundle
from attnport.artifacts import Capabilities, Manifest, Ran
from attnport.budget import free_memory_bytes
from attnport.errors import (
    ArtifactError,
    AttnportError,
    BundleError,
    FeedError,
    IntegrityError,
    NumbersOff,
    RuntimeMissing,
    SpecError,
    UnavailableError,
    UsageError,
)
from attnport.folder.machine import machine, versions
from attnport.jsonfile import digest_file, digest_text, from_json, to_json
from attnport.module_path import child_command, child_environment
from attnport.processes.worker import MAX_FRAME_BYTES, load_outputs, read_frame, save_feeds, write_frame
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime, physical_cores
from attnport.user_cache import cache

if TYPE_CHECKING:
    import numpy as np


WORKER: tuple[str, ...] = ("-m", "attnport.processes.worker")
_LAST_LINES = 5
_LOOK_S = 0.1
# Errors of a child that the parent raises under their own class; all others become ChildError.
_KINDS: dict[str, type[AttnportError]] = {
    kind.__name__: kind
    for kind in (
        *(ArtifactError, BundleError, FeedError, IntegrityError),
        *(NumbersOff, RuntimeMissing, SpecError, UnavailableError),
    )
}


class ChildError(AttnportError):
    """The worker died, did not answer in time, or answered with another error."""


class Died(ChildError):
    """The worker ended or ran out of memory, so that this runtime cannot be used any more, whatever the input."""


_KINDS["MemoryError"] = Died
_END_S: ContextVar[float] = ContextVar("end_s", default=math.inf)


class OutOfTime(BaseException):
    """The time is over. No `Exception`: as for Ctrl-C, no runtime's row may take it for a failure of its own."""


@contextlib.contextmanager
def ending_at(until_s: float | None) -> Iterator[None]:
    """Inside, `in_time` raises from `until_s` on, a time of `time.monotonic`; None = no limit."""
    before = _END_S.set(math.inf if until_s is None else until_s)
    try:
        yield
    finally:
        _END_S.reset(before)


def end_s() -> float:
    """When the time is over, of `time.monotonic`; infinity where there is no limit."""
    return _END_S.get()


def in_time() -> None:
    """Raises OutOfTime if the time is over."""
    if time.monotonic() > _END_S.get():
        raise OutOfTime


class Child:
    """One worker process.

    Attributes:
        alive: False once it died or was killed.
    """

    def __init__(
        self,
        threads: int,
        command: tuple[str, ...] | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """Starts the process in a session of its own, so that Ctrl-C reaches only the parent, which then kills it.

        Args:
            command: Arguments of Python; None = the worker.
            memory_bytes: The process is killed if it holds more, which is checked while the parent waits for an answer.
                None = no limit.
        """
        # Waiting threads must sleep, as another child may be timed on the same cores.
        environment = {
            **child_environment(),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "GOMP_SPINCOUNT": "0",
            "KMP_BLOCKTIME": "0",
        }
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed in kill)
        self._process = subprocess.Popen(
            child_command(*(WORKER if command is None else command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,
        )
        self.alive = True
        self._killed = False
        self._end = ""
        self._memory_bytes = memory_bytes
        self._killed_before = _killed_for_memory()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, op: str, **fields: Any) -> None:
        """Sends a request. Raises Died if the process is dead."""
        assert self._process.stdin is not None
        if not self.alive:
            raise Died(self._end or "it was ended")
        try:
            write_frame(self._process.stdin, {"op": op, **fields})
        except (OSError, ValueError) as err:
            raise self._died("it ended") from err

    def receive(self, timeout_s: float, listen: Callable[[str, str], None] = lambda kind, text: None) -> dict[str, Any]:
        """The answer to the last request.

        Args:
            timeout_s: How long to wait for the answer, and for each line before it.
            listen: Called with the kind and text of each line that the process sends before its answer.

        Raises:
            Died: the process died or ran out of memory; or it was killed, as it did not answer in time or took too much
                memory.
            ChildError: it answered with an error.
            AttnportError: it answered with an error of this class, such as a changed source or a damaged file.
            OutOfTime: the time of the verb is over; the process goes on.
        """
        while "said" in (answer := self._read(time.monotonic() + timeout_s)):
            listen(str(answer["kind"]), str(answer["said"]))
        if "error" in answer:
            kind = _KINDS.get(str(answer.get("kind")), ChildError)
            raise kind(str(answer["error"]), hint=str(answer.get("hint", "")))
        return answer

    def ask(
        self,
        op: str,
        timeout_s: float = 600.0,
        listen: Callable[[str, str], None] = lambda kind, text: None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Sends a request and waits for its answer; as `receive`."""
        self.send(op, **fields)
        return self.receive(timeout_s, listen)

    def kill(self) -> None:
        """Kills the process and those that it started, which may outlive it; killing it twice is fine."""
        self.alive = False
        if not self._killed:  # later, the number of its group may be that of another
            self._killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _read(self, deadline: float) -> dict[str, Any]:
        """Reads one frame, in pieces, since a child may die in the middle of a frame."""
        assert self._process.stdout is not None
        handle, data, wanted = self._process.stdout.fileno(), b"", 4
        while len(data) < wanted:
            self._wait(handle, deadline)
            piece = os.read(handle, min(wanted - len(data), 1 << 20))
            if not piece:
                raise self._died("it ended")
            data += piece
            if len(data) == 4:
                wanted += struct.unpack(">I", data)[0]
                if wanted > MAX_FRAME_BYTES:
                    raise self._died(f"it sent a frame of {wanted} bytes")
        return read_frame(io.BytesIO(data)) or {}

    def _wait(self, handle: int, deadline: float) -> None:
        """Waits until there is something to read. Raises Died."""
        while (left := deadline - time.monotonic()) > 0:
            in_time()
            watched = self._memory_bytes is not None or end_s() < deadline
            look_s = min(left, _LOOK_S) if watched else left
            answered = select.select([handle], [], [], look_s)[0]
            # Also checked if it has answered: when several are asked at once, it may have waited since then.
            if self._memory_bytes is not None and (held := resident_bytes(self.pid)) > self._memory_bytes:
                raise self._died(
                    f"it took {held / 2**30:.1f} GiB of memory; {self._memory_bytes / 2**30:.1f} GiB is its limit"
                )
            if answered:
                return
        raise self._died("it did not answer in time")

    def _died(self, what: str) -> Died:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0 if what == "it ended" else 0.2)
        code = self._process.returncode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                what += f" by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                what += _who_killed(self._killed_before)
        elif code:
            what += f" with exit status {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        self.kill()
        self._end = f"{what}{': ' + ' | '.join(line.strip() for line in lines) if lines else ''}"
        return Died(self._end)


def _killed_for_memory() -> int | None:
    """How many processes the system has ended for lack of memory since it started; None if it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _who_killed(before: int | None) -> str:
    """What is known of a SIGKILL that this process did not send; `before` is `_killed_for_memory` of earlier."""
    now = _killed_for_memory()
    if before is None or now is None:
        return ", probably as memory ran out"
    return ", as memory ran out" if now > before else ", which others sent: the kernel ended nothing for lack of memory"


def resident_bytes(pid: int) -> int:
    """The memory that a process holds; 0 if it has ended, or on a system without /proc."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def reason_of(err: AttnportError) -> str:
    """Why a runtime has no figures, with the hint if the runtime is unavailable."""
    return f"{err.message.rstrip('.')}; {err.hint}" if isinstance(err, UnavailableError) and err.hint else err.message


TIMEOUT_S = 600.0
STEPS_TIMES = 8
_SHARE = 0.9
"""The share of the free memory that a session may take; the rest is for the caller."""
_HEX = 16
_VARIABLES = ("PATH", "CXX", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
_LIBRARIES_OF_SYSTEM = "/etc/ld.so.cache"
"""Written anew when the system's package manager installs a library."""


@dataclass(frozen=True)
class Limits:
    """What a process may use.

    Attributes:
        timeout_s: Seconds for each answer, such as for opening or for a call.
        memory_bytes: The memory that it may hold; None = nine tenths of what is free when it starts.
        every: Whether runtimes that run in the caller's process by default get one of their own too.
    """

    timeout_s: float = TIMEOUT_S
    memory_bytes: int | None = None
    every: bool = False

    def start(self, threads: int | None, command: tuple[str, ...] | None = None) -> Child:
        """A worker under these limits; `command` as of `Child`."""
        limit = self.memory_bytes if self.memory_bytes is not None else memory_limit_bytes()
        return Child(threads or physical_cores(), command, memory_bytes=limit)


def as_message(runtime: Runtime, opening: Opening, folder: Path, manifest: Manifest) -> dict[str, Any]:
    """What `Worker.do_open` is asked; the worker loads the module itself. A measurement may set a `cache`."""
    return {
        "folder": str(folder.resolve()),
        "runtime": runtime.name,
        "plan": opening.plan,
        "model": str(opening.model.absolute()) if opening.model else None,
        "engine": next((key for key, record in manifest.engines.items() if record == opening.engine), None),
        "threads": opening.threads,
        "contract": opening.contract,
        "form": opening.form,
        "cache": None,
    }


class IsolatedSession:
    """A `Session` whose runtime runs in a process of its own.

    Attributes:
        ran: What really runs there, as the runtime itself reports it.
    """

    def __init__(
        self, runtime: Runtime, opening: Opening, folder: Path, manifest: Manifest, limits: Limits = Limits()
    ) -> None:
        """Starts the process and opens the model in it.

        Args:
            opening: What to open in this folder, see `openings`; the process loads the module itself.

        Raises:
            Died: the process crashed, hung or ran out of memory; with its last lines of output.
            AttnportError: the runtime raised it while opening.
        """
        self._timeout_s = limits.timeout_s
        self._scratch: Any = None
        self._child = limits.start(opening.threads)
        try:
            answer = self._child.ask("open", self._timeout_s, **as_message(runtime, opening, folder, manifest))
            self.ran = Ran(**answer["ran"])
            self._scratch = tempfile.TemporaryDirectory(prefix="attnport-session-")
        except BaseException:
            self._child.kill()
            raise

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name, in contract order.

        Raises:
            Died: the process crashed, hung or ran out of memory; every later call raises the same.
            AttnportError: the runtime raised it.
            UsageError: the session is closed.
        """
        return self._call(feeds, steps=False)

    def in_steps(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs of a decoder that runs a prompt and then token by token (`cases.choosing`); raises as `run`.

        The runtime runs once for each token, so that it may take `STEPS_TIMES` as long as a call.
        """
        return self._call(feeds, steps=True)

    def _call(self, feeds: Mapping[str, np.ndarray[Any, Any]], *, steps: bool) -> dict[str, np.ndarray[Any, Any]]:
        if self._scratch is None:
            raise UsageError("the session is closed.", hint="Open the model again.")
        feeds_file, outputs_file = (Path(self._scratch.name, name) for name in ("feeds.npz", "outputs.npz"))
        save_feeds(feeds_file, feeds)
        limit_s = self._timeout_s * (STEPS_TIMES if steps else 1)
        answer = self._child.ask("call", limit_s, feeds=str(feeds_file), outputs=str(outputs_file), steps=steps)
        return load_outputs(outputs_file, answer["named"])

    def close(self) -> None:
        """Ends the process; closing twice is fine."""
        if self._scratch is None:
            return
        try:
            if self._child.alive:
                self._child.ask("close", min(self._timeout_s, 30.0))
        except AttnportError:
            pass  # the process has ended, and the session with it
        finally:
            self._child.kill()
            self._scratch.cleanup()
            self._scratch = None


def probe(runtime: Runtime, limits: Limits = Limits(), *, refresh: bool = False) -> Capabilities:
    """Probes a runtime, in a process of its own if the runtime is isolated, or says what the last probe found.

    Args:
        refresh: Probe again, whatever was found last time on this machine with these packages.

    Returns:
        The result of the probe. If the probe crashed, hung or raised, the runtime is not available, with the reason.
    """
    if not refresh and (kept := kept_probe(runtime.name)) is not None:
        return kept
    found = _probed(runtime, limits)
    if not found.failed:
        keep_probe(found)
    return found


def _probed(runtime: Runtime, limits: Limits) -> Capabilities:
    if not runtime.isolated and not limits.every:
        try:
            return runtime.probe()
        except Exception as err:  # a probe should not raise, but an installation may be damaged
            return Capabilities(runtime.name, False, f"its probe failed with {type(err).__name__}: {err}", failed=True)
    child = limits.start(1)
    try:
        answer = child.ask("probe", limits.timeout_s, runtime=runtime.name)
        return from_json(Capabilities, json.dumps(answer["found"]), "the probe's answer")
    except Died as err:
        return Capabilities(runtime.name, False, f"its probe failed: {err.message}", failed=True)
    except AttnportError as err:
        return Capabilities(runtime.name, False, f"its probe failed with {err.message}", err.hint, True)
    finally:
        child.kill()


def probe_all(
    runtimes: Sequence[Runtime], limits: Limits = Limits(), *, refresh: bool = False
) -> dict[str, Capabilities]:
    """Probes several runtimes, as many at a time as there are cores. Returns the results by name."""
    with ThreadPoolExecutor(max_workers=physical_cores()) as pool:
        probes = [
            # A thread has no context of its own, and with it no end of the verb's time.
            pool.submit(copy_context().run, partial(probe, runtime, limits, refresh=refresh))
            for runtime in runtimes
        ]
        return {runtime.name: found.result() for runtime, found in zip(runtimes, probes, strict=True)}


def kept_probe(runtime: str) -> Capabilities | None:
    """What was found last time; None where nothing was, something has changed since, or the file is damaged."""
    kept = cache()
    data = kept.read(_name(runtime)) if kept is not None else None
    if data is None:
        return None
    try:
        found = from_json(Capabilities, data, "a kept probe")
    except ArtifactError:
        return None
    return found if found.runtime == runtime else None


def keep_probe(found: Capabilities) -> None:
    """Keeps what a probe found. If that fails, the runtime is probed again next time."""
    if (kept := cache()) is not None:
        kept.write(_name(found.runtime), to_json(found).encode())


def _name(runtime: str) -> str:
    wanted = base.distributions({runtime} & set(base.names()))
    installed = versions(wanted)
    modules = sorted({name.strip("-*").replace("-", "_") for name in (*wanted, *installed)})
    more = base.get(runtime).depends() if runtime in base.names() else ""
    parts = json.dumps([_state(), installed, [list(_places(name)) for name in modules], more])
    return f"probe.{runtime}.{digest_text(parts)[:_HEX]}.json"


@functools.lru_cache(maxsize=1)
def _state() -> str:
    """A digest of what all answers depend on."""
    here = machine()
    parts: list[object] = [sys.version, here.platform, here.cpu, here.features, here.cores, here.cuda, here.gpu_note]
    parts += [asdict(gpu) for gpu in here.gpus]
    parts += [f"{name} {os.environ.get(name, '')}" for name in _VARIABLES]
    parts += [_stamp(path) for path in (_LIBRARIES_OF_SYSTEM, shutil.which(os.environ.get("CXX") or "g++"))]
    # Runtimes use the reader's sessions.
    code = [Path(module.__file__ or "").parent for module in (base, attnport_bundle)]
    parts += [digest_file(path) for folder in code for path in sorted(folder.glob("*.py"))]
    return digest_text(json.dumps(parts, default=str))


def _stamp(path: str | None) -> tuple[str, int, int] | None:
    """A file with its size and time of change; None where there is none."""
    if path is None or not Path(path).is_file():
        return None
    state = Path(path).stat()
    return path, state.st_size, state.st_mtime_ns


def _places(package: str) -> Iterator[tuple[str, int]]:
    """A package's folder and those in it, with their times of change: a file that comes or goes changes its folder."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place)
        for path in (folder, *sorted(folder.iterdir())) if folder.is_dir() else ():
            if path.is_dir() and path.name != "__pycache__":
                yield str(path), path.stat().st_mtime_ns


def reason_of_failure(err: AttnportError | MemoryError) -> str:
    """The reason in the report for a runtime whose process died, hung or ran out of memory."""
    return f"its process failed: {err.message}" if isinstance(err, AttnportError) else f"no memory is left: {err}"


def memory_limit_bytes() -> int | None:
    """The memory that a process started now may take; None if the free memory is unknown."""
    return int(free_memory_bytes() * _SHARE) or None
