"""`attnport serve`: answers requests for bundles over the open inference protocol, on an engine that exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnport.artifacts import MANIFEST
from attnport.optional import require
from attnport.verbs.bundle import BUNDLE, bundle
from attnport_bundle import serve as serving
from attnport_bundle.serve.options import ENGINES, Options


def serve(
    folder: Path | None = None,
    engine: str = "kserve",
    *,
    models: Sequence[str] = (),
    key: Path | None = None,
    tell: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> None:
    """Serves bundles until the process is told to stop, and answers what was accepted before it returns.

    Args:
        folder: A bundle, or an artifact folder, of which one is made in it first. It is served under its own name.
        engine: `kserve`, one process, or `ray`, replicas on a cluster.
        models: Further bundles, `NAME=FOLDER` each.
        key: The public key (PEM) that every bundle must be signed with.
        tell: Called with lines about where requests are answered, before the first is.
        options: As of `attnport_bundle.serve.options.Options`.

    Raises:
        UnavailableError: the engine's package is not installed.
        AttnportError: there is no such engine or bundle, or one does not pass its self-test; or as `bundle`.
    """
    if folder is not None and (folder / MANIFEST).is_file():
        if engine in ENGINES:
            require(engine)  # before the bundle is made
        folder = bundle(folder, folder / BUNDLE, tell=tell)
    serving.serve(serving.named(models, folder), engine, Options(**options), key, tell)
