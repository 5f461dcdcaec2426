"""The child process of `attnport bench`: a worker that stays on given processors and returns times of its device.

Run as `python -m attnport.latency.timing_worker`; the protocol is that of `worker`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attnport.artifacts import DEVICE_PARTS
from attnport.processes.worker import Worker, serve

COMMAND = ("-m", "attnport.latency.timing_worker")


class TimingWorker(Worker):
    """A worker with the operations that only measurements need."""

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
        """As a worker's; also returns `load_ns`, the time to open, and `modes`, see `artifacts.DeviceTimedSession`."""
        began = self.clock()
        answer = super().do_open(message)
        return {**answer, "load_ns": self.clock() - began, "modes": list(getattr(self._session, "modes", ()))}

    def do_run(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """As a worker's; with a `mode`, the session runs in that mode, and `parts` are the times from its events."""
        if not message.get("mode"):
            return super().do_run(message)
        session = self._session
        self._session = timed = _ByEvents(session, message["mode"])
        try:
            answer = super().do_run(message)
        finally:
            self._session = session
        calls = timed.calls[message["warm"] :]
        return {**answer, "parts": {part: [int(call[part]) for call in calls] for part in DEVICE_PARTS}}


class _ByEvents:
    """Runs a session in one of its modes and keeps the times from its events."""

    def __init__(self, session: Any, mode: str) -> None:
        self.calls: list[Mapping[str, int]] = []
        self._session, self._mode = session, mode

    def run(self, feeds: Mapping[str, Any]) -> None:
        self.calls.append(self._session.run_timed(feeds, self._mode))


if __name__ == "__main__":
    serve(TimingWorker())
