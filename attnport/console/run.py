"""Runs a verb in a terminal: its output and messages, how it ends, and its exit code.

Ctrl-C, SIGTERM, and SIGHUP when a terminal is closed all end a verb alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback as tracebacks
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import click

from attnport.console.arguments import about, check_arguments, readable
from attnport.console.progress import TimeLeft, shortened
from attnport.console.streams import (
    LOST,
    SEND_ELSEWHERE,
    Foreign,
    escape_line,
    no_command_in_json,
    one_line,
    prepare_streams,
    why_lost,
)
from attnport.options import Option, typed

if TYPE_CHECKING:
    from attnport.printed import Printed
    from attnport.reporting.document import Detail

INTERRUPTED = 130
# Python's default handlers. A signal with another handler is left alone: it was set, or ignored, on purpose.
_UNTOUCHED = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}

# The object of click's context when the process ends with the verb. A caller in Python does not set it.
OWN_PROCESS = object()
_SILENCE_S = 30.0
"""How long nothing is said of the progress where there is no terminal, as in a log."""
_SPINNER = 3
"""Columns for the spinner, and one that stays free: some terminals break a line that fills the last."""


@dataclass(frozen=True)
class Written:
    """Where `bundle` and `report` wrote."""

    schema: Literal["attnport/path/1"] = field(default="attnport/path/1", kw_only=True)
    path: str


class Reporter:
    """The output of a verb: data on stdout, progress and messages on stderr."""

    def __init__(
        self,
        *,
        as_json: Annotated[bool, Option("Print data as JSON on stdout, everything else on stderr.", "--json")] = False,
        verbose: Annotated[bool, Option("Print each step on stderr, and every table.", "-v --verbose")] = False,
        traceback: Annotated[bool, Option("Show the traceback of an error.")] = False,
        dry_run: Annotated[bool, Option("Print the command with what pyproject.toml adds to it, unchecked.")] = False,
    ) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.traceback = traceback
        self.dry_run = dry_run
        self.interrupts: list[int] = []
        self.lost = False
        self._stderr = sys.stderr
        self._status: Any = None
        self._stage = ""
        self._left = TimeLeft()
        self._said_s = time.monotonic()

    def stage(self, name: str, what: str, number: int, count: int) -> None:
        """Says which part of a verb with several begins: a line, on a terminal the beginning of that of `progress`."""
        self._stage = f"{number} of {count}, {name}: "
        if self._status is None:
            self._said_s = time.monotonic()
            click.echo(one_line(f"{name}: {what}"), file=self._stderr)
        else:
            self.progress(what)

    def progress(self, message: str) -> None:
        """Shows what is being done: one line on a terminal, a line each with -v, otherwise one now and then.

        Raises:
            KeyboardInterrupt: a signal should have ended the verb, but a library swallowed the exception.
        """
        if self.interrupts:
            raise KeyboardInterrupt
        message = one_line(message)
        if self.verbose:
            click.echo(message, file=self._stderr)
        elif self._status is not None:
            from rich.text import Text

            room = self._status.console.width - _SPINNER
            self._status.update(Text(shortened(self._stage + self._left.with_time_left(message), room)))
        else:
            message = self._left.with_time_left(message)
            if time.monotonic() - self._said_s >= _SILENCE_S:
                self._said_s = time.monotonic()
                click.echo(self._stage + message, file=self._stderr)

    def tell(self, message: str) -> None:
        """Prints a note on stderr."""
        message = one_line(readable(message))
        if self._status is not None:
            from rich.markup import escape

            self._status.console.print(f"[yellow]note[/]: {escape(message)}")
        else:
            click.echo(f"{click.style('note', fg='yellow')}: {message}", file=self._stderr)

    def _show_foreign(self, line: str) -> None:
        """Prints a line of somebody else, above the spinner."""
        if self._status is not None:
            from rich.text import Text

            self._status.console.print(Text(line))
        else:
            click.echo(line, file=self._stderr)

    @contextlib.contextmanager
    def working(self, title: str) -> Iterator[None]:
        """A context in which `progress` has a spinner, and everything that others print goes to stderr, escaped.

        Models are Python code, which may print; stdout is only for the verb's data.
        """
        with contextlib.ExitStack() as stack:
            if not self.verbose and self._stderr.isatty():
                from rich.console import Console

                stack.callback(setattr, self, "_status", None)
                self._status = stack.enter_context(Console(file=self._stderr).status(title))
            # Inside, as rich has streams of its own, which keep the colours of what is printed.
            foreign = Foreign(self._show_foreign, self._stderr)
            stack.enter_context(contextlib.redirect_stdout(foreign))
            stack.enter_context(contextlib.redirect_stderr(foreign))
            stack.callback(foreign.end)
            yield

    def show(self, value: Printed | Path, detail: Detail = "brief") -> None:
        """Prints a value as JSON, or as its blocks for a terminal; of a path, where something was written."""
        if self.as_json:
            from attnport.jsonfile import to_json

            told = Written(str(value)) if isinstance(value, Path) else value
            self.print(no_command_in_json(to_json(told, ascii_only=True)))
        elif isinstance(value, Path):
            self.print(f"{value}\n")
        else:
            from attnport.console.terminal import shown

            self.print(shown(value, detail, colour=sys.stdout.isatty()))

    def finish(self, value: Printed | Path, *judges: Callable[[Any], None]) -> Callable[[], None]:
        """What prints a value, all of it with -v, and then raises for its verdict.

        Args:
            judges: Raise for the verdict of the value.
        """

        def finish() -> None:
            self.show(value, "whole" if self.verbose else "brief")
            for judge in judges:
                judge(value)

        return finish

    def print(self, text: str) -> None:
        """Writes to stdout and flushes it.

        A closed pipe is not an error. If the output cannot be written otherwise, such as to a full disk, `lost` is set,
        and the exit code is 2 unless the verb has another one.
        """
        try:
            click.echo(text, nl=False)
            sys.stdout.flush()
        except OSError as err:
            if why := why_lost(err):
                self.lost = True
                complain(why, SEND_ELSEWHERE)

    def bug(self, err: Exception) -> None:
        """Prints the traceback, if wanted, of an unexpected error that did not end the verb."""
        if self.traceback:
            _show_traceback(err)


def carry_out(out: Reporter, name: str, options: Mapping[str, Any], work: Callable[[], Callable[[], None]]) -> None:
    """Does the work of a command, and turns errors into messages and exit codes.

    Args:
        options: All that it was given.
        work: Computes, and returns what prints the result and raises for its verdict.
    """
    with interrupts() as interrupted, about(options), typed():
        out.interrupts = interrupted
        message = "interrupted; no file is half written, and what was finished is kept."
        try:
            check_arguments(options)
            with out.working(f"attnport {name}"):
                finish = work()
            if not interrupted:
                finish()
            code, message = 0, "interrupted when the work was already done; it is kept."
        except (click.ClickException, click.exceptions.Exit):
            raise
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as err:
            if interrupted and click.get_current_context().obj is OWN_PROCESS:
                ignore_signals()
            code = _ended_by(err, out)
        if interrupted or code == INTERRUPTED:
            click.echo(message, err=True)
            code = exit_code(interrupted)
    if code or out.lost:
        sys.exit(code or LOST)


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


def start(program: click.Group) -> None:
    """Runs the program. Ctrl-C before a verb starts ends it without a traceback too."""
    prepare_streams()
    try:
        code = program(standalone_mode=False, obj=OWN_PROCESS)  # not None for --help and the like
        sys.stdout.flush()
        sys.exit(code or 0)
    except click.ClickException as err:
        stderr = sys.stderr
        err.show(cast("Any", Foreign(lambda line: click.echo(line, file=stderr), stderr)))
        sys.exit(err.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except OSError as err:  # from --help and --version; a verb reports its own
        if why := why_lost(err):
            complain(why, SEND_ELSEWHERE)
            sys.exit(LOST)
        sys.exit(0)


def _ended_by(err: BaseException, out: Reporter) -> int:
    """Prints the error that ended a verb, and returns its exit code."""
    if isinstance(err, KeyboardInterrupt):
        return INTERRUPTED
    from attnport.folder.refusals import as_attnport_error

    error = as_attnport_error(err)
    if out.traceback:
        _show_traceback(err)
    if error is None:
        complain(f"{type(err).__name__}: {err}", "This is a bug in attnport. Run again with --traceback and report it.")
        return 1
    complain(error.message, error.hint)
    return error.exit_code


def _show_traceback(err: BaseException) -> None:
    for line in "".join(tracebacks.format_exception(err)).splitlines():
        click.echo(escape_line(line), err=True)


def complain(message: str, hint: str = "") -> None:
    """Prints an error on stderr, and how to fix it."""
    click.echo(f"{click.style('error', fg='red', bold=True)}: {one_line(readable(message))}", err=True)
    if hint:
        click.echo(f"{click.style('hint', fg='cyan')}: {one_line(readable(hint))}", err=True)
