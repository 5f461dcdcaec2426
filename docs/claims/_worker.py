"""A worker of `attnport bench` whose clock is the processor time of its process.

On a machine that others use as well, wall time says how busy it was. Where a runtime has one compute thread, the
processor time of a call is what it costs; what other processes take away does not count.
"""

from __future__ import annotations

import time

from attnport.processes.worker import Worker, serve


class ProcessorTime(Worker):
    """As its base, but for the clock."""

    clock = staticmethod(time.process_time_ns)


if __name__ == "__main__":
    serve(ProcessorTime())
