"""The standard streams of the console script: closed, full, or with a reader that went away."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

LOST = 2
"""The exit code when output could not be written, and there is no other."""
SEND_ELSEWHERE = "Free some space, or send the output elsewhere, and run it again."


class Messages(io.FileIO):
    """The file behind stderr. A message that cannot be written is dropped: it is no reason for a verb to fail."""

    def write(self, data: Any, /) -> int:
        """As a file's, but never fails."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Makes all three streams usable.

    One that the caller closed becomes the null device: nothing was to be read or shown. Its number must not stay free,
    or the next file that is opened gets it, and with it what a library prints. stderr never fails, and stdout has a
    question mark for what its encoding lacks, as tables stay in line by.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if handle == number:
                os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, "w" if number else "r", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    with contextlib.suppress(OSError, ValueError):  # a stream of somebody's that is no file
        file = io.BufferedWriter(Messages(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(
            file, encoding=sys.stderr.encoding, errors="backslashreplace", line_buffering=True
        )


def why_lost(err: OSError) -> str:
    """Why output on stdout is lost: empty for a reader that went away, which is no failure. Nothing more is written."""
    # What is still buffered must not fail again when Python ends.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return "" if isinstance(err, BrokenPipeError) else f"the output on stdout was cut short: {err.strerror}."
