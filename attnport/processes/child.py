"""The parent's side of a worker process: start, ask, kill. If it dies, the error has its last lines of output.

While a verb waits for an answer, it also looks at the time at which its work has to end, see `ending_at`.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

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
)
from attnport.module_path import child_command, child_environment
from attnport.processes.worker import MAX_FRAME_BYTES, read_frame, write_frame

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
            threads: Compute threads of its libraries.
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
