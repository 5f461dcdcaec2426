"""`attnport bundle`: writes a folder for an application, with proof that its forms are those that were checked."""

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
from attnport.parity.golden import FILE as GOLDEN
from attnport.parity.golden import read_goldens
from attnport_bundle.signature import SIGNATURE

LANGUAGES = ("python", "cpp")


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
    tell: Callable[[str], None] = lambda message: None,
) -> Path:
    """Writes a bundle of an artifact folder; all of it appears at once, and equal inputs give equal bytes.

    Args:
        folder: The artifact folder.
        out: The bundle's folder. An existing one is replaced if it is empty or an unchanged bundle.
        lang: The languages to bundle a reader for. Every bundle has the Python reader, to check itself anywhere.
        forms: The forms and engines to bundle, the preferred one first.
        unverified: Accept forms whose parity was not run; the bundle says so. Forms that failed are never accepted.
        sign: A private key to sign the bundle with; see `attnport.bundling.signing`.
        force: Replace a bundle even if its files were changed or files were added.
        tell: Called with a line if the golden cases were not all run, as none of the forms can run here.

    Returns:
        `out`.

    Raises:
        UsageError: a language or form is unknown, the key is refused, or `out` is not a bundle.
        ArtifactError, IntegrityError: the artifact is incomplete, or not what was written.
        ParityFailed: a form failed or was not checked, or the bundle fails its own golden cases here.
    """
    unknown = [language for language in lang if language not in LANGUAGES]
    if unknown or not lang:
        raise UsageError(f"language {', '.join(unknown) or 'missing'}; expected one of {', '.join(LANGUAGES)}.")
    if sign is not None:
        signing.private_key(sign, folder, out)  # a wrong key is refused before the work
    manifest = open_folder(folder)
    backends = choose(folder, manifest, forms)
    progress("checking the artifact's files")
    check_files(folder, manifest, *_wanted(folder, manifest, backends))
    judged = judge(folder, manifest, backends)
    gate(folder, judged, unverified)
    goldens = read_goldens(folder / GOLDEN, manifest.io, {backend.form.plan for backend in backends})
    _refuse_stranger(out, force)
    if sign is None and (out / SIGNATURE).exists():
        progress(f"{out} was signed; the bundle that replaces it is not")
    with place.replaced(out, lambda: _refuse_stranger(out, force)) as staged:
        progress("copying")
        write(staged, folder, manifest, judged, goldens, cpp="cpp" in lang)
        if sign is not None:
            signing.sign(staged, sign)
        progress("running the golden cases")
        _try(staged, tell)
    return out


def _wanted(folder: Path, manifest: Manifest, backends: Sequence[Backend]) -> list[str]:
    """The artifact's files that are used; a form is compared with its digest before it is parsed."""
    check_files(folder, manifest, *(backend.form.file for backend in backends))
    wanted = [
        *needed_files(folder, manifest, backends),
        *(report for report in (PARITY, FUSION) if report in manifest.files),
    ]
    for name in wanted:
        if name not in manifest.files:
            raise ArtifactError(f"{folder} has no {name}, which a bundle is made from.", hint="Export and fuse again.")
    return wanted


def _refuse_stranger(out: Path, force: bool) -> None:
    """Raises UsageError unless `out` does not exist, is empty, or is an unchanged bundle."""
    from attnport_bundle import files, manifest
    from attnport_bundle.errors import BundleError

    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise UsageError(f"{out} exists and is not a folder.", hint="Give another folder, or move it away.")
    if not any(out.iterdir()):
        return
    if not (out / manifest.MANIFEST).is_file():
        raise UsageError(f"{out} is neither empty nor a bundle; it was not changed.", hint="Give another folder.")
    if force:
        return
    try:
        problems = files.check(out, manifest.read(out))
    except BundleError as err:
        raise UsageError(f"{out} holds a bundle that cannot be read: {err}", hint="Replace it with --force.") from err
    if problems:
        raise UsageError(
            f"{out} holds a bundle that was changed since: {problems[0].name}: {problems[0].problem}.",
            hint="Move your own files out of it, or replace all of it with --force.",
        )


def _try(staged: Path, tell: Callable[[str], None]) -> None:
    """Runs the bundle's own check before the bundle appears; where none of its forms can run, only of the files."""
    from attnport_bundle.errors import BundleError, RuntimeMissing
    from attnport_bundle.selftest import selftest

    try:
        report = selftest(staged)
    except BundleError as err:  # the artifact has something that a reader refuses, such as a long declaration
        problem = str(err).removeprefix(f"{staged}{os.sep}")
        raise ArtifactError(
            f"readers would refuse this bundle: {problem}",
            hint="It was not written; correct what is named and export again.",
        ) from err
    bad = next((row for row in report.rows if row.verdict == "FAIL"), None)
    if bad is None or report.exit_code in (0, RuntimeMissing.exit_code):
        if report.exit_code:
            last = next(row for row in reversed(report.rows) if row.verdict == "NOT_RUN")
            tell(f"the bundle's golden cases were not all run, as it cannot run here: {last.check}: {last.detail}")
        return
    kinds: dict[int, type[AttnportError]] = {
        ParityFailed.exit_code: ParityFailed,
        IntegrityError.exit_code: IntegrityError,
    }
    raise kinds.get(report.exit_code, ArtifactError)(
        f"the bundle fails its own check: {bad.check}: {bad.detail}.", hint="It was not written; check the artifact."
    )
