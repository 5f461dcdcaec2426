"""`attnport bench --compare`: compares two latency reports on disk, and finds what became slower."""

from __future__ import annotations

from pathlib import Path

from attnport.artifacts import LatencyReport
from attnport.errors import LatencyRegressed
from attnport.jsonfile import read
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


def raise_for(report: RegressionReport) -> None:
    """Raises LatencyRegressed if anything became slower."""
    slower = [f"{row.runtime} on {row.workload}" for row in report.rows if row.verdict == "slower"]
    if slower:
        raise LatencyRegressed(f"slower than before: {', '.join(slower)}.")
