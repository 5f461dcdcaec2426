"""Lets a process die, or fail, at its n-th call of a system call that changes a folder.

As a program: `python killing.py --at N --when before|after --calls replace,rename --count FILE -- MODULE ARGS...` runs
`python -m MODULE ARGS...` and sends SIGKILL to itself around the N-th call (0 = never); FILE gets the number of calls.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RENAMES = ("replace", "rename")
CALLS = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync")
"""What a transaction does to a folder beside writing staged files. Both pathlib and shutil call these through `os`."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Armed:
    """Counts calls; at the `at`-th one does `what`, before the call or after it."""

    def __init__(self, at: int, when: str = "before", what: Callable[[], None] = die) -> None:
        self.at, self.when, self.what, self.count = at, when, what, 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            now = self.count == self.at
            if now and self.when == "before":
                self.what()
            try:
                return call(*args, **kwargs)
            finally:
                if now and self.when == "after":
                    self.what()

        return armed

    def install(self, calls: tuple[str, ...] = CALLS) -> None:
        for name in calls:
            setattr(os, name, self.wrap(getattr(os, name)))


def in_child(act: Callable[[], None]) -> int:
    """Runs `act` in a forked process; returns its exit code, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--when", choices=("before", "after"), default="before")
    parser.add_argument("--calls", default=",".join(RENAMES))
    parser.add_argument("--count", type=Path)
    parser.add_argument("rest", nargs="+")
    options = parser.parse_args()
    armed = Armed(options.at, options.when)
    armed.install(tuple(options.calls.split(",")))
    owner = os.getpid()  # a child that was forked counts for itself and must not report
    sys.argv = options.rest
    try:
        runpy.run_module(options.rest[0], run_name="__main__", alter_sys=True)
    finally:
        if options.count and os.getpid() == owner:
            options.count.write_text(str(armed.count))


if __name__ == "__main__":
    main()
