"""The parent's side of a worker process: start, ask, kill; a death becomes an error with its last words."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
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
# What a child's own error means to the parent as well; any other is that child's alone.
_KINDS: dict[str, type[AttnportError]] = {
    kind.__name__: kind
    for kind in (
        *(ArtifactError, BundleError, FeedError, IntegrityError),
        *(NumbersOff, RuntimeMissing, SpecError, UnavailableError),
    )
}


class ChildError(AttnportError):
    """The worker died, did not answer in time, or answered with an error that is its own affair."""


class Died(ChildError):
    """The worker is gone, or has no memory left: nothing more is to be had of this runtime, whatever the input."""


_KINDS["MemoryError"] = Died


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
        """Starts it, in a session of its own: Ctrl-C reaches the parent alone, which then kills.

        Args:
            command: What Python runs; None = the worker.
            memory_bytes: It is killed when it holds more; looked at while it is waited for. None = not looked at.
        """
        # Waiting threads must sleep: another child is being timed on the same cores.
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
        self._end = ""
        self._memory_bytes = memory_bytes

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, op: str, **fields: Any) -> None:
        """Sends a request. Raises ChildError when it is dead."""
        assert self._process.stdin is not None
        if not self.alive:
            raise Died(self._end or "it was ended")
        try:
            write_frame(self._process.stdin, {"op": op, **fields})
        except (OSError, ValueError) as err:
            raise self._died("it ended") from err

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The answer to the request sent last.

        Raises:
            Died: it died, or nothing came in time or it took too much memory (it is killed), or it has none left.
            ChildError: it answered with an error.
            AttnportError: the class of error that it answered with: a changed source, a damaged file.
        """
        answer = self._read(time.monotonic() + timeout_s)
        if "error" in answer:
            kind = _KINDS.get(str(answer.get("kind")), ChildError)
            raise kind(str(answer["error"]), hint=str(answer.get("hint", "")))
        return answer

    def ask(self, op: str, timeout_s: float = 600.0, **fields: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer; raises as `receive`."""
        self.send(op, **fields)
        return self.receive(timeout_s)

    def kill(self) -> None:
        """Ends it and what it started; ending it twice is fine."""
        self.alive = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _read(self, deadline: float) -> dict[str, Any]:
        """One frame. Bytes are read as they come, since a child may die in the middle of a frame."""
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
        """Until there is something to read. Raises Died."""
        while (left := deadline - time.monotonic()) > 0:
            look_s = left if self._memory_bytes is None else min(left, _LOOK_S)
            answered = select.select([handle], [], [], look_s)[0]
            # Also once it has answered: what was asked of several at once is waited for in turn.
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
        elif code:
            what += f" with exit status {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        self.kill()
        self._end = f"{what}{': ' + ' | '.join(line.strip() for line in lines) if lines else ''}"
        return Died(self._end)


def resident_bytes(pid: int) -> int:
    """The memory that a process holds; 0 when it is gone, or on a system that does not tell."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def reason_of(err: AttnportError) -> str:
    """Why a runtime has no figures, with the hint when it is not there at all."""
    return f"{err.message.rstrip('.')}; {err.hint}" if isinstance(err, UnavailableError) and err.hint else err.message
