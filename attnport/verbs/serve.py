"""`attnport serve`: answers requests for bundles over the open inference protocol, on an engine that exists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from attnport.folder.workspace import open_folder
from attnport.optional import require
from attnport.options import Option, Tell
from attnport.verbs._arguments import verb_of_fields
from attnport.verbs.bundle import BUNDLE, bundle
from attnport_bundle import serve as serving
from attnport_bundle.format.manifest import MANIFEST as BUNDLE_MANIFEST
from attnport_bundle.serve import ENGINES, Options

_DEFAULTS = Options()


@verb_of_fields
def serve(
    folder: Annotated[
        Path | None,
        Option("A bundle, or an artifact folder, of which one is made; it is served under its own name.", "FOLDER"),
    ] = None,
    engine: Annotated[
        Literal["kserve", "ray"], Option("KServe's endpoints in one process, or in replicas on a Ray cluster.")
    ] = "kserve",
    *,
    models: Annotated[
        Sequence[str], Option("A bundle by its name; several allowed.", "--model", metavar="NAME=FOLDER")
    ] = (),
    options: Options = _DEFAULTS,
    key: Annotated[Path | None, Option("A public key (PEM) that every bundle must be signed with.")] = None,
    tell: Tell = lambda message: None,
) -> None:
    """Serves bundles until the process is told to stop, and answers what was accepted before it returns.

    Raises:
        UnavailableError: the engine's package is not installed.
        AttnportError: there is no such engine or bundle, or one does not pass its self-test; or as `bundle`.
    """
    artifact = None if folder is None or (folder / BUNDLE_MANIFEST).is_file() else folder
    if artifact is None:
        serving.named(models, folder)
    else:
        open_folder(artifact)  # which says what else it is
    if engine in ENGINES:
        require(engine, ENGINES[engine])
    if artifact is not None:
        folder = bundle(artifact, artifact / BUNDLE, tell=tell)
    serving.serve(serving.named(models, folder), engine, options, key, tell)
