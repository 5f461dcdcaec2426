"""`attnport bundle`: a folder that an application takes over, with proof that it is what was checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from attnport.artifacts import Manifest
from attnport.bundling import place, signing
from attnport.bundling.backends import Backend, choose
from attnport.bundling.judging import FUSION, PARITY, gate, judge
from attnport.bundling.write import needed_files, write
from attnport.errors import ArtifactError, AttnportError, IntegrityError, ParityFailed, UsageError
from attnport.folder.workspace import check_files, open_folder
from attnport.parity.golden import read_goldens
from attnport_bundle.signature import SIGNATURE

LANGUAGES = ("python", "cpp")
_GOLDEN = "golden.npz"


def bundle(
    folder: Path,
    out: Path,
    *,
    lang: Sequence[str] = ("python",),
    forms: Sequence[str] = ("ort_cpu",),
    unverified: bool = False,
    sign: Path | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda message: None,
) -> Path:
    """Writes a bundle of an artifact folder; all of it appears at once, and equal inputs give equal bytes.

    Args:
        folder: The artifact folder.
        out: The bundle's folder. One that is there is replaced when it is empty or a bundle as it was made.
        lang: The languages to bundle a reader for. Python's is in every bundle, so that it can check itself anywhere.
        forms: The forms and engines to bundle, the preferred one first.
        unverified: Take forms whose parity was not run; the bundle says so. One that failed is never taken.
        sign: A private key to sign the bundle with; see `attnport.bundling.signing`.
        force: Replace a bundle even when files were changed in it or added to it.

    Returns:
        `out`.

    Raises:
        UsageError: an unknown language or form, a key that is not taken, or `out` is no bundle.
        ArtifactError, IntegrityError: the artifact is incomplete, or not what was written.
        ParityFailed: a form failed, or was not checked; or the bundle fails its own golden cases here.
    """
    unknown = [one for one in lang if one not in LANGUAGES]
    if unknown or not lang:
        raise UsageError(f"language {', '.join(unknown) or 'missing'}; expected one of {', '.join(LANGUAGES)}.")
    if sign is not None:
        signing.private_key(sign, folder, out)  # before the work, not behind it
    manifest = open_folder(folder)
    backends = choose(folder, manifest, forms)
    progress("checking the artifact's files")
    check_files(folder, manifest, *_wanted(folder, manifest, backends))
    judged = judge(folder, manifest, backends)
    gate(folder, judged, unverified)
    goldens = read_goldens(folder / _GOLDEN, manifest.io, {backend.form.plan for backend in backends})
    _refuse_stranger(out, force)
    if sign is None and (out / SIGNATURE).exists():
        progress(f"{out} was signed; the bundle that replaces it is not")
    with place.replaced(out, lambda: _refuse_stranger(out, force)) as staged:
        progress("copying")
        write(staged, folder, manifest, judged, goldens, cpp="cpp" in lang)
        if sign is not None:
            signing.sign(staged, sign)
        progress("running the golden cases")
        _try(staged)
    return out


def _wanted(folder: Path, manifest: Manifest, backends: Sequence[Backend]) -> list[str]:
    """The artifact's files that are used; a form is compared with its digest before it is looked into."""
    check_files(folder, manifest, *(backend.form.file for backend in backends))
    wanted = [*needed_files(folder, manifest, backends), *(one for one in (PARITY, FUSION) if one in manifest.files)]
    for name in wanted:
        if name not in manifest.files:
            raise ArtifactError(f"{folder} has no {name}, which a bundle is made from.", hint="Export and fuse again.")
    return wanted


def _refuse_stranger(out: Path, force: bool) -> None:
    """Raises UsageError unless `out` is free, empty, or a bundle that nobody put anything else into."""
    from attnport_bundle import files, manifest
    from attnport_bundle.errors import BundleError

    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise UsageError(f"{out} is there and is no folder.", hint="Give another folder, or move it away.")
    if not any(out.iterdir()):
        return
    if not (out / manifest.MANIFEST).is_file():
        raise UsageError(f"{out} is not empty and no bundle; it stays as it is.", hint="Give another folder.")
    if force:
        return
    try:
        found = files.check(out, manifest.read(out))
    except BundleError as err:
        raise UsageError(f"{out} holds a bundle that cannot be read: {err}", hint="Replace it with --force.") from err
    if found:
        raise UsageError(
            f"{out} holds a bundle that was worked on since: {found[0].name}: {found[0].problem}.",
            hint="Move what is yours out of it, or replace all of it with --force.",
        )


def _try(staged: Path) -> None:
    """Runs the bundle's own check on it before anybody sees it; without onnxruntime, of the files alone."""
    from attnport_bundle.errors import BundleError, RuntimeMissing
    from attnport_bundle.selftest import selftest

    try:
        report = selftest(staged)
    except BundleError as err:  # what the artifact says is more than a reader takes: a long declaration, for one
        told = str(err).removeprefix(f"{staged}{os.sep}")
        raise ArtifactError(
            f"no reader would take this bundle: {told}", hint="It was not written; mend what is named and export again."
        ) from err
    bad = next((row for row in report.rows if row.verdict == "FAIL"), None)
    if bad is None or report.exit_code in (0, RuntimeMissing.exit_code):
        return
    kinds: dict[int, type[AttnportError]] = {
        ParityFailed.exit_code: ParityFailed,
        IntegrityError.exit_code: IntegrityError,
    }
    raise kinds.get(report.exit_code, ArtifactError)(
        f"the bundle fails its own check: {bad.check}: {bad.detail}.", hint="It was not written; check the artifact."
    )
