"""`attnport bundle`: a folder that an application takes over, with proof that it is what was checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnport.artifacts import FusionReport, Manifest, ParityReport, RuntimeParity, Verdict
from attnport.bundling import place
from attnport.bundling.write import RUNS, Judged, needed_files, write
from attnport.errors import ArtifactError, AttnportError, IntegrityError, ParityFailed, UsageError
from attnport.jsonfile import read
from attnport.pipeline.workspace import check_files, open_folder

LANGUAGES = ("python",)
_PARITY, _FUSION, _CHECK = "parity.json", "fusion.json", "check"


def bundle(
    folder: Path,
    out: Path,
    *,
    lang: Sequence[str] = ("python",),
    forms: Sequence[str] = ("ort_cpu",),
    unverified: bool = False,
    force: bool = False,
    progress: Callable[[str], None] = lambda message: None,
) -> Path:
    """Writes a bundle of an artifact folder; all of it appears at once, and equal inputs give equal bytes.

    Args:
        folder: The artifact folder.
        out: The bundle's folder. One that is there is replaced when it is empty or a bundle as it was made.
        lang: The languages to bundle a reader for.
        forms: The forms to bundle, the preferred one first.
        unverified: Take forms whose parity was not run; the bundle says so. One that failed is never taken.
        force: Replace a bundle even when files were changed in it or added to it.

    Returns:
        `out`.

    Raises:
        UsageError: an unknown language or form, or `out` is no bundle.
        ArtifactError, IntegrityError: the artifact is incomplete, or not what was written.
        ParityFailed: a form failed, or was not checked; or the bundle fails its own golden cases here.
    """
    unknown = [one for one in lang if one not in LANGUAGES]
    if unknown or not lang:
        raise UsageError(f"language {', '.join(unknown) or 'missing'}; expected one of {', '.join(LANGUAGES)}.")
    manifest = open_folder(folder)
    names = list(dict.fromkeys(form.replace("-", "_") for form in forms))
    _check_forms(folder, manifest, names)
    progress("checking the artifact's files")
    check_files(folder, manifest, *_wanted(folder, manifest, names))
    judged = _judge(folder, manifest, names)
    _gate(folder, judged, unverified)
    _refuse_stranger(out, force)
    with place.replaced(out, lambda: _refuse_stranger(out, force)) as staged:
        progress("copying")
        not_run = any(found.verdict == "NOT_RUN" for found in judged.values())
        write(staged, folder, manifest, judged, unverified=not_run)
        progress("running the golden cases")
        _try(staged)
    return out


def _check_forms(folder: Path, manifest: Manifest, names: Sequence[str]) -> None:
    if not names:
        raise UsageError("no form was named.", hint=f"Name one of {', '.join(manifest.forms)}.")
    for name in names:
        if name not in manifest.forms:
            raise ArtifactError(
                f"{folder} has no form {name!r}; it has {', '.join(manifest.forms) or 'none'}.",
                hint=f"Make it with: attnport fuse {folder}",
            )
        form = manifest.forms[name]
        if form.target not in RUNS or form.plan != "fp32":
            raise UsageError(
                f"form {name!r} is for {form.target} in {form.plan}; a bundle's reader runs {', '.join(RUNS)} in fp32."
            )


def _wanted(folder: Path, manifest: Manifest, names: Sequence[str]) -> list[str]:
    """The artifact's files that are used; a form is compared with its digest before it is looked into."""
    check_files(folder, manifest, *(manifest.forms[name].file for name in names))
    wanted = [*needed_files(folder, manifest, names), *(one for one in (_PARITY, _FUSION) if one in manifest.files)]
    for name in wanted:
        if name not in manifest.files:
            raise ArtifactError(f"{folder} has no {name}, which a bundle is made from.", hint="Export and fuse again.")
    return wanted


def _judge(folder: Path, manifest: Manifest, names: Sequence[str]) -> dict[str, Judged]:
    parity = read(ParityReport, folder / _PARITY) if _PARITY in manifest.files else None
    fusion = read(FusionReport, folder / _FUSION) if _FUSION in manifest.files else None
    found = {}
    for name in names:
        runtime, graph = _verdicts(manifest, parity, name)
        verdicts = (runtime.verdict, graph.verdict)
        verdict: Verdict = "FAIL" if "FAIL" in verdicts else "PASS" if "PASS" in verdicts else "NOT_RUN"
        decided = [one for one in (runtime, graph) if one.verdict == verdict]
        reason = "; ".join(dict.fromkeys(one.reason for one in decided if one.reason))
        measured = decided[0] if verdict == "PASS" else None
        found[name] = Judged(verdict, *verdicts, reason, measured, fusion.targets.get(name) if fusion else None)
    return found


def _verdicts(manifest: Manifest, parity: ParityReport | None, name: str) -> tuple[RuntimeParity, RuntimeParity]:
    """What was found of a form on its runtime, and of its graph."""
    plan = manifest.forms[name].plan
    if parity is None:
        return (RuntimeParity("NOT_RUN", "parity was not checked", plan),) * 2
    made = max(
        (stage.made for stage in manifest.stages.values() if manifest.forms[name].file in stage.files), default=""
    )
    if _CHECK not in manifest.stages or manifest.stages[_CHECK].made < made:
        return (RuntimeParity("NOT_RUN", "the form was made again after parity was checked", plan),) * 2
    missing = RuntimeParity("NOT_RUN", "it is not in the parity report", plan)
    return parity.runtimes.get(name, missing), parity.forms.get(name, missing)


def _gate(folder: Path, judged: Mapping[str, Judged], unverified: bool) -> None:
    for name, found in judged.items():
        if found.verdict == "FAIL":
            raise ParityFailed(
                f"form {name} failed parity: {found.reason}.", hint=f"It is never bundled; see {folder / _PARITY}."
            )
        if found.verdict == "NOT_RUN" and not unverified:
            raise ParityFailed(
                f"form {name} has no parity verdict: {found.reason}.",
                hint=f"Run: attnport check {folder}; or bundle with --unverified, which is said inside.",
            )


def _refuse_stranger(out: Path, force: bool) -> None:
    """Raises UsageError unless `out` is free, empty, or a bundle that nobody put anything else into."""
    from attnport.bundling.python import files, manifest
    from attnport.bundling.python.errors import BundleError

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
    from attnport.bundling.python.errors import RuntimeMissing
    from attnport.bundling.python.selftest import selftest

    report = selftest(staged)
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
