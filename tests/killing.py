"""Lets a process die, or fail, at its n-th call of a system call that changes a folder.

As a program: `python killing.py --folder F --log L --at N -- MODULE ARGS...` runs `python -m MODULE ARGS...` and sends
SIGKILL to itself around its N-th rename in F (0 = never).
"""

from __future__ import annotations

import argparse
import gc
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnport.artifacts import MANIFEST
from attnport.transaction import OWN

BUNDLE = "bundle"
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
        gc.disable()  # a session left by an earlier test would wait forever for its threads, which are not in the child
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def copier(folder: Path, copies: Path, log: Path) -> Callable[[], None]:
    """Called before each rename: copies the folder as it is before each commit, under the number of the next rename."""

    def before() -> None:
        done = log.read_text().splitlines() if log.exists() else []
        if not done or done[-1] in (MANIFEST, BUNDLE):
            ignored = shutil.ignore_patterns(*OWN, f".{BUNDLE}.*")
            shutil.copytree(folder, copies / str(len(done) + 1), ignore=ignored)

    return before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="only renames of what is in here count")
    parser.add_argument("--log", type=Path, required=True, help="gets a line for each rename: the new name")
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--when", choices=("before", "after"), default="before")
    parser.add_argument("--copies", type=Path, help="gets a copy of the folder before each commit")
    parser.add_argument("rest", nargs="+")
    options = parser.parse_args()
    folder, owner = options.folder.resolve(), os.getpid()
    copy = copier(folder, options.copies, options.log) if options.copies else None
    armed = Armed(options.at, options.when)

    def counted(rename: Callable[..., Any]) -> Callable[..., Any]:
        deadly = armed.wrap(rename)

        def renamed(source: Any, target: Any, **kwargs: Any) -> Any:
            path = Path(target).resolve() if isinstance(target, (str, os.PathLike)) else Path()
            if os.getpid() != owner or not path.is_relative_to(folder):
                return rename(source, target, **kwargs)
            if copy:
                copy()
            with options.log.open("a") as log:
                log.write(f"{path.relative_to(folder)}\n")
            return deadly(source, target, **kwargs)

        return renamed

    for name in RENAMES:
        setattr(os, name, counted(getattr(os, name)))
    sys.argv = options.rest
    runpy.run_module(options.rest[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
