"""What `ship` and `export` are told of a module: where it comes from, its inputs, its dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from attnport.console.arguments import FOLDER

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("spec"),
    click.option("-o", "--output", type=FOLDER, required=True, help="The artifact folder."),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        help='"x=float32[batch,seq,256]", "mask=int64[batch,seq]:padding", "ids=int64[batch,seq]:high=30522".',
    ),
    click.option("--dim", "dims", multiple=True, help='Least, usual and largest size of a dim, "seq=1:128:512".'),
    click.option("--with-weights", is_flag=True, help="Keep outputs that are attention weights."),
    click.option(
        "--trust-remote-code",
        is_flag=True,
        help="Run the Python code that an hf: model's config.json names, its own or another repository's. Without it "
        "none is run, and a model that needs it is refused.",
    ),
    click.option("--force", is_flag=True, help="Do it again even when nothing changed."),
)


def source_options(work: F) -> F:
    """SPEC, -o, --input, --dim, --with-weights, --trust-remote-code, --force."""
    for option in reversed(_OPTIONS):
        work = option(work)
    return work
