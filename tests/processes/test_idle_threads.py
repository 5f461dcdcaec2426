"""Processor time between two requests is that of the runtime's threads; reading requests is not the runtime's doing."""

from __future__ import annotations

import threading
import time
from typing import Any

from attnport.processes.worker import Worker


class Session:
    def run(self, feeds: Any) -> None: ...


def busy(seconds: float) -> None:
    """Takes processor time in Python code."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def idle_s(between: Any) -> float:
    worker = Worker()
    worker._session, worker._feeds = Session(), {"x": {}}
    between()
    return worker.do_run({"name": "x", "warm": 0, "calls": 1})["idle_cpu_ns"] * 1e-9


def test_threads_that_spin_are_counted() -> None:
    def spin() -> None:
        thread = threading.Thread(target=busy, args=(0.2,))
        thread.start()
        thread.join()

    assert idle_s(spin) > 0.15


def test_what_the_worker_itself_does_is_not() -> None:
    assert idle_s(lambda: busy(0.2)) < 0.1
