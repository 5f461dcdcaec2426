"""The artifact folder as the verbs see it: opened, checked, changed all at once, and stages that need not run again.

`create` makes an artifact, `change` changes one, and `stage` is a change that is left out if it was made before.
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attnport_bundle
from attnport.artifacts import FORMAT, MANIFEST, Manifest, ModelSpec, Stage
from attnport.errors import ArtifactError, IntegrityError, SpecError, UsageError
from attnport.folder.machine import versions
from attnport.folder.portable import as_command
from attnport.folder.refusals import as_usage_error
from attnport.jsonfile import digest_file, digest_text, read, to_json
from attnport.module_path import ROOT
from attnport.sources.digests import changes
from attnport.sources.program import Stored, note
from attnport.transaction import OWN, Transaction, settle, transaction
from attnport.version import __version__

T = TypeVar("T")
_MOST_CHANGES = 4
"""So many changed files are named."""
_VERBS = {"lower": "fuse", "precision": "build", "layers": "check --bisect"}
"""The verbs of stages that have other names."""

_MADE_BY = "Make one with: attnport export MODEL -o FOLDER"


def open_folder(folder: Path) -> Manifest:
    """Reads a folder's manifest, after taking back what an interrupted verb did not finish.

    Raises:
        ArtifactError: not an artifact folder, or its manifest is malformed or of another version.
        IntegrityError: the manifest names files outside the folder, or uses one that it has no digest of.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder.", hint=as_command(_MADE_BY, folder))
    settle(folder)
    if not (folder / MANIFEST).is_file():
        raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST}.", hint=as_command(_MADE_BY, folder))
    manifest = read(Manifest, folder / MANIFEST)
    if manifest.format != FORMAT:
        raise ArtifactError(f"{folder / MANIFEST}: got format {manifest.format}; this version reads {FORMAT}.")
    if not manifest.files:
        raise IntegrityError(f"{folder / MANIFEST} names no file at all.", hint="Somebody edited it; export again.")
    used = [form.file for form in manifest.forms.values()] + [engine.file for engine in manifest.engines.values()]
    for name in (*manifest.files, *used, *([manifest.tokenizer] if manifest.tokenizer else [])):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise IntegrityError(
                f"{folder / MANIFEST} names {name!r}, which is outside the folder.",
                hint="Somebody edited it; export again, or get the folder from where it was made.",
            )
    for name in used:
        if name not in manifest.files:
            raise IntegrityError(
                f"{folder / MANIFEST} uses {name} and has no digest of it.", hint="Somebody edited it; export again."
            )
    note(manifest.source, Stored(folder, manifest.name, manifest.io, manifest.files))
    return manifest


def open_if_there(folder: Path) -> Manifest | None:
    """As `open_folder`, but None where nothing was exported yet."""
    return open_folder(folder) if (folder / MANIFEST).is_file() else None


def toolchain(*packages: str) -> str:
    """A digest of this project's own code and of the installed ones of `packages`, a part of a stage's inputs; see
    `machine.versions`."""
    return digest_text(_own_code(), *(f"{name} {found}" for name, found in sorted(versions(packages).items())))


@functools.cache
def _own_code() -> str:
    roots = (Path(ROOT, "attnport"), Path(attnport_bundle.__file__).parent)
    files = sorted(
        (str(path.relative_to(root.parent)), path)
        for root in roots
        for path in root.rglob("*")
        if path.suffix in (".py", ".css", ".js")
    )
    return digest_text(*(f"{name} {digest_file(path)}" for name, path in files))


def check_files(folder: Path, manifest: Manifest, *names: str) -> None:
    """Compares files with the manifest's digests; without names, all of them.

    Raises:
        IntegrityError: a file is missing or is not the one that was written.
    """
    for name in names or tuple(manifest.files):
        path = folder / name
        if not path.is_file():
            raise IntegrityError(f"{path} is missing.", hint=f"Restore it, or {_again(manifest, name)}.")
        if path.is_symlink() or digest_file(path) != manifest.files.get(name):
            raise IntegrityError(
                f"{path} is not the file that was written: its digest differs.",
                hint=f"It was changed or cut short; {_again(manifest, name)}.",
            )


def _again(manifest: Manifest, name: str) -> str:
    """What writes a file again."""
    stage = next((stage for stage, done in manifest.stages.items() if name in done.files), "export").partition(":")[0]
    return f"write it again with: attnport {_VERBS.get(stage, stage)}"


