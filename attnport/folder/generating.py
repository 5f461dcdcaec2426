"""Opens a decoder, with the encoder that it needs, to continue prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attnport.artifacts import Manifest, Session
from attnport.decoders import decoder_of
from attnport.errors import UnavailableError
from attnport.folder.opened import opened
from attnport.folder.workspace import open_folder
from attnport_bundle.decoding.caches import Run, steps_of
from attnport_bundle.decoding.generate import Encoder, generate


@contextlib.contextmanager
def generating(
    folder: Path, runtime: str, encoder: Path | None = None, threads: int | None = None
) -> Iterator[tuple[Callable[..., Any], Session]]:
    """What continues prompts, as `attnport_bundle.Model.generate` does, and the session of the decoder.

    Args:
        folder: The artifact of a decoder with its cache.
        runtime: As of `opened`. An encoder that has nothing in the precision of a form runs in its usual one.
        encoder: The artifact of the encoder in front of it.

    Raises:
        UsageError, UnavailableError, IntegrityError, SpecError: as `opened`.
    """
    with contextlib.ExitStack() as stack:
        manifest = open_folder(folder)
        reader = None
        if encoder is not None:
            reads = open_folder(encoder)
            session = stack.enter_context(contextlib.closing(_encoder(encoder, reads, runtime, threads)))
            reader = Encoder(_run(session), reads.io, _tokenizer(encoder, reads))
        session = stack.enter_context(contextlib.closing(opened(folder, manifest, runtime, threads)))
        io, file = manifest.io, _tokenizer(folder, manifest)
        yield (
            partial(generate, _run(session), io, decoder_of(io), file, steps=steps_of(session), encoder=reader),
            session,
        )


def _encoder(folder: Path, manifest: Manifest, runtime: str, threads: int | None) -> Session:
    try:
        return opened(folder, manifest, runtime, threads)
    except UnavailableError:
        own, dot, _ = runtime.partition(".")
        if not dot:
            raise
        return opened(folder, manifest, own, threads)


def _run(session: Session) -> Run:
    return lambda **feeds: session.run(feeds)


def _tokenizer(folder: Path, manifest: Manifest) -> Path | None:
    return folder / manifest.tokenizer if manifest.tokenizer else None
