"""`attnport check --bisect`: for each runtime or form that failed, the layer from which on its numbers are wrong.

Every tensor of a graph that torch's own traced graph has by the same name is comparable. It is judged as an output is:
against the float64 run, by eager's error at that very tensor. See docs/bisect.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from attnport.artifacts import ParityReport, RuntimeParity
from attnport.cases.choosing import cases_of
from attnport.cases.text import read_sentences
from attnport.errors import AttnportError
from attnport.folder.openings import model_files
from attnport.folder.portable import portable
from attnport.folder.workspace import check_files, open_folder
from attnport.parity.bisect_ground import FORM, SAMPLES, Ground
from attnport.parity.bisect_search import Search
from attnport.parity.evaluate import Progress
from attnport.parity.searching import Budget, SearchResult
from attnport.processes.isolated import TIMEOUT_S, Limits


@dataclass(frozen=True)
class Bisected:
    """What `check --bisect` gives: the report, and a finding for each runtime or form that failed."""

    schema: Literal["attnport/bisect/1"] = field(default="attnport/bisect/1", kw_only=True)
    parity: ParityReport
    findings: tuple[SearchResult, ...]


def bisect(
    folder: Path,
    report: ParityReport,
    *,
    text: Path | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    batch: int = 8,
    sizes: Sequence[Mapping[str, int]] = (),
    threads: int | None = None,
    timeout_s: float = TIMEOUT_S,
    isolate: bool = False,
    probes: int = Budget.probes,
    cap_bytes: int = Budget.cap_bytes,
    samples: int = SAMPLES,
    progress: Progress = lambda message: None,
) -> Bisected:
    """Finds the layer from which on each runtime and form that failed a check is wrong; writes nothing.

    Args:
        folder: The artifact folder.
        report: What `check` gave, with the same arguments.
        sizes: Those of the further cases that its `shapes` name.
        probes: The most tensors marked as outputs at once.
        cap_bytes: The most that the tensors of one run may take.
        samples: The most cases that each search runs.

    Raises:
        ArtifactError, IntegrityError, SpecError, UsageError: as `check`.
        ExportError: torch no longer traces the module.
    """
    if report.verdict != "FAIL":
        return Bisected(report, ())
    manifest = open_folder(folder)
    check_files(folder, manifest, *model_files(manifest))
    sentences = read_sentences(text) if text else []
    cases = cases_of(folder, manifest, sentences, inputs, seed, batch, sizes)
    limits, budget = Limits(timeout_s, every=isolate), Budget(probes, cap_bytes)
    ground = Ground(folder, manifest, cases, report, threads, limits, budget, samples, progress)
    return Bisected(report, tuple(_finding(ground, name, row) for name, row in _failed(ground)))


def _failed(ground: Ground) -> Iterator[tuple[str, RuntimeParity]]:
    """Every runtime that failed, and every form that failed and that none of these runs."""
    failed = {name: row for name, row in ground.report.runtimes.items() if row.verdict == "FAIL"}
    yield from failed.items()
    searched = {opening.model for name, opening in ground.openings().items() if name in failed}
    for name, row in ground.report.forms.items():
        if row.verdict == "FAIL" and ground.folder / ground.manifest.forms[name].file not in searched:
            yield f"{FORM}{name}", row


def _finding(ground: Ground, name: str, row: RuntimeParity) -> SearchResult:
    try:
        with tempfile.TemporaryDirectory(prefix="attnport-bisect-") as scratch:
            return Search(ground, name, row, Path(scratch)).finding()
    except (AttnportError, MemoryError) as err:
        return SearchResult(name, reason=portable(str(err), ground.folder))
