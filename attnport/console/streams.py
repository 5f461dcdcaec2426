"""Prepares the standard streams of the console script for closed streams, full disks and closed pipes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

LOST = 2
"""The exit code if output could not be written and the verb has no other exit code."""
SEND_ELSEWHERE = "Free some space, or send the output elsewhere, and run it again."


class Messages(io.FileIO):
    """The file of stderr. A message that cannot be written is dropped, so that a verb does not fail for it."""

    def write(self, data: Any, /) -> int:
        """As a file's, but never fails."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Makes all three streams usable.

    A stream that the caller closed becomes the null device. Its number must not stay free, or the next file that is
    opened would get it, and everything that a library prints. stderr never fails, and stdout replaces characters that
    its encoding lacks by a question mark, so that tables stay aligned.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if handle == number:
                os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, "w" if number else "r", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    with contextlib.suppress(OSError, ValueError):  # a stream that is not a file
        file = io.BufferedWriter(Messages(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(
            file, encoding=sys.stderr.encoding, errors="backslashreplace", line_buffering=True
        )


def why_lost(err: OSError) -> str:
    """Why output on stdout is lost; "" for a closed pipe, which is not an error. Later output is discarded."""
    # Otherwise the rest of the buffer would fail again when Python ends.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return "" if isinstance(err, BrokenPipeError) else f"the output on stdout was cut short: {err.strerror}."
