"""`attnport bench --compare`: compares two latency reports on disk, and finds what became slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnport.artifacts import LatencyReport
from attnport.errors import LatencyRegressed, UsageError
from attnport.jsonfile import read, to_json
from attnport.latency.regression import RegressionReport, regression

FILE = "latency.json"


def compare(before: Path, after: Path) -> RegressionReport:
    """Compares two reports of `bench`; a folder stands for its `latency.json`.

    Raises:
        ArtifactError: a file is missing, or is not a latency report.
        UsageError: the models, machines or numbers of threads of the reports differ.
    """
    old, new = (read(LatencyReport, path / FILE if path.is_dir() else path) for path in (before, after))
    return regression(old, new)


def check_target(path: Path) -> None:
    """Checks before a measurement whether its report can be saved.

    Raises:
        UsageError: `path` is a folder, or its folder is missing.
    """
    if path.is_dir():
        raise UsageError(f"--save {path}: it is a folder.", hint=f"Name a file, for example {path / 'latency.json'}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--save {path}: there is no folder {path.parent}.", hint="Create it first.")


def save(report: Any, path: Path) -> None:
    """Writes a report, whole or not at all. Raises OSError."""
    staged = path.with_name(f".{path.name}.staged")
    try:
        staged.write_text(to_json(report), encoding="utf-8")
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def raise_for(report: RegressionReport) -> None:
    """Raises LatencyRegressed if anything became slower."""
    slower = [f"{row.runtime} on {row.workload}" for row in report.rows if row.verdict == "slower"]
    if slower:
        raise LatencyRegressed(f"slower than before: {', '.join(slower)}.")
