"""The child process of a runtime, which probes it, or opens it once and runs it for times or outputs.

Run as `python -m attnport.processes.worker`. It reads requests from stdin and answers on its original stdout. Each
message is a frame: a length (4 bytes, big-endian) and that many bytes of JSON. Whatever a library prints goes to
stderr. The process ends when stdin ends, so that it does not outlive its parent.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from attnport.budget import memory_bytes
from attnport.errors import AttnportError, whole_cause

MAX_FRAME_BYTES = 64 << 20
GRACE_S, LONGEST_S = 10.0, 1e8


def write_frame(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    """Writes one message."""
    data = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    """Reads one message; None at the end of the stream.

    Raises:
        ValueError: the frame is cut short, too long, or not a JSON object.
    """
    head = stream.read(4)
    if not head:
        return None
    size = struct.unpack(">I", head)[0] if len(head) == 4 else -1
    if not 0 <= size <= MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes")
    data = stream.read(size)
    if len(data) != size:
        raise ValueError(f"a frame cut short: {len(data)} of {size} bytes")
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError(f"a frame that holds {type(message).__name__}")
    return message


def save_feeds(path: Path, feeds: Mapping[str, Any]) -> None:
    """Writes feeds as an `.npz`; bfloat16, which the format does not have, is written as its bits."""
    import numpy as np

    bits = {name: array.view(np.uint16) if array.dtype.name == "bfloat16" else array for name, array in feeds.items()}
    np.savez(path, allow_pickle=False, **bits)


def load_feeds(path: Path, dtypes: Mapping[str, str]) -> dict[str, Any]:
    """Reads a file of `save_feeds`; `dtypes` by input name."""
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        feeds: dict[str, Any] = dict(arrays)
    if "bfloat16" in dtypes.values():
        import ml_dtypes

        for name, dtype in dtypes.items():
            if dtype == "bfloat16":
                feeds[name] = feeds[name].view(ml_dtypes.bfloat16)
    return feeds


def save_outputs(path: Path, outputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Writes outputs as an `.npz`; returns the name and dtype of each, in order."""
    # Members of an archive cannot have any name, so outputs are stored under their index.
    save_feeds(path, {str(place): array for place, array in enumerate(outputs.values())})
    return [(name, array.dtype.name) for name, array in outputs.items()]


