"""Checks a whole bundle: the manifest, the files, then the golden cases on every form that can run here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import arguments
from .errors import BundleError, IntegrityError, NumbersOff, RuntimeMissing
from .format import files
from .format.contract import Verdict
from .format.manifest import SIGNATURE, Manifest
from .goldens import GoldenCases, Result
from .model import Model, load, open_form

OK = 0


@dataclass(frozen=True)
class Row:
    """One line of the report: what was checked, the verdict (PASS, FAIL or NOT_RUN), and the evidence."""

    check: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Report:
    """The result of a check. `exit_code` is 0, or that of the first problem."""

    rows: tuple[Row, ...]
    exit_code: int
    unverified: bool


def selftest(folder: Path, threads: int | None = None, key: Path | None = None) -> Report:
    """Checks a bundle. The model is opened only if every file is as it was bundled.

    Args:
        folder: The bundle.
        threads: Compute threads, 1 or more; None = the runtime's own choice.
        key: The public key that the bundle must be signed with, a PEM file from outside the bundle; None = not checked.

    Raises:
        BundleError: the folder is not a bundle, has a version that this reader does not know, or the key is refused.
        IntegrityError: the manifest is malformed or, with a key, not signed with it.
        RuntimeMissing: a key is given and the package cryptography is not installed.
    """
    threads = arguments.threads(threads)
    manifest, fingerprint = files.read_trusted(folder, key)
    problems = files.check(folder, manifest)
    if problems:
        rows = tuple(Row(finding.name, "FAIL", finding.problem) for finding in problems)
        return Report(rows, IntegrityError.exit_code, manifest.unverified)
    size = sum(file.bytes for file in manifest.files.values())
    as_bundled = Row("files", "PASS", f"{len(manifest.files)} files, {size / 1e6:.1f} MB, as they were bundled")
    rows = (_signature(folder, fingerprint), as_bundled)
    code, ran, form_rows = OK, 0, []
    for row, exit_code in _forms(folder, manifest, threads):
        form_rows.append(row)
        code = code or exit_code
        ran += row.verdict != "NOT_RUN"
    if not ran:
        code = RuntimeMissing.exit_code
    return Report((*rows, *form_rows), code, manifest.unverified)


def load_tested(folder: Path, threads: int | None = None, key: Path | None = None) -> Model:
    """Opens a bundle's model after its self-test, whose arguments are the same.

    Raises:
        BundleError: as `load`; or the self-test failed: IntegrityError, NumbersOff or RuntimeMissing, with its rows.
    """
    report = selftest(folder, threads, key)
    if report.exit_code:
        failed = "; ".join(f"{row.check}: {row.detail}" for row in report.rows if row.verdict != "PASS")
        kinds: tuple[type[BundleError], ...] = (IntegrityError, NumbersOff, RuntimeMissing)
        kind = next((each for each in kinds if each.exit_code == report.exit_code), BundleError)
        raise kind(f"{folder} does not pass its self-test: {failed}.")
    return load(folder, threads=threads, require_signature=key)


def _signature(folder: Path, fingerprint: str) -> Row:
    if fingerprint:
        return Row("signature", "PASS", f"ed25519 {fingerprint}")
    return Row("signature", "NOT_RUN", "not checked: no --key" if (folder / SIGNATURE).exists() else "not signed")


def _forms(folder: Path, manifest: Manifest, threads: int | None) -> Iterator[tuple[Row, int]]:
    """Rows with their exit codes: one for each golden case of a form that runs, or one for a form that does not."""
    for name in manifest.order:
        opened = False
        try:
            with open_form(folder, manifest, name, threads) as model:
                opened = True
                goldens = GoldenCases(folder, manifest)
                for result in goldens.check(name, model.run):
                    code = OK if result.passed else NumbersOff.exit_code
                    verdict: Verdict = "PASS" if result.passed else "FAIL"
                    yield Row(f"{name} {result.case} {result.output}", verdict, _detail(result)), code
        except RuntimeMissing as err:
            # If the form could be opened, all its cases must run; those that did not are not taken as passed.
            yield Row(name, "NOT_RUN", str(err)), RuntimeMissing.exit_code if opened else OK
        except BundleError as err:
            yield Row(name, "FAIL", str(err)), err.exit_code


def _detail(result: Result) -> str:
    if result.reason:
        return result.reason
    return f"max error {result.max_error:.1e}, bound {result.max_bound:.1e}"