def load_spec(manifest: Manifest) -> ModelSpec:
    """Loads the ModelSpec a folder was exported from, and checks that all it depends on is still the same.

    Raises:
        SpecError: the source is gone or changed, which names the SPEC, and the files or that it is the weights; or it
            would run code that nobody asked for here (see `folder.loading`).
    """
    from attnport.folder.loading import note_read, reload, without_outputs

    spec = reload(manifest.source)
    if spec.source.code_digest != manifest.source.code_digest:
        if manifest.depends is None:
            raise SpecError(
                f"{manifest.source.text} was exported by an attnport that did not record which files it read, so that "
                "nothing tells whether they changed.",
                hint="Export it again.",
            )
        told = changes(manifest.depends, spec.depends)
        more = f", and {len(told) - _MOST_CHANGES} more" if len(told) > _MOST_CHANGES else ""
        raise SpecError(
            f"the code of {manifest.source.text}, or a file that it reads, changed since export: "
            f"{', '.join(told[:_MOST_CHANGES])}{more}.",
            hint="Export again, or bring the earlier state back.",
        )
    if spec.source.weights_digest != manifest.source.weights_digest:
        raise SpecError(
            f"the weights of {manifest.source.text} changed since export.",
            hint="Export again, or bring the earlier state back.",
        )
    note_read(manifest.source, spec.read)
    exported = {output.name for output in manifest.io.outputs}
    hidden = [output.name for output in spec.io.outputs if output.name not in exported]
    return dataclasses.replace(without_outputs(spec, hidden), io=manifest.io)


def check_source(manifest: Manifest) -> None:
    """Checks that the source of a folder is what was exported; it is loaded only if a file of it may have changed.

    A module in memory is its own: nothing on disk can change it.

    Raises:
        SpecError: as `load_spec`.
    """
    from attnport.folder.loading import unchanged

    if not manifest.source.in_memory and not unchanged(manifest.source):
        load_spec(manifest)


class Change:
    """A verb's change to a folder: write files to `path(name)`, set `manifest` fields, name the stage at the end.

    Without a call of `finish`, nothing is changed.
    """

    def __init__(self, folder: Path, staged: Transaction, manifest: Manifest, began_s: float | None = None) -> None:
        self.folder = folder
        self.manifest = manifest
        self._staged = staged
        self._began_s = time.monotonic() if began_s is None else began_s

    def path(self, name: str) -> Path:
        """Where to write the file that will be called `name`."""
        return self._staged.path(name)

    def write(self, name: str, value: Any) -> None:
        """Writes a value as JSON into the file that will be called `name`."""
        self.path(name).write_text(to_json(value), encoding="utf-8")

    def remove(self, name: str) -> None:
        """Deletes a file that the folder no longer holds."""
        self._staged.remove(name)
        files = {file: digest for file, digest in self.manifest.files.items() if file != name}
        self.manifest = dataclasses.replace(self.manifest, files=files)

    def finish(self, stage: str, inputs: str, *, extra: tuple[str, ...] = ()) -> Manifest:
        """Records the stage and the digests of what it staged, and stages the manifest.

        Args:
            stage: The name of the stage.
            inputs: The digest of what it is made from; see `fresh`.
            extra: Files that belong to the stage though an earlier change wrote them.
        """
        written = self._staged.staged()
        done = Stage(
            inputs=inputs,
            files=(*written, *extra),
            made=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            seconds=round(time.monotonic() - self._began_s, 3),
        )
        self.manifest = dataclasses.replace(
            self.manifest,
            attnport=__version__,
            files={**self.manifest.files, **written},
            stages={**self.manifest.stages, stage: done},
        )
        self.write(MANIFEST, self.manifest)
        return self.manifest


class Run(Change):
    """A change that is one stage of a verb; see `stage`.

    Attributes:
        kept: Whether the stage was done before with the same inputs, and its files are still what it wrote.
    """

    def __init__(self, change: Change, stage: str, inputs: str, force: bool) -> None:
        super().__init__(change.folder, change._staged, change.manifest, change._began_s)
        self._stage, self._inputs = stage, inputs
        self.kept = not force and fresh(self.folder, self.manifest, stage, inputs)

    def record(self, *, final: bool = True, extra: tuple[str, ...] = ()) -> Manifest:
        """Records the stage as `finish` does; one that is not `final` is done again by the next call."""
        return self.finish(self._stage, self._inputs if final else "", extra=extra)


