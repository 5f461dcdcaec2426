"""The command `attnport serve`, whose options are those of the bundle's reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from attnport.console.arguments import FOLDER
from attnport.console.run import Reporter, verb
from attnport_bundle.serve.options import ENGINES, Options

F = TypeVar("F", bound=Callable[..., Any])


def _options(work: F) -> F:
    for each in reversed(dataclasses.fields(Options)):
        name, kind = f"--{each.name.replace('_', '-')}", type(each.default)
        option = click.option(
            name, type=kind, default=each.default, show_default=bool(each.default), help=each.metadata["help"]
        )
        work = option(work)
    return work


@click.command()
@click.argument("folder", type=FOLDER, required=False)
@click.option(
    "--engine", type=click.Choice(list(ENGINES)), default="kserve", show_default=True,
    help="KServe's endpoints in one process, or in replicas on a Ray cluster.",
)  # fmt: skip
@click.option("--model", "models", multiple=True, metavar="NAME=FOLDER", help="A bundle by its name; several allowed.")
@_options
@click.option("--key", type=FOLDER, help="A public key (PEM) that every bundle must be signed with.")
@verb
def serve(
    out: Reporter, folder: Path | None, engine: str, models: tuple[str, ...], key: Path | None, **options: Any
) -> Callable[[], None]:
    """Answer requests for bundles, on KServe or Ray Serve.

    FOLDER is a bundle, or an artifact folder, of which one is made. Requests are those of the open inference protocol
    v2, over HTTP and gRPC.
    """
    from attnport.verbs.serve import serve as run

    return lambda: run(folder, engine, models=models, key=key, tell=out.tell, **options)
