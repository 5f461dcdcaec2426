"""Handles the signals that end a verb, all alike: Ctrl-C, SIGTERM, and SIGHUP when a terminal is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130
# Python's default handlers. A signal with another handler is left alone: it was set, or ignored, on purpose.
_UNTOUCHED = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


def ignore_signals() -> None:
    """Ignores further signals, so that they do not change the exit code of a process that is about to exit."""
    for number in _UNTOUCHED:
        signal.signal(number, signal.SIG_IGN)


def exit_code(seen: list[int]) -> int:
    """The exit code that a shell reports for the first signal: 130, 143 or 129."""
    return 128 + seen[0] if seen else INTERRUPTED


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """Records each signal that ends a verb, and raises KeyboardInterrupt.

    Signals are recorded, as a library may replace the exception by one of its own. If the exception is raised in a
    callback of Python itself, such as a destructor, Python ignores it and prints a traceback; this print is suppressed.
    While torch is being imported, signals are postponed: an exception that passes through torch's C++ code there aborts
    the process.
    """
    seen: list[int] = []
    print_ignored = sys.unraisablehook

    def ignored(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            print_ignored(what)

    def note(number: int, frame: FrameType | None) -> None:
        if _imports_torch(frame):
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
            return
        seen.append(number)
        current = sys.exception()
        while current is not None:
            # A second signal must not interrupt the cleanup after the first: killing children, deleting staged files.
            if isinstance(current, KeyboardInterrupt):
                return
            current = current.__context__
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _UNTOUCHED}
    handled = [number for number, handler in _UNTOUCHED.items() if before[number] is handler]
    try:
        for number in handled:
            signal.signal(number, note)
    except ValueError:  # not the main thread, which has no signals
        yield seen
        return
    sys.unraisablehook = ignored
    try:
        yield seen
    finally:
        sys.unraisablehook = print_ignored
        for number in handled:
            if signal.getsignal(number) is note:
                signal.signal(number, before[number])


def _imports_torch(frame: FrameType | None) -> bool:
    """Whether the code that a signal interrupted runs because torch's own module is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "torch":
            return True
        frame = frame.f_back
    return False
