"""The options of `attnport gpu-check`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from attnport.console.arguments import FOLDER

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("-o", "--output", type=FOLDER, default=Path("benchmarks"), show_default=True, help="gpu-NAME.json."),
    click.option(
        "--work", type=FOLDER, default=Path("out/gpu-check"), show_default=True, help="Artifacts, several GB; kept."
    ),
    click.option("--only", multiple=True, help="A model, bert_encoder or llama_decoder; default: both."),
    click.option("--dtype", "dtypes", multiple=True, help="A precision plan, fp16, bf16 or fp32; default: fp16, bf16."),
    click.option("--runtime", "runtimes", multiple=True, help="A runtime; default: all. A piece then has no other."),
    click.option(
        "--budget", type=click.FloatRange(min=0, min_open=True), help="Seconds after which no further step is begun."
    ),
    click.option("--threads", type=click.IntRange(min=1), help="Threads on the host; default: the physical cores."),
    click.option("--force", is_flag=True, help="Measure again what is there."),
)


def gpu_options(work: F) -> F:
    """Adds them to a command."""
    for option in reversed(_OPTIONS):
        work = option(work)
    return work
