"""How a verb runs in a terminal: where its words go, how it ends, and with which exit code."""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import sys
import traceback as tracebacks
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from attnport.errors import AttnportError, MissingDependency

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED = 130


class Verbs(click.Group):
    """A group of commands that names the closest one for a verb that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with a suggestion, or with the list of verbs."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            verbs = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], verbs, n=1)
            there = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(verbs)}."
            ctx.fail(f"No such verb {args[0]!r}. {there}")
        return super().resolve_command(ctx, args)


class Reporter:
    """What a verb talks to: data on stdout, progress and messages on stderr."""

    def __init__(self, *, as_json: bool, verbose: bool, traceback: bool) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.traceback = traceback
        self.interrupts: list[int] = []
        self._status: Any = None

    def progress(self, message: str) -> None:
        """Shows what is being done: a spinner on a terminal, a line with -v, nothing otherwise.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, and a library swallowed it.
        """
        if self.interrupts:
            raise KeyboardInterrupt
        if self.verbose:
            click.echo(message, err=True)
        elif self._status is not None:
            from rich.markup import escape

            self._status.update(escape(message))

    def tell(self, message: str) -> None:
        """Says on stderr what a user has to know though nothing failed."""
        if self._status is not None:
            from rich.markup import escape

            self._status.console.print(f"[yellow]note[/]: {escape(message)}")
        else:
            click.echo(f"{click.style('note', fg='yellow')}: {message}", err=True)

    @contextlib.contextmanager
    def working(self, title: str) -> Iterator[None]:
        """A context in which `progress` has a spinner, and whatever else is printed goes to stderr.

        Models are Python code, which may print; stdout is for the verb's own data.
        """
        with contextlib.redirect_stdout(sys.stderr):
            if self.verbose or not sys.stderr.isatty():
                yield
                return
            from rich.console import Console

            with Console(stderr=True).status(title) as self._status:
                yield
        self._status = None

    def show(self, value: Any, table: str) -> None:
        """Prints a value as JSON, or by the function of a module of tables that is called `table`."""
        if self.as_json:
            from attnport.jsonfile import to_json

            self.print(to_json(value))
            return
        from attnport.console import cells

        self.print(cells.render(shower(table), value, colour=sys.stdout.isatty()))

    def show_path(self, path: Path) -> None:
        """Prints where something was written."""
        import json

        self.print((json.dumps({"path": str(path)}) if self.as_json else str(path)) + "\n")

    def print(self, text: str) -> None:
        """Writes to stdout at once. A reader that went away is no error, and takes no verdict from the exit code.

        Where the terminal's encoding lacks a character, a table has `?` for it and JSON its escape.
        """
        try:
            try:
                click.echo(text, nl=False)
            except UnicodeEncodeError as err:
                encoded = _json_in_ascii(text) if self.as_json else text.encode(err.encoding, "replace")
                click.echo(encoded.decode(err.encoding), nl=False)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered must not fail again when Python ends.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def bug(self, err: Exception) -> None:
        """Is told of an unexpected error that did not end the verb."""
        if self.traceback:
            click.echo("".join(tracebacks.format_exception(err)), err=True, nl=False)


def _json_in_ascii(text: str) -> bytes:
    import json

    return (json.dumps(json.loads(text), indent=1) + "\n").encode("ascii")


def shower(table: str) -> Callable[[Any, Any], None]:
    """The function `table` of one of this package's modules of tables: it prints a kind of value to a console."""
    import importlib
    import pkgutil

    from attnport import console

    names = [found.name for found in pkgutil.iter_modules(console.__path__) if found.name.endswith("tables")]
    modules = (importlib.import_module(f"{console.__name__}.{name}") for name in names)
    show: Callable[[Any, Any], None] = next(getattr(each, table) for each in modules if hasattr(each, table))
    return show


def verb(work: F) -> F:
    """Adds --json, -v and --traceback, and turns errors into messages and exit codes.

    The decorated function computes, and returns what prints the result and raises for its verdict.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print data as JSON on stdout, everything else on stderr.")
    @click.option("-v", "--verbose", is_flag=True, help="Print each step on stderr.")
    @click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
    @wraps(work)
    def run(*args: Any, as_json: bool, verbose: bool, traceback: bool, **options: Any) -> None:
        out = Reporter(as_json=as_json, verbose=verbose, traceback=traceback)
        with _interrupts() as interrupted:
            out.interrupts = interrupted
            told = "interrupted; what was there before is untouched."
            try:
                with out.working(f"attnport {work.__name__.rstrip('_')}"):
                    finish = work(out, *args, **options)
                if not interrupted:
                    finish()
                    return
                code, told = INTERRUPTED, "interrupted when the work was already done; it is kept."
            except (click.ClickException, click.exceptions.Exit):
                raise
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException as err:
                code = _ended_by(err, out)
            if interrupted or code == INTERRUPTED:
                click.echo(told, err=True)
                code = INTERRUPTED
        sys.exit(code)

    return run  # type: ignore[return-value]


def _ended_by(err: BaseException, out: Reporter) -> int:
    """Says what ended a verb, and returns its exit code."""
    if isinstance(err, KeyboardInterrupt):
        return INTERRUPTED
    told = _as_error(err)
    if out.traceback:
        click.echo("".join(tracebacks.format_exception(err)), err=True, nl=False)
    if told is None:
        complain(
            f"{type(err).__name__}: {err}", "This is a bug of attnport's. Run again with --traceback and report it."
        )
        return 1
    complain(told.message, told.hint)
    return told.exit_code


def _as_error(err: BaseException) -> AttnportError | None:
    """The error as one of ours; None for a bug."""
    if isinstance(err, AttnportError):
        return err
    if isinstance(err, ModuleNotFoundError) and err.name and err.name.split(".")[0] != "attnport":
        from attnport.optional import pip_line

        return MissingDependency(f"{err.name} is not installed.", hint=pip_line(err.name.split(".")[0]))
    if isinstance(err, OSError):
        from attnport.pipeline.refusals import as_usage_error

        return as_usage_error(err)
    return None


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Notes Ctrl-C as well as raising it: a library may turn the exception into one of its own on the way.

    Where it is raised in a callback of Python's own, Python prints a traceback and goes on; that print is left out.
    """
    seen: list[int] = []
    print_ignored = sys.unraisablehook

    def ignored(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            print_ignored(what)

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen  # ignored on purpose (nohup, a shell's background), or somebody else's
        return
    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, which has no signals
        yield seen
        return
    sys.unraisablehook = ignored
    try:
        yield seen
    finally:
        sys.unraisablehook = print_ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)


def complain(message: str, hint: str = "") -> None:
    """Prints an error on stderr, and how to fix it."""
    click.echo(f"{click.style('error', fg='red', bold=True)}: {message}", err=True)
    if hint:
        click.echo(f"{click.style('hint', fg='cyan')}: {hint}", err=True)
