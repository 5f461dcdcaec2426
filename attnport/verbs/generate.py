"""`attnport generate`: continues prompts, or answers them, with a decoder that was exported with its cache."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from attnport.artifacts import Manifest, Session
from attnport.cases.choosing import read_feeds
from attnport.decoders import decoder_of
from attnport.errors import UnavailableError, UsageError
from attnport.folder.workspace import open_folder, opened
from attnport.options import Note, Option, Progress
from attnport.printed import Printed
from attnport.reporting import document as doc
from attnport.runtimes.base import Key
from attnport.verbs._arguments import verb
from attnport.verbs._needs import ready
from attnport_bundle.decoding.caches import Run, steps_of
from attnport_bundle.decoding.generate import Opened
from attnport_bundle.decoding.generate import generate as continued

_SHOWN = 200
"""The letters at the end of the first text that are shown while it grows."""


@dataclass(frozen=True, repr=False)
class Generated(Printed):
    """What `attnport generate` found.

    Attributes:
        runtime: What it ran in.
        device: What that computed on.
        prompts: What was continued, or read by the encoder; none where that was no text.
        texts: The new text of each prompt.
        tokens: How many new tokens of all prompts were made.
        seconds: From the prompts to the last token, opening apart.
        first_s: From the prompts to the first token; of beam search, to the end.
        answers: Whether the texts answer the prompts, as those behind an encoder do, and do not continue them.
    """

    schema: Literal["attnport/generate/1"] = field(default="attnport/generate/1", kw_only=True)
    runtime: str
    device: str
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    tokens: int
    seconds: float
    first_s: float
    answers: bool = False


@verb
def generate(
    folder: Annotated[Path, Option("The artifact of a decoder with its cache, and with a tokenizer.")],
    prompts: Annotated[Sequence[str], Option("A text to continue; several allowed.", "--prompt")] = (),
    runtime: Annotated[str, Option("A runtime, or a form such as openvino.bf16.")] = "ort_cpu",
    *,
    encoder: Annotated[Path | None, Option("Of an encoder-decoder: the artifact that reads the prompts.")] = None,
    inputs: Annotated[
        Path | None, Option("An .npz of the encoder's inputs, in place of prompts.", metavar="FILE")
    ] = None,
    max_tokens: Annotated[int, Option("The most new tokens of a prompt.", least=1)] = 64,
    temperature: Annotated[float, Option("Above 0, tokens are drawn.", least=0)] = 0.0,
    top_k: Annotated[int, Option("Draw among so many of the likeliest; 0 = among all.", least=0)] = 0,
    top_p: Annotated[
        float, Option("Draw among the likeliest that together have this probability.", above=0, most=1)
    ] = 1.0,
    seed: Annotated[int | None, Option("Of the draws.")] = None,
    beams: Annotated[int | None, Option("Above 1: beam search; default: the model's own number.", least=1)] = None,
    min_tokens: Annotated[int | None, Option("Generate at least so many tokens.", least=0)] = None,
    repetition_penalty: Annotated[
        float | None, Option("Above 1, make tokens that a text has less likely.", above=0)
    ] = None,
    no_repeat_ngram: Annotated[int | None, Option("Never repeat N tokens in a row.", metavar="N", least=0)] = None,
    start: Annotated[
        Sequence[int | str],
        Option(
            "The first token of a text behind an encoder, in place of the model's own; several allowed.",
            metavar="TOKEN",
        ),
    ] = (),
    stop: Annotated[
        Sequence[int | str],
        Option("A token behind which a text ends, in place of the model's own; several allowed.", metavar="TOKEN"),
    ] = (),
    threads: Annotated[int | None, Option("Compute threads; default: the runtime's choice.", least=1)] = None,
    on_text: Annotated[
        Callable[[int, str], None] | None, Note("Called with a prompt's number and each new piece of its text.")
    ] = None,
    progress: Progress = lambda message: None,
) -> Generated:
    """Continues prompts in a runtime.

    Raises:
        FeedError: the model does not generate, or not from these prompts.
        UsageError, UnavailableError: there is no such runtime, nothing for it in the folder, or nothing to continue.
    """
    if bool(prompts) == (inputs is not None):
        raise UsageError(
            "generate takes prompts or inputs, and got " + ("both." if prompts else "neither."),
            hint="Give --prompt TEXT or, of an encoder that does not read text, --inputs FILE.npz.",
        )
    manifest = open_folder(folder)
    decoder_of(manifest.io)
    if not manifest.tokenizer:
        raise UsageError(
            f"{folder} has no tokenizer, so that it takes token ids alone.",
            hint="In Python: attnport.open(FOLDER).generate([[1, 2, 3]]).",
        )
    given = list(prompts) if inputs is None else read_feeds(inputs)
    how = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "beams": beams,
        "min_tokens": min_tokens,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram": no_repeat_ngram,
    }
    progress("opening the model")
    told: list[float] = []
    grown = ""

    def tell(row: int, text: str) -> None:
        nonlocal grown
        told.append(time.perf_counter())
        if row == 0:
            grown += text
            progress(f"{prompts[0] if prompts and encoder is None else ''}{grown}"[-_SHOWN:])
        if on_text:
            on_text(row, text)

    with generating(folder, runtime, encoder, threads, progress) as (decode, session):
        began = time.perf_counter()
        texts = decode(given, start=start or None, stop=stop or None, as_text=True, on_token=tell, **how)
        seconds = time.perf_counter() - began
        device = session.ran.device
    return Generated(
        runtime, device, tuple(prompts), tuple(texts), len(told), seconds, told[0] - began, encoder is not None
    )


@contextlib.contextmanager
def generating(
    folder: Path,
    runtime: str,
    encoder: Path | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Iterator[tuple[Callable[..., Any], Session]]:
    """What continues prompts, as `attnport_bundle.Model.generate` does, and the session of the decoder.

    Args:
        folder: The artifact of a decoder with its cache. A form that it lacks is written first, as by `ready`.
        runtime: As of `opened`. An encoder that has nothing in the precision of a form runs in its usual one.
        encoder: The artifact of the encoder in front of it.

    Raises:
        UsageError, UnavailableError, ArtifactError, IntegrityError, SpecError: as `ready` and `opened`.
    """
    decoder = decoder_of(open_folder(folder).io)  # before anything is written
    ready(folder, [runtime], progress)
    if encoder is not None:
        ready(encoder, [Key.parse(runtime).runtime], progress)
    with contextlib.ExitStack() as stack:
        manifest = open_folder(folder)
        reader = None
        if encoder is not None:
            reads = open_folder(encoder)
            session = stack.enter_context(contextlib.closing(_encoder(encoder, reads, runtime, threads)))
            reader = Opened(_run(session), reads.io, _tokenizer(encoder, reads))
        session = stack.enter_context(contextlib.closing(opened(folder, manifest, runtime, threads)))
        own = Opened(_run(session), manifest.io, _tokenizer(folder, manifest), steps_of(session))
        yield partial(continued, own, decoder, encoder=reader), session


def _encoder(folder: Path, manifest: Manifest, runtime: str, threads: int | None) -> Session:
    try:
        return opened(folder, manifest, runtime, threads)
    except UnavailableError:
        key = Key.parse(runtime)
        if not key.precision:
            raise
        return opened(folder, manifest, key.runtime, threads)


def _run(session: Session) -> Run:
    return lambda **feeds: session.run(feeds)


def _tokenizer(folder: Path, manifest: Manifest) -> Path | None:
    return folder / manifest.tokenizer if manifest.tokenizer else None


def whole_texts(result: Generated) -> list[str]:
    """Each prompt with what continues it, or what answers it alone."""
    prompts = [""] * len(result.texts) if result.answers or not result.prompts else result.prompts
    return [f"{prompt}{text}" for prompt, text in zip(prompts, result.texts, strict=True)]


def speed(result: Generated) -> str:
    """How many tokens there are, and how long they took."""
    steps = max(result.tokens - len(result.texts), 0)
    rest = result.seconds - result.first_s
    each = f", then {1000 * rest * len(result.texts) / steps:.1f} ms a step" if steps and rest > 0 else ""
    return f"{result.tokens} tokens in {result.runtime}: the first after {1000 * result.first_s:.0f} ms{each}"


@doc.blocks.register(Generated)
def _blocks(result: Generated, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """Each prompt with its text, and how fast that was."""
    yield from map(doc.Text, [*whole_texts(result), speed(result)])