def load_outputs(path: Path, named: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Reads a file of `save_outputs`; `named` is what that returned."""
    arrays = load_feeds(path, {str(place): dtype for place, (_, dtype) in enumerate(named)})
    return {name: arrays[str(place)] for place, (name, _) in enumerate(named)}


def _other_threads_ns() -> int:
    """Processor time of all threads but this one, which reads and answers requests."""
    return time.process_time_ns() - time.thread_time_ns()


class Worker:
    """Carries out requests; every `do_*` method is an operation and returns its answer.

    `clock` times the calls, in nanoseconds; derived classes may replace it.
    """

    clock = staticmethod(time.perf_counter_ns)

    def __init__(self) -> None:
        self._session: Any = None
        self._io: Any = None
        self._dtypes: dict[str, str] = {}
        self._feeds: dict[str, dict[str, Any]] = {}
        self._level_bytes = 0
        self._idle_from_ns = _other_threads_ns()
        self.answers: IO[bytes] | None = None

    def say(self, kind: str, text: str) -> None:
        """Sends a line to whoever waits for the answer, see `Child.receive`."""
        if self.answers is not None:
            write_frame(self.answers, {"said": text, "kind": kind})

    def do_settle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Restricts the process to `processors`, before any library creates threads; an empty list = no restriction.

        Returns:
            `pinned`: the processors; `problem`: why they could not be set, or "".
        """
        problem, pinned = "", []
        if message["processors"]:
            try:
                os.sched_setaffinity(0, message["processors"])
                pinned = sorted(os.sched_getaffinity(0))
            except OSError as err:
                problem = f"the system does not allow it: {err.strerror}"
        return {"pinned": pinned, "problem": problem}

    def do_open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Opens a runtime on a folder's model; `isolated.as_message` makes the message.

        Returns:
            `ran`; `modes`, see `runtimes.base.DeviceTimed`; `load_ns`, the time to open; and `modules`, all
            top-level modules that are imported.
        """
        began = self.clock()
        from attnport.folder.workspace import load_spec, open_folder
        from attnport.runtimes import base

        manifest = open_folder(Path(message["folder"]))
        runtime = base.get(message["runtime"])
        opening = base.Opening(
            manifest.io,
            plan=message["plan"],
            model=Path(message["model"]) if message["model"] else None,
            spec=load_spec(manifest) if runtime.opens == "module" else None,
            engine=manifest.engines[message["engine"]] if message["engine"] else None,
            threads=message["threads"],
            contract=message["contract"],
            form=message["form"],
            cache=Path(message["cache"]) if message["cache"] else None,
        )
        self._session, self._io = runtime.open(opening), manifest.io
        load_ns = getattr(self._session, "load_ns", self.clock() - began)
        self._dtypes = {spec.name: spec.dtype for spec in manifest.io.inputs}
        modules = sorted({name.partition(".")[0] for name in sys.modules} - {"__main__", "__mp_main__"})
        modes = list(getattr(self._session, "modes", ()))
        return {"ran": asdict(self._session.ran), "modes": modes, "load_ns": load_ns, "modules": modules}

    def do_feeds(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Loads feeds under a name."""
        self._feeds[message["name"]] = load_feeds(Path(message["path"]), message["dtypes"])
        return {}

    def do_call(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Calls the session once: reads feeds from the file `feeds` and writes outputs to the file `outputs`.

        With `steps`, a decoder runs a prompt and then token by token.

        Returns:
            `named`: name and dtype of each output, in order.
        """
        feeds = load_feeds(Path(message["feeds"]), self._dtypes)
        if message["steps"]:
            from attnport.cases.choosing import in_steps

            outputs = in_steps(self._session, self._io, feeds)
        else:
            outputs = self._session.run(feeds)
        return {"named": save_outputs(Path(message["outputs"]), outputs)}

    def do_probe(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Probes a runtime."""
        from attnport.runtimes import base

        return {"found": asdict(base.get(message["runtime"]).probe())}

    def do_run(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Calls the session, in a `mode` if there is one: `warm` times untimed, then `calls` times.

        Returns:
            `ns` of each timed call; `parts` of these from events of the device, empty without a mode; and
            `idle_cpu_ns`: processor time of the runtime's threads since the last answer.
        """
        idle_cpu_ns = _other_threads_ns() - self._idle_from_ns
        feeds, session, mode, clock = self._feeds[message["name"]], self._session, message.get("mode"), self.clock
        events: list[Mapping[str, int]] = []
        run = (lambda feeds: events.append(session.run_timed(feeds, mode))) if mode else session.run
        gc.collect()
        gc.freeze()  # what is alive now is not looked at again: with PyTorch loaded, that takes longer than a turn
        gc.disable()
        try:
            for _ in range(message["warm"]):
                run(feeds)
            ns = []
            for _ in range(message["calls"]):
                began = clock()
                run(feeds)
                took = clock() - began
                ns.append(getattr(session, "last_ns", took))  # a session in another process times its own calls
        finally:
            gc.enable()
        timed = events[message["warm"] :]
        parts = {part: [int(call[part]) for call in timed] for part in timed[0]} if timed else {}
        return {"ns": ns, "parts": parts, "idle_cpu_ns": idle_cpu_ns}

    def do_level(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Imports modules, then records the memory level above which later peaks are counted."""
        for name in message["modules"]:
            try:
                importlib.import_module(name)
            except Exception as err:  # an optional part of a library, without which the measurement is still valid
                print(f"{name} is not imported: {err}", file=sys.stderr)
        gc.collect()
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM: imports have peaks of their own
        except OSError as err:
            print(f"the peak is not reset: {err}", file=sys.stderr)
        if not (level_bytes := memory_bytes("VmRSS")):
            raise OSError("the system does not tell the memory of a process")
        self._level_bytes = level_bytes
        return {"level_bytes": self._level_bytes}

    def do_peak(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The peak so far above the level; of a session in another process, all of its memory."""
        peak_bytes = getattr(self._session, "peak_bytes", None)
        return {"peak_bytes": peak_bytes() if peak_bytes else max(0, memory_bytes("VmHWM") - self._level_bytes)}

    def do_selftest(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Checks a bundle, and returns the fields of `model.Report`; raises BundleError if there is no report."""
        from attnport.bundling.verifying import check
        from attnport_bundle.model import selftest

        # The kernel then ends this process, whatever a runtime is doing, even if the parent is gone.
        signal.setitimer(signal.ITIMER_REAL, min(message["limit_s"] + GRACE_S, LONGEST_S))
        key = None if message["key"] is None else Path(message["key"])
        against = None if message["against"] is None else Path(message["against"])
        return asdict(selftest(Path(message["folder"]), key=key, check=check, against=against))

    def do_close(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Closes the session."""
        if self._session is not None:
            self._session.close()
        return {}

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; an exception becomes an answer too."""
        try:
            answer: dict[str, Any] = getattr(self, f"do_{message['op']}")(message)
        except AttnportError as err:
            answer = {"error": err.message, "hint": err.hint, "kind": type(err).__name__}
        except Exception as err:  # a bug or a runtime's own exception; the process goes on
            kind = "MemoryError" if isinstance(err, MemoryError) else "Exception"
            answer = {"error": f"{type(err).__name__}: {whole_cause(err)}", "hint": "", "kind": kind}
        self._idle_from_ns = _other_threads_ns()
        return answer


def serve(worker: Worker) -> None:
    """Answers requests until stdin ends; what a library prints goes to stderr."""
    # If memory runs out, the kernel should kill this process, not its parent.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker.answers, requests = answers, sys.stdin.buffer
    while (message := read_frame(requests)) is not None:
        write_frame(answers, worker.answer(message))


if __name__ == "__main__":
    serve(Worker())
