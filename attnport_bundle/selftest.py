"""The whole check of a bundle: manifest, files, then the golden cases on every form that can run here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import files, trust
from .contract import Verdict
from .errors import BundleError, IntegrityError, NumbersOff, RuntimeMissing
from .goldens import GoldenCases, Result
from .manifest import Manifest
from .model import open_form
from .signature import SIGNATURE

OK = 0


@dataclass(frozen=True)
class Row:
    """One line of the report: what was checked, the verdict (PASS, FAIL or NOT_RUN), and the evidence."""

    check: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Report:
    """What a check found. `exit_code`: 0, or that of the first thing that is wrong."""

    rows: tuple[Row, ...]
    exit_code: int
    unverified: bool


def selftest(folder: Path, threads: int | None = None, key: Path | None = None) -> Report:
    """Checks a bundle. The model is opened only once every file is known to be the one that was bundled.

    Args:
        folder: The bundle.
        threads: Compute threads; None = the runtime's own choice.
        key: The public key that the bundle must be signed with, a PEM file from outside; None = not checked.

    Raises:
        BundleError: it is no bundle, of a version that this reader does not know, or the key is not taken.
        IntegrityError: the manifest is malformed or, with a key, not signed with it.
        RuntimeMissing: there is a key and the package cryptography is not installed.
    """
    manifest, fingerprint = trust.read(folder, key)
    found = files.check(folder, manifest)
    if found:
        rows = tuple(Row(finding.name, "FAIL", finding.problem) for finding in found)
        return Report(rows, IntegrityError.exit_code, manifest.unverified)
    size = sum(file.bytes for file in manifest.files.values())
    as_bundled = Row("files", "PASS", f"{len(manifest.files)} files, {size / 1e6:.1f} MB, as they were bundled")
    rows = (_signature(folder, fingerprint), as_bundled)
    code, ran, more = OK, 0, []
    for row, exit_code in _forms(folder, manifest, threads):
        more.append(row)
        code = code or exit_code
        ran += row.verdict != "NOT_RUN"
    if not ran:
        code = RuntimeMissing.exit_code
    return Report((*rows, *more), code, manifest.unverified)


def _signature(folder: Path, fingerprint: str) -> Row:
    if fingerprint:
        return Row("signature", "PASS", f"ed25519 {fingerprint}")
    return Row("signature", "NOT_RUN", "not checked: no --key" if (folder / SIGNATURE).exists() else "not signed")


def _forms(folder: Path, manifest: Manifest, threads: int | None) -> Iterator[tuple[Row, int]]:
    """A row and its exit code for every form, and for every golden case of those that run."""
    for name in manifest.order:
        opened = False
        try:
            with open_form(folder, manifest, name, threads) as model:
                opened = True
                goldens = GoldenCases(folder, manifest)
                for result in goldens.check(name, model.run):
                    code = OK if result.passed else NumbersOff.exit_code
                    verdict: Verdict = "PASS" if result.passed else "FAIL"
                    yield Row(f"{name} {result.case} {result.output}", verdict, _words(result)), code
        except RuntimeMissing as err:
            # Of a form that can be opened every case counts: what did not run is not taken for passed.
            yield Row(name, "NOT_RUN", str(err)), RuntimeMissing.exit_code if opened else OK
        except BundleError as err:
            yield Row(name, "FAIL", str(err)), err.exit_code


def _words(result: Result) -> str:
    if result.reason:
        return result.reason
    return f"max error {result.max_error:.1e}, bound {result.max_bound:.1e}"
