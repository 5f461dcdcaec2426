"""`attnport serve`: answers requests for bundles over open protocols, on an engine that exists."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from attnport.errors import ArtifactError, UsageError
from attnport.folder.workspace import meant_by, open_folder
from attnport.models.base import names
from attnport.options import Option, Progress, Tell
from attnport.verbs._arguments import verb_of_fields
from attnport.verbs.bundle import BUNDLE, bundle
from attnport.verbs.export import export
from attnport_bundle import serve as serving
from attnport_bundle.format.manifest import MANIFEST as BUNDLE_MANIFEST
from attnport_bundle.serve import Options

_DEFAULTS = Options()


@verb_of_fields
def serve(
    folder: Annotated[
        Path | None,
        Option("A bundle; or an artifact folder or a model, of which one is made. It has its own name.", "FOLDER"),
    ] = None,
    engine: Annotated[
        Literal["kserve", "ray"], Option("KServe's endpoints in one process, or in replicas on a Ray cluster.")
    ] = "kserve",
    *,
    out: Annotated[
        Path | None, Option("Of a model: its artifact folder; default: one of its name in out/.", "-o --output")
    ] = None,
    with_past: Annotated[bool, Option("Of a model that is a decoder: export it with its cache, for texts.")] = False,
    models: Annotated[
        Sequence[str], Option("A bundle by its name; several allowed.", "--model", metavar="NAME=FOLDER")
    ] = (),
    options: Options = _DEFAULTS,
    key: Annotated[Path | None, Option("A public key (PEM) that every bundle must be signed with.")] = None,
    progress: Progress = lambda message: None,
    tell: Tell = lambda message: None,
) -> None:
    """Serves bundles until the process is told to stop, and answers what was accepted before it returns.

    Raises:
        UnavailableError: the engine's package is not installed.
        AttnportError: there is no such engine or bundle, or one does not pass its self-test; or as `export`, `bundle`.
    """
    artifact = None if folder is None or (folder / BUNDLE_MANIFEST).is_file() else folder
    is_model = artifact is not None and _is_model(artifact)
    if not is_model and (out is not None or with_past):
        raise UsageError("--output and --with-past are for a model, which is exported first.", hint="Leave them out.")
    if artifact is None:
        serving.named(models, folder)
    elif not artifact.exists() and not is_model:
        raise ArtifactError(
            f"{artifact} is not a folder.", hint=f"{meant_by(artifact)}; a model of the hub is hf:OWNER/NAME"
        )
    elif not is_model:
        open_folder(artifact)  # which says what else it is
    if artifact is not None:  # before an export that takes minutes
        serving.engine_of(engine)
    if artifact is not None and is_model:
        spec, artifact = str(artifact), out or Path("out", artifact.name.rpartition(":")[2].partition(".")[0])
        tell(f"exporting {spec} to {artifact}, as far as that was not done before")
        try:
            export(spec, artifact, with_past=with_past, progress=progress, tell=tell)
        except UsageError as err:
            command = shlex.join(["attnport", "export", spec, "-o", str(artifact)])
            if any(option in err.hint for option in ("--", "inputs=", "dims=")):  # of export, which serve has not
                err.hint = f"{err.hint}. Give it to export, and serve what that writes: {command} ..."
            raise
    if artifact is not None:
        tell(f"bundling it in {artifact / BUNDLE}, of a form that is checked first")
        folder = bundle(artifact, artifact / BUNDLE, progress=progress, tell=tell)
    serving.serve(serving.named(models, folder), engine, options, key, tell)


def _is_model(place: Path) -> bool:
    """Whether it is a folder of transformers, a file of ONNX, or what no folder is called: `hf:owner/name`,
    `file.py:function`, the name of a model of ours."""
    if place.is_dir():
        return (place / "config.json").is_file()
    return place.suffix == ".onnx" or ":" in str(place) or str(place).replace("-", "_") in names()
