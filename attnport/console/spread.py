"""`--ray` and `--page` of `check`, `bench` and `tune`: the verb on every machine of a cluster, for several folders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from attnport.console.run import Reporter, complain
from attnport.options import Option

if TYPE_CHECKING:
    from attnport.machines import MachinesReport


def on_cluster(
    out: Reporter,
    verb: str,
    folders: Sequence[Path],
    options: Mapping[str, Any],
    *,
    address: Annotated[
        str | None,
        Option(
            "Run on every machine of a Ray cluster, at ADDRESS, auto or local, on a copy of each FOLDER.",
            "--ray",
            metavar="ADDRESS",
        ),
    ] = None,
    page: Annotated[Path | None, Option("With --ray: show the machines on an HTML page too.", metavar="FILE")] = None,
) -> Callable[[], None]:
    """Runs a verb for every folder on every machine, and returns what prints the results.

    Args:
        options: The arguments of the verb besides the folder.
    """
    from attnport.verbs._saving import check_target, save
    from attnport.verbs.machines import on_machines

    if not folders:
        raise click.UsageError("Missing argument 'FOLDER...'.")
    if page is not None:
        check_target(page, "--page", "machines.html")
    report = on_machines(verb, folders, str(address), progress=out.progress, **options)
    if page is not None:
        from attnport.reporting import html, machines

        save(html.page(machines.document(report)), page)
    return lambda: _finish(out, report)


def _finish(out: Reporter, report: MachinesReport) -> None:
    out.show(report)
    for result in report.results:
        if result.exit_code:
            complain(f"{result.machine}, {result.folder}: {result.error}")
    sys.exit(report.exit_code)
