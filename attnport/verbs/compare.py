"""`attnport bench --compare`: compares latency reports on disk, and finds what became slower."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

from attnport.artifacts import LatencyReport
from attnport.errors import ArtifactError, LatencyRegressed, UsageError
from attnport.jsonfile import read
from attnport.latency.regression import RegressionReport, regression

FILE = "latency.json"


def compare(before: Path, after: Path, *more: tuple[Path, Path]) -> RegressionReport:
    """Compares two reports of `bench`; a folder stands for its `latency.json`.

    Args:
        more: The reports before and after of further pairs of runs, measured in turns with the first; each pair then
            counts as one observation.

    Raises:
        ArtifactError: a file is missing, or is not a latency report.
        UsageError: the models, machines or numbers of threads of the reports differ; or two reports are equal, or the
            pairs are not of the same two versions.
    """
    paths = [path / FILE if path.is_dir() else path for pair in ((before, after), *more) for path in pair]
    if gone := next((path for path in paths if not path.is_file()), None):
        hint = f"Write one with: attnport bench FOLDER --save {shlex.quote(str(gone))}"
        raise ArtifactError(f"{gone} cannot be read: it is not a file.", hint=hint)
    reports = [read(LatencyReport, path) for path in paths]
    if more and any(one == other for one, other in itertools.combinations(reports, 2)):
        raise UsageError(
            "a report is given twice, or is a copy of another: each has to be of a run of its own.",
            hint="Measure each anew: bench --force --save FILE.",
        )
    return regression(reports[0], reports[1], *zip(reports[2::2], reports[3::2], strict=True))


def raise_for(report: RegressionReport) -> None:
    """Raises LatencyRegressed if anything became slower, or if nothing could be compared."""
    slower = [f"{row.runtime} on {row.workload}" for row in report.rows if row.verdict == "slower"]
    if slower:
        raise LatencyRegressed(f"slower than before: {', '.join(slower)}.")
    if report.verdict == "NOT_COMPARED":
        raise LatencyRegressed("nothing could be compared, so that no slowdown would show.")
