"""Checks a whole bundle: the manifest, the files, then the golden cases on every form that can run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import arguments
from .errors import BundleError, IntegrityError, NumbersOff, RuntimeMissing
from .format import files
from .format.contract import Verdict
from .format.manifest import SIGNATURE, Manifest
from .goldens import GoldenCases
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


def selftest(
    folder: Path,
    threads: int | None = None,
    key: Path | None = None,
    check: Callable[[Path, Manifest], Sequence[files.FileProblem]] = files.check,
) -> Report:
    """Checks a bundle. The model is opened only if every file is as it was bundled.

    Args:
        threads, key: As `threads` and `require_signature` of `model.load`; without a key, that is a row of the report.
        check: Finds what is wrong before a model is opened; `attnport verify` looks for more.

    Raises:
        BundleError: as `files.read_trusted`; or an argument has no meaning.
    """
    threads = arguments.threads(threads)
    manifest, fingerprint = files.read_trusted(folder, key)
    problems = check(folder, manifest)
    if problems:
        found = tuple(Row(each.name, "FAIL", each.problem) for each in problems)
        return Report(found, IntegrityError.exit_code, manifest.unverified)
    size = sum(file.bytes for file in manifest.files.values())
    as_bundled = Row("files", "PASS", f"{len(manifest.files)} files, {size / 1e6:.1f} MB, as they were bundled")
    unchecked = "not checked: no --key" if (folder / SIGNATURE).exists() else "not signed"
    signed = Row("signature", "PASS", f"ed25519 {fingerprint}")
    rows = [signed if fingerprint else Row("signature", "NOT_RUN", unchecked), as_bundled]
    code, ran = OK, False
    for row, exit_code in _forms(folder, manifest, threads):
        rows.append(row)
        code, ran = code or exit_code, ran or row.verdict != "NOT_RUN"
    return Report(tuple(rows), code if ran else RuntimeMissing.exit_code, manifest.unverified)


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


def _forms(folder: Path, manifest: Manifest, threads: int | None) -> Iterator[tuple[Row, int]]:
    """Rows with their exit codes: one for each golden case of a form that runs, or one for a form that does not."""
    try:
        goldens = GoldenCases(folder, manifest)
    except IntegrityError as err:
        yield Row(manifest.goldens.file, "FAIL", str(err)), err.exit_code
        return
    for name in manifest.order:
        opened = False
        try:
            with open_form(folder, manifest, name, threads) as model:
                opened = True
                for result in goldens.check(name, model.run):
                    verdict: Verdict = "PASS" if result.passed else "FAIL"
                    detail = result.reason or f"max error {result.max_error:.1e}, bound {result.max_bound:.1e}"
                    row = Row(f"{name} {result.case} {result.output}", verdict, detail)
                    yield row, OK if result.passed else NumbersOff.exit_code
        except RuntimeMissing as err:
            # If the form could be opened, all its cases must run; those that did not are not taken as passed.
            yield Row(name, "NOT_RUN", str(err)), RuntimeMissing.exit_code if opened else OK
        except BundleError as err:
            yield Row(name, "FAIL", str(err)), err.exit_code
