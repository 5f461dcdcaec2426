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
from attnport.printed import Printed
from attnport.processes.isolated import TIMEOUT_S, Limits
from attnport.reporting import document as doc


@dataclass(frozen=True)
class Bisected(Printed):
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


_MOST_NAMES = 4
_MOST_OPERATORS = 12


@doc.blocks.register(Bisected)
def _blocks(bisected: Bisected, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """The parity report, and for each runtime or form that failed the layer where it goes wrong."""
    yield from doc.blocks(bisected.parity)
    if not bisected.findings:
        yield doc.Text("bisect: nothing failed, so there is nothing to search")
    for finding in bisected.findings:
        yield doc.Text("")
        yield from _shown(finding)


def annotated(bisected: Bisected) -> Iterator[tuple[str, str]]:
    """A title and a text for each runtime or form that failed, as annotations of a CI system."""
    for result in bisected.findings:
        if result.reason:
            yield f"bisect: {result.subject}", f"nothing found: {result.reason}"
        else:
            yield f"bisect: {result.subject} goes wrong in {_where(result)}", "; ".join(_place(result))


def _where(result: SearchResult) -> str:
    return result.module or "the outermost module"


def _place(result: SearchResult) -> tuple[str, ...]:
    """What diverges first, behind what, and in how many cases."""
    told = f" ({result.difference})" if result.difference else ""
    fine = f"{_some(result.fine)} (measured)" if result.fine else "the inputs and weights"
    count = len(result.samples) + len(result.elsewhere)
    return (
        f"first diverging tensor: {result.tensor}, made by {_last(result.between)}{told}",
        f"fine before it: {fine}",
        f"in {len(result.samples)} of {count} failing cases tried: {_some(result.samples)}",
    )


def _shown(result: SearchResult) -> Iterator[doc.Block]:
    if result.reason:
        yield doc.Text((doc.Span(f"bisect: {result.subject}", "strong"), f": nothing found: {result.reason}"))
        return
    where = doc.Span(_where(result), "fail")
    yield doc.Text((doc.Span(f"bisect: {result.subject} goes wrong in ", "strong"), where))
    for line in _place(result):
        yield doc.Text(f"  {line}")
    yield from _readings(result)
    if result.odd:
        odd = doc.Span(result.odd, "strong")
        yield doc.Text(("  odd one out: ", odd, "; the others of its precision agree"))
    elsewhere = (f"case {case} ends at {tensor} instead" for case, tensor in result.elsewhere.items())
    fusion = result.fusion or "marking outputs changed no measured result"
    notes = (*elsewhere, *result.notes, f"{result.runs} probe runs; {fusion}")
    yield doc.Bullets(tuple(doc.Span(note, "quiet") for note in notes))


def _readings(result: SearchResult) -> Iterator[doc.Block]:
    if result.difference:
        of_integers = doc.columns("runtime", "verdict", "elements", whole=("verdict",))
        read = ((row.subject, doc.Verdict(row.verdict), row.reason) for row in result.readings)
        yield doc.Table(f"elements there, case {result.sample}", of_integers, doc.rows(read))
        return
    columns = doc.columns(
        *("runtime", "verdict", "RMS error", "bound", "max error", "bound"),
        right=("RMS error", "bound", "max error"),
        whole=("verdict", "RMS error", "bound", "max error"),
    )
    rows: Iterator[tuple[doc.Line, ...]] = (
        (
            row.subject,
            doc.Verdict(row.verdict),
            *map(_number, (row.rms_error, row.rms_bound, row.max_error, row.max_bound)),
        )
        for row in result.readings
    )
    yield doc.Table(f"errors there, case {result.sample}", columns, doc.rows(rows))
    yield doc.notes({row.subject: row.reason for row in result.readings if row.rms_error is None and row.reason})


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _last(operators: tuple[str, ...]) -> str:
    """Operators in the order of the graph; of many the last, which are the nearest to the tensor."""
    more = len(operators) - _MOST_OPERATORS
    return (f"{more} operators, then " if more > 0 else "") + ", ".join(operators[-_MOST_OPERATORS:])
