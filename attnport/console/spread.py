"""`--ray` of `check`, `bench` and `tune`: the verb on every machine of a cluster, for several folders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click

from attnport.console.run import Reporter, complain
from attnport.options import Option


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
) -> Callable[[], None]:
    """Runs a verb for every folder on every machine, and returns what prints the results.

    Args:
        options: The arguments of the verb besides the folder.
    """
    from attnport.verbs.machines import on_machines

    if not folders:
        raise click.UsageError("Missing argument 'FOLDER...'.")
    report = on_machines(verb, folders, str(address), progress=out.progress, **options)

    def finish() -> None:
        out.show(report)
        for result in report.results:
            if result.exit_code:
                complain(f"{result.machine}, {result.folder}: {result.error}")
        sys.exit(report.exit_code)

    return finish
