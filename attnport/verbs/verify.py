"""`attnport verify`: checks that a bundle or an artifact folder is what was written, without running its code."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from attnport.artifacts import MANIFEST as ARTIFACT
from attnport.artifacts import Manifest, Verdict
from attnport.bundling.model_file import external_files
from attnport.errors import ArtifactError, AttnportError, IntegrityError, ParityFailed, UnavailableError, UsageError
from attnport.folder.workspace import check_files, meant_by, open_folder
from attnport.options import Option
from attnport.printed import Printed
from attnport.processes.isolated import TIMEOUT_S, Died, Limits
from attnport.reporting import document as doc
from attnport.transaction import OWN
from attnport.verbs._arguments import verb
from attnport_bundle.format.manifest import MANIFEST as BUNDLE
from attnport_bundle.format.manifest import shown_name

_KINDS: dict[int, type[AttnportError]] = {
    kind.exit_code: kind for kind in (ArtifactError, UnavailableError, ParityFailed, IntegrityError)
}
_AGAINST = " against "
"""In the name of a check, between an output and the earlier bundle with which it was compared."""


@dataclass(frozen=True)
class VerifyRow:
    """One check: its verdict and evidence."""

    check: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True, repr=False)
class VerifyResult(Printed):
    """The result of `verify`.

    Attributes:
        exit_code: 0, or that of the first problem; see `raise_for`.
        unverified: Whether it is a bundle that was made without a parity verdict.
    """

    schema: Literal["attnport/verify/1"] = field(default="attnport/verify/1", kw_only=True)
    path: str
    kind: Literal["bundle", "artifact"]
    verdict: Verdict
    exit_code: int
    rows: tuple[VerifyRow, ...]
    unverified: bool = False


@verb
def verify(
    path: Annotated[Path, Option("A bundle or an artifact folder.")],
    key: Annotated[
        Path | None, Option("The Ed25519 public key (PEM) that a bundle must be signed with, from outside the folder.")
    ] = None,
    against: Annotated[
        Path | None,
        Option("An earlier bundle, as of the last release: its golden cases are run too. Exit 4 if numbers changed."),
    ] = None,
    timeout_s: Annotated[
        float, Option("Seconds for the check of a bundle; one that takes longer is refused.", "--timeout", above=0)
    ] = TIMEOUT_S,
) -> VerifyResult:
    """Checks a bundle (files, then golden cases if a runtime is installed) or an artifact folder (files).

    No code of the folder runs: the reader is that of this attnport. A bundle is read, and its models run, in a process
    of its own, so that a model that never ends, takes all memory or crashes its runtime only fails the check.

    Raises:
        ArtifactError: it is neither a bundle nor an artifact folder.
        BundleError: the bundle has an unknown version, or the key is not an Ed25519 public key from outside the bundle.
        IntegrityError: the manifest is malformed or, with a key, not signed with it; or the process that checked a
            bundle took too long or too much memory, or died. Files that differ are in the result; see `raise_for`.
        UsageError: a key or `against` is given for an artifact folder, which has no signature and no golden cases.
        UnavailableError: a key is given and the package cryptography is not installed.
    """
    if not path.is_dir():
        raise ArtifactError(f"{path} is not a folder.", hint=meant_by(path))
    if key is not None and not key.is_file():
        raise UsageError(
            f"{key}: the key cannot be read: it is not a file.",
            hint="Get the public key from whoever signed the bundle: openssl pkey -in private.pem -pubout writes it.",
        )
    if (path / BUNDLE).exists() or (path / BUNDLE).is_symlink():
        return _bundle(path, key, against, timeout_s)
    if not (path / ARTIFACT).exists():
        raise ArtifactError(
            f"{path} is neither a bundle nor an artifact: it has no {BUNDLE} and no {ARTIFACT}.",
            hint=meant_by(path),
        )
    if against is not None:
        raise UsageError(
            f"{path} is an artifact folder; --against compares bundles.", hint="Make a bundle of it first."
        )
    if key is not None:
        raise UsageError(f"{path} is an artifact folder; bundles alone are signed.", hint="Verify it without a key.")
    return _artifact(path)


def raise_for(result: VerifyResult) -> None:
    """Raises the exception for a result that is not PASS.

    Raises:
        IntegrityError: a file is not the one that was written.
        ParityFailed: a golden case exceeds its bound.
        ArtifactError: a model cannot be opened, or an earlier bundle has nothing to compare it with.
        UnavailableError: the files are unchanged, but none of its models could run here.
    """
    apart = [row for row in result.rows if row.verdict == "NOT_RUN" and _AGAINST in row.check]
    if result.verdict == "NOT_RUN" and result.exit_code == ArtifactError.exit_code:
        raise ArtifactError(
            f"{result.path} cannot be compared with the earlier bundle: {_told(apart)}",
            hint="Give a bundle of a model with these inputs and outputs, with a form in the same precision.",
        )
    if result.verdict == "NOT_RUN":
        missing = [row for row in result.rows if row.verdict == "NOT_RUN" and row.check != "signature"]
        raise UnavailableError(
            f"{result.path} has the files that were written, but no model of it can run here: "
            f"{missing[0].check}: {missing[0].detail.rstrip('.')}.",
            hint="Install a runtime that it is for, and verify it again.",
        )
    if result.exit_code:
        bad = [row for row in result.rows if row.verdict == "FAIL"]
        what = _told(bad)
        if all(_AGAINST in row.check for row in bad):
            if result.exit_code != ParityFailed.exit_code:
                raise IntegrityError(f"the earlier bundle is not what was written: {what}", hint="Restore it.")
            raise ParityFailed(
                f"{result.path} does not give the numbers of the earlier bundle: {what}",
                hint="Weights, code or a form changed. If that is meant, copy this bundle to where the last release's "
                "stands, in its place: the next ones are then compared with it.",
            )
        if result.exit_code == ParityFailed.exit_code:
            raise ParityFailed(
                f"{result.path} has the files that were written, but this machine computes other numbers: {what}",
                hint="Try another release of the runtime. If it fails where it was made too, it has to be made again.",
            )
        raise _KINDS.get(result.exit_code, IntegrityError)(
            f"{result.path} is not what was written: {what}",
            hint="Restore it from where it was made, or make it again.",
        )


def _told(rows: Sequence[VerifyRow]) -> str:
    """The first of some rows as a sentence, with how many more there are."""
    more = f" ({len(rows) - 1} more)" if len(rows) > 1 else ""
    return f"{rows[0].check}: {rows[0].detail.rstrip('.')}{more}."


def _bundle(path: Path, key: Path | None, against: Path | None, timeout_s: float) -> VerifyResult:
    child = Limits(timeout_s).start(None)
    given: dict[str, Any] = {"folder": str(path), "limit_s": timeout_s}
    given |= {name: None if file is None else str(file) for name, file in (("key", key), ("against", against))}
    try:
        report = child.ask("selftest", timeout_s, **given)
    except Died as err:
        raise IntegrityError(
            f"{path} was not checked to the end: the process that reads it and runs its models had {timeout_s:g} s; "
            f"{err.message}.",
            hint="Do not use it. If you know that its models need this much, give more time (--timeout) or memory.",
        ) from err
    finally:
        child.kill()
    rows = tuple(VerifyRow(**row) for row in report["rows"])
    failed = any(row.verdict == "FAIL" for row in rows)
    # A form that cannot run here is not a failure if another one ran; if none did, the numbers were not checked.
    verdict: Verdict = "FAIL" if failed else "NOT_RUN" if report["exit_code"] else "PASS"
    return VerifyResult(str(path), "bundle", verdict, report["exit_code"], rows, report["unverified"])


def _artifact(path: Path) -> VerifyResult:
    manifest = open_folder(path)
    rows = [_artifact_file(path, manifest, name) for name in manifest.files]
    if all(row.verdict == "PASS" for row in rows):
        rows += [row for row in (_external(path, manifest, name) for name in manifest.forms) if row]
    strangers = sorted(set(_on_disk(path)) - {*manifest.files, ARTIFACT, *OWN})
    # No verb reads a file that the manifest does not name, so an additional file in a folder is not a failure.
    rows += [_row(name, "NOT_RUN", "not in the manifest, so never read") for name in strangers[:20]]
    failed = any(row.verdict == "FAIL" for row in rows)
    verdict: Verdict = "FAIL" if failed else "PASS"
    return VerifyResult(str(path), "artifact", verdict, IntegrityError.exit_code if failed else 0, tuple(rows))


def _row(name: str, verdict: Verdict, detail: str) -> VerifyRow:
    """A row about a file; its name is escaped for the terminal."""
    return VerifyRow(shown_name(name), verdict, detail)


def _on_disk(path: Path) -> list[str]:
    """The names of all files, except those of bundles in the folder, which have a manifest of their own."""
    bundles = [file.parent for file in path.rglob(BUNDLE)]
    return [
        file.relative_to(path).as_posix()
        for file in path.rglob("*")
        if not file.is_dir() and not any(file.is_relative_to(bundle) for bundle in bundles)
    ]


def _artifact_file(path: Path, manifest: Manifest, name: str) -> VerifyRow:
    try:
        check_files(path, manifest, name)
    except IntegrityError:
        changed = "a link" if (path / name).is_symlink() else "changed: its SHA-256 is not that of the manifest"
        return _row(name, "FAIL", changed if (path / name).is_file() else "missing")
    if any((path / parent).is_symlink() for parent in list(Path(name).parents)[:-1]):
        return _row(name, "FAIL", "reached through a link, so not a file of this folder")
    return _row(name, "PASS", f"{(path / name).stat().st_size} bytes, as written")


def _external(path: Path, manifest: Manifest, form: str) -> VerifyRow | None:
    file = manifest.forms[form].file
    try:
        strange = [name for name in external_files(path, file) if name not in manifest.files]
    except (ArtifactError, IntegrityError, OSError) as err:
        return _row(file, "FAIL", str(err))
    if not strange:
        return None
    return _row(file, "FAIL", f"takes weights from {shown_name(strange[0])}, which the manifest lacks")


@doc.blocks.register(VerifyResult)
def _blocks(result: VerifyResult, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """A row for each check."""
    note = " (unverified: parity was not run)" if result.unverified else ""
    title = (f"{result.kind} {result.path}: ", doc.Verdict(result.verdict), note)
    rows = ((row.check, doc.Verdict(row.verdict), row.detail) for row in result.rows)
    yield doc.Table(title, doc.columns("check", "verdict", "detail"), doc.rows(rows))
    if result.kind == "artifact" and result.verdict == "PASS":
        yield doc.Text("The files are those that were written. Numbers are judged by:")
        yield doc.Commands((f"  attnport check {shlex.quote(result.path)}",))
