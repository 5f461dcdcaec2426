"""`--ray` and `--page` of `check`, `bench` and `tune`: the verb on every machine of a cluster, for several folders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attnport.console.arguments import FOLDER
from attnport.console.run import Reporter, complain

if TYPE_CHECKING:
    from attnport.machines import MachinesReport

F = TypeVar("F", bound=Callable[..., Any])
_ARGUMENTS = {"timeout": "timeout_s", "budget": "budget_s"}
"""Options that have another name as an argument of their verb."""
_HERE = ("search", "kind", "junit", "save", "compare", "fail_on_regression")
"""Options that are about a result of this machine."""


def several(work: F) -> F:
    """Adds --ray and --page, and lets FOLDER be several with them; without, the verb is called as it is."""

    @click.option(
        "--ray", "address", metavar="ADDRESS",
        help="Run on every machine of a Ray cluster, at ADDRESS, auto or local, on a copy of each FOLDER.",
    )  # fmt: skip
    @click.option("--page", type=FOLDER, metavar="FILE", help="With --ray: show the machines on an HTML page too.")
    @wraps(work)
    def run(
        out: Reporter, folder: tuple[Path, ...], address: str | None, page: Path | None, **options: Any
    ) -> Callable[[], None]:
        if address is None:
            if page is not None:
                raise click.UsageError("--page goes with --ray ADDRESS.")
            if len(folder) > 1:
                raise click.UsageError(f"several folders go with --ray ADDRESS; got {', '.join(map(str, folder))}.")
            finish: Callable[[], None] = work(out, folder=folder[0] if folder else None, **options)
            return finish
        return _on_machines(out, work.__name__, folder, address, page, options)

    return run  # type: ignore[return-value]  # it takes what `work` takes, and more


def _on_machines(
    out: Reporter, verb: str, folders: tuple[Path, ...], address: str, page: Path | None, options: dict[str, Any]
) -> Callable[[], None]:
    from attnport.verbs._saving import check_target, save
    from attnport.verbs.machines import on_machines

    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name in _HERE:
            options.pop(parameter.name)
            if context.get_parameter_source(parameter.name) == click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{parameter.opts[0]} goes without --ray.")
    if not folders:
        raise click.UsageError("Missing argument 'FOLDER...'.")
    if page is not None:
        check_target(page, "--page", "machines.html")
    told = {_ARGUMENTS.get(name, name): value for name, value in options.items()}
    report = on_machines(verb, folders, address, progress=out.progress, **told)
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
