"""`attnport generate`: continues prompts with a decoder that was exported with its cache."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnport.dims import STRICT
from attnport.errors import UsageError
from attnport.folder.opened import opened
from attnport.folder.workspace import open_folder
from attnport_bundle.generating import generate as continued

_SHOWN = 200
"""The letters at the end of the first text that are shown while it grows."""


@dataclass(frozen=True)
class Generated:
    """What `attnport generate` found.

    Attributes:
        runtime: What it ran in.
        device: What that computed on.
        prompts: What was continued.
        texts: The new text of each prompt.
        tokens: How many new tokens of all prompts were made.
        seconds: From the prompts to the last token, opening apart.
        first_s: From the prompts to the first token; of beam search, to the end.
    """

    schema: Literal["attnport/generate/1"] = field(default="attnport/generate/1", kw_only=True)
    runtime: str
    device: str
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    tokens: int
    seconds: float
    first_s: float

    __pydantic_config__ = STRICT


def generate(
    folder: Path,
    prompts: Sequence[str],
    runtime: str = "ort_cpu",
    *,
    threads: int | None = None,
    stop: Sequence[int | str] = (),
    on_text: Callable[[int, str], None] | None = None,
    progress: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> Generated:
    """Continues prompts in a runtime.

    Args:
        folder: The artifact of a decoder with its cache, and with a tokenizer.
        stop: Tokens behind which a text ends; none = those that the model was exported with.
        on_text: Called with a prompt's number and each new piece of its text.
        options: As of `attnport_bundle.Model.generate`.

    Raises:
        FeedError: the model does not generate, or not from these prompts.
        UsageError, UnavailableError: there is no such runtime, or nothing for it in the folder.
    """
    manifest = open_folder(folder)
    if not manifest.tokenizer:
        raise UsageError(
            f"{folder} has no tokenizer, so that it takes token ids alone.",
            hint="In Python: attnport.open(FOLDER).generate([[1, 2, 3]]).",
        )
    progress("opening the model")
    session = opened(folder, manifest, runtime, threads)
    told: list[float] = []
    grown = ""

    def tell(row: int, text: str) -> None:
        nonlocal grown
        told.append(time.perf_counter())
        if row == 0:
            grown += text
            progress(f"{prompts[0]}{grown}"[-_SHOWN:])
        if on_text:
            on_text(row, text)

    file = folder / manifest.tokenizer
    with contextlib.closing(session):
        began = time.perf_counter()
        texts = continued(
            lambda **feeds: session.run(feeds),
            manifest.io,
            file,
            list(prompts),
            stop=stop or None,
            on_token=tell,
            **options,
        )
        seconds = time.perf_counter() - began
    ran = session.ran
    return Generated(runtime, ran.device, tuple(prompts), tuple(texts), len(told), seconds, told[0] - began)
