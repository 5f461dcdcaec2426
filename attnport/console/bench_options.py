"""The options of `attnport bench`, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from attnport.console.arguments import FOLDER

F = TypeVar("F", bound=Callable[..., Any])

_WITH_COMPARE = ("compare", "fail_on_regression", "as_json", "verbose", "traceback")
_OPTIONS = (
    click.argument("folder", type=FOLDER, required=False),
    click.option("--runtime", "runtimes", multiple=True, help="A runtime; default: all. The report then has no other."),
    click.option("--shape", "shapes", multiple=True, help='"batch=8,seq=128"; a grid: "batch=1/8,seq=64/128".'),
    click.option("--text", type=FOLDER, help="Sentences, one a line."),
    click.option("--lengths", type=FOLDER, help="Lengths for ragged batches, one a line or LENGTH:COUNT."),
    click.option(
        "--batch",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="Sentences or lengths in a padded batch.",
    ),
    click.option("--bundle", type=FOLDER, help="A bundle of this folder, measured through its own reader."),
    click.option("--threads", type=click.IntRange(min=1), help="Compute threads; default: the physical cores."),
    click.option("--pin/--no-pin", default=True, show_default=True, help="Keep processes on as many cores as threads."),
    click.option(
        "--precision",
        type=click.FloatRange(min=0, min_open=True, max=1),
        default=0.03,
        show_default=True,
        help="Measure until every ratio is known within this share.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(min=0),
        default=0,
        help="Calls of each runtime at least, if there is time; p99 needs 1000.",
    ),
    click.option("--budget", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Seconds in all."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=600.0,
        show_default=True,
        help="Seconds for each answer of a runtime's process.",
    ),
    click.option("--save", type=FOLDER, metavar="FILE", help="Write the report to FILE too."),
    click.option(
        "--compare",
        type=FOLDER,
        nargs=2,
        metavar="BEFORE AFTER",
        help="Measure nothing; say what became slower between two saved reports.",
    ),
    click.option("--fail-on-regression", is_flag=True, help="With --compare: exit 7 when something became slower."),
    click.option(
        "--trust-source", is_flag=True, help="Run the code that a folder from elsewhere names, now and later."
    ),
    click.option("--force", is_flag=True, help="Measure even when nothing changed."),
)


def bench_options(work: F) -> F:
    """FOLDER and every option of `bench`."""
    for option in reversed(_OPTIONS):
        work = option(work)
    return work


def check_together(folder: Path | None, compare: tuple[Path, Path] | None, fail_on_regression: bool) -> None:
    """Refuses options that do not go together.

    Raises:
        click.UsageError: neither or both of FOLDER and --compare, or --fail-on-regression alone, or an option of a
            measurement beside --compare.
    """
    if compare is None:
        if folder is None:
            raise click.UsageError("Missing argument 'FOLDER' (or --compare BEFORE AFTER).")
        if fail_on_regression:
            raise click.UsageError("--fail-on-regression goes with --compare BEFORE AFTER.")
        return
    if folder is not None:
        raise click.UsageError(f"--compare measures nothing, so it takes no folder; got {folder}.")
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in _WITH_COMPARE or context.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE:
            continue
        raise click.UsageError(f"--compare measures nothing, so it takes no {parameter.opts[0]}.")
