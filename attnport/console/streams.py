"""The standard streams of the console script: closed streams, full disks and closed pipes, and the text of others.

Names in a file come from whoever made it, and reach a terminal or the log of a CI in our messages and in those of
libraries: their warnings, their loggers, what they print. All of it is printed by way of `one_line` or `escape_line`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from attnport_bundle.errors import escape_all, escaped

LOST = 2
"""The exit code if output could not be written and the verb has no other exit code."""
SEND_ELSEWHERE = "Free some space, or send the output elsewhere, and run it again."

_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\w*\[)")
"""How a line of a log begins a command to GitHub (`::error`), also behind blanks, or holds one to it (`##[error]`) or
to Azure (`##vso[`)."""
_COMMANDING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST_LINE = 1 << 16


def one_line(text: str) -> str:
    """A message that may contain the text of a file or a library, as one line that only says something."""
    return no_command(escaped(" ".join(text.splitlines())))


def escape_line(line: str) -> str:
    """A line that somebody else prints: as `one_line`, but its indentation stays."""
    return no_command(escape_all(line.expandtabs().rstrip()))


def prose(text: str) -> str:
    """A text of a model, as it is but for what commands a terminal or a CI, or turns the order of letters around."""
    return "\n".join(map(no_command, _COMMANDING.sub(lambda match: ascii(match[0])[1:-1], text).split("\n")))


def no_command(line: str) -> str:
    """A line that no CI takes for a command to it: the first character of the command's mark is escaped."""
    return _COMMAND.sub(lambda mark: f"{mark[1] or ''}\\x{ord(mark[0][-1]):02x}", line)


def no_command_in_json(text: str) -> str:
    """JSON that says the same, and in whose texts no CI finds a command."""
    return re.sub(r"#(?=#\w*\[)", r"\\u0023", text)


class Foreign(io.TextIOBase):
    """Stands for stdout and stderr while a verb works: what others print, line by line, each escaped.

    Args:
        show: Prints a line.
        stream: Where the lines go in the end; libraries that ask for the number of a file get that of this one.
    """

    encoding = "utf-8"

    def __init__(self, show: Callable[[str], None], stream: TextIO) -> None:
        self._show, self._stream = show, stream
        self._begun = ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """That of the stream behind it."""
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        """Prints the lines that are now whole; of a line that is written again, such as a bar, the last state."""
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            if len(self._begun) > _LONGEST_LINE:
                lines, self._begun = [*lines, self._begun], ""
            for line in lines:
                self._show(escape_line(line.rstrip("\r").rpartition("\r")[2]))
        return len(text)

    def end(self) -> None:
        """Prints a line that was begun."""
        if self._begun.strip():
            self.write("\n")


class _Record(logging.LogRecord):
    """What a library logs, as one line."""

    def getMessage(self) -> str:  # noqa: N802  # a name of Python's
        return one_line(super().getMessage())


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    """As Python's, in one line."""
    print(one_line(f"{filename}:{lineno}: {category.__name__}: {message}"), file=file or sys.stderr)


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
    its encoding lacks by a question mark, so that tables stay aligned. Warnings, and what is logged, are of one line.
    """
    warnings.showwarning = _show_warning
    logging.setLogRecordFactory(_Record)
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
