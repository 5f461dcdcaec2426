"""Signals that end a verb: Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed. One rule for all of them."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

INTERRUPTED = 130
# What Python itself does about each; a signal that is handled otherwise is ignored on purpose, or somebody else's.
_UNTOUCHED = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


def ignore_signals() -> None:
    """For a process that is about to exit: a further signal must not change its exit code."""
    for number in _UNTOUCHED:
        signal.signal(number, signal.SIG_IGN)


def exit_code(seen: list[int]) -> int:
    """As a shell reports the first signal: 130, 143 or 129."""
    return 128 + seen[0] if seen else INTERRUPTED


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """Notes each signal that ends a verb, and raises KeyboardInterrupt.

    It is noted because a library may turn the exception into one of its own on the way. Where it is raised in a
    callback of Python's own, Python prints a traceback and goes on; that print is left out.
    """
    seen: list[int] = []
    print_ignored = sys.unraisablehook

    def ignored(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            print_ignored(what)

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        under_way = sys.exception()
        while under_way is not None:
            # A second signal must not stop what the first one began: children are killed, staged files deleted.
            if isinstance(under_way, KeyboardInterrupt):
                return
            under_way = under_way.__context__
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _UNTOUCHED}
    mine = [number for number, handler in _UNTOUCHED.items() if before[number] is handler]
    try:
        for number in mine:
            signal.signal(number, note)
    except ValueError:  # not the main thread, which has no signals
        yield seen
        return
    sys.unraisablehook = ignored
    try:
        yield seen
    finally:
        sys.unraisablehook = print_ignored
        for number in mine:
            if signal.getsignal(number) is note:
                signal.signal(number, before[number])