@contextmanager
def _locked(folder: Path) -> Iterator[Transaction]:
    """A transaction whose errors are those of `create` and `change`."""
    try:
        with transaction(folder, MANIFEST) as staged:
            yield staged
    except OSError as err:
        # Where no folder can be made, some file systems say of the folder itself that it is not found.
        if err.errno == errno.ENOENT and err.filename and Path(err.filename) in (folder, *folder.parents):
            raise UsageError(f"{folder} cannot be made.", hint="Choose a place that you may write to.") from err
        told = as_usage_error(err)
        if told is None:
            raise
        raise told from err


def refuse_stranger(folder: Path) -> None:
    """Refuses to export into a folder that holds somebody's files, or that `create` cannot write; nothing is changed.

    Raises:
        UsageError: it is a file, or a folder that is neither empty nor an artifact; or as `create`.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} exists and is not a folder.", hint="Give another folder, or move it away.")
    if folder.exists() and not (folder / MANIFEST).exists():
        settle(folder)  # a first export that was killed has left files of its own
        strange = sorted(path.name for path in folder.iterdir() if path.name not in OWN)
        if strange:
            raise UsageError(
                f"{folder} holds other files ({strange[0]}) and is not an artifact; nothing was changed.",
                hint="Give an empty or a new folder.",
            )
    with _locked(folder):
        pass


@contextmanager
def create(folder: Path, manifest: Manifest, began_s: float | None = None) -> Iterator[Change]:
    """Opens a folder for a new artifact, which replaces an earlier one with all of its files, or none of them.

    Args:
        folder: A new or empty folder, or an artifact; see `refuse_stranger`.
        manifest: The first manifest of the new artifact.
        began_s: When the stage began, by `time.monotonic`; None = now.

    Raises:
        ArtifactError, IntegrityError: the earlier artifact cannot be read.
        UsageError: as `change`.
    """
    with _locked(folder) as staged:
        changing = Change(folder, staged, manifest, began_s)
        for name in open_folder(folder).files if (folder / MANIFEST).exists() else ():
            changing.remove(name)  # forms, engines and reports of the earlier model are no longer valid
        yield changing


@contextmanager
def change(folder: Path, began_s: float | None = None) -> Iterator[Change]:
    """Opens an artifact for one verb's change; all of it becomes visible at the end, or none.

    Args:
        folder: An artifact folder.
        began_s: When the stage began, by `time.monotonic`; None = now.

    Raises:
        ArtifactError, IntegrityError: as `open_folder` and `transaction`.
        UsageError: the folder cannot be written, another process is writing to it, or the disk is full.
    """
    open_folder(folder)  # a folder that is no artifact is not even locked
    with _locked(folder) as staged:
        yield Change(folder, staged, open_folder(folder), began_s)


@contextmanager
def stage(folder: Path, name: str, inputs: str, *, force: bool = False, began_s: float | None = None) -> Iterator[Run]:
    """Opens an artifact for one stage of a verb: `if run.kept`, return the earlier result; else `run.record()`.

    Args:
        folder: An artifact folder.
        name: The name of the stage.
        inputs: A digest of everything that the result depends on.
        force: Do it again even if nothing has changed.
        began_s: When it began, by `time.monotonic`; None = now.

    Raises:
        ArtifactError, IntegrityError, UsageError: as `change`.
    """
    with change(folder, began_s) as changing:
        yield Run(changing, name, inputs, force)


def fresh(folder: Path, manifest: Manifest, stage: str, inputs: str) -> bool:
    """Whether a stage was already done with the same inputs and its files are still what it wrote."""
    done = manifest.stages.get(stage)
    if done is None or done.inputs != inputs:
        return False
    return all(
        (folder / name).is_file() and digest_file(folder / name) == manifest.files.get(name) for name in done.files
    )


def read_report(kind: type[T], folder: Path, manifest: Manifest, name: str) -> T | None:
    """What a verb wrote into the file `name`; None when it has not run.

    Raises:
        IntegrityError: the file is not the one that was written.
        ArtifactError: it is no `kind`.
    """
    if name not in manifest.files:
        return None
    check_files(folder, manifest, name)
    return read(kind, folder / name)
