"""A worker of `attnport bench` whose clock is the processor time of its process.

On a machine that others use as well, wall time says how busy it was. Where a runtime has one compute thread, the
processor time of a call is what it costs; what other processes take away does not count.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from attnport.pipeline.worker import Worker, read_frame, write_frame


class ProcessorTime(Worker):
    """As its base, but for the clock."""

    def do_run(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Calls the session: `warm` times untimed, then `calls` times; gives `ns` of each timed call."""
        feeds, run, clock = self._feeds[message["name"]], self._session.run, time.process_time_ns
        for _ in range(message["warm"]):
            run(feeds)
        ns = []
        for _ in range(message["calls"]):
            began = clock()
            run(feeds)
            ns.append(clock() - began)
        return {"ns": ns}


def main() -> None:
    """Answers requests until stdin ends; what a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = ProcessorTime()
    while (message := read_frame(sys.stdin.buffer)) is not None:
        write_frame(answers, worker.answer(message))


if __name__ == "__main__":
    main()
