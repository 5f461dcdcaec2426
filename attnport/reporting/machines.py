"""What a verb found on several machines, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attnport.artifacts import LatencyReport, ParityReport, TuneReport
from attnport.machines import MachineResult, MachinesReport
from attnport.reporting import document as doc
from attnport.reporting.choice import change
from attnport.reporting.facts import count, fastest, not_checked
from attnport.reporting.measures import NONE, largest, milliseconds


@doc.blocks.register(MachinesReport)
def machines(report: MachinesReport, detail: doc.Detail = "brief") -> Iterator[doc.Block]:
    """A row for each machine in each table, or of several artifacts for each on each machine; then the processors."""
    yield from _TABLES[report.verb](report.results)
    known = {result.machine: result for result in report.results if result.cpu}
    rows = ((name, result.cpu, str(result.cores)) for name, result in known.items())
    yield doc.Table("machines", (*doc.words("machine", "processor"), *doc.numbers("cores")), doc.rows(rows))


def document(report: MachinesReport) -> doc.Document:
    """The page, with why something failed, which the terminal has on stderr."""
    number = len({result.machine for result in report.results})
    artifacts = list(dict.fromkeys(result.folder for result in report.results))
    failed = tuple(
        (doc.Name(_named(result, report.results)), f": {result.error}") for result in report.results if result.error
    )
    section = doc.Section("machines", "Machines", (*machines(report), *([doc.Bullets(failed)] if failed else [])))
    facts = (count(number, "machine"), doc.Verdict("FAIL" if report.exit_code else "PASS"))
    return doc.Document(f"attnport {report.verb}", ", ".join(artifacts), facts, (), (section,))


def _named(result: MachineResult, results: Sequence[MachineResult]) -> str:
    """The heading of a row: the machine, with the artifact where there are several."""
    several = len({other.folder for other in results}) > 1
    return f"{result.machine}, {result.folder}" if several else result.machine


def _rows(results: Sequence[MachineResult], cells: Callable[[Any], tuple[doc.Line, ...]]) -> tuple[doc.Group, ...]:
    """A row for each result: its machine, and the cells of its report; one without a report says so."""
    rows = []
    for result in results:
        name = doc.Name(_named(result, results))
        if result.report is not None:
            rows.append(doc.Row((name, *cells(result.report))))
        else:
            rows.append(doc.Row((name, doc.Verdict(f"exit {result.exit_code}", "fail")), ""))
    return (doc.Group(tuple(rows)),)


def _parity(results: Sequence[MachineResult]) -> Iterator[doc.Block]:
    reports = [result.report for result in results if isinstance(result.report, ParityReport)]
    # Where a machine lacks a runtime that another has, that is worth a cell.
    shown = dict.fromkeys(
        name for report in reports for name in report.runtimes if name not in not_checked(report.runtimes)
    )

    def cells(found: ParityReport) -> tuple[doc.Line, ...]:
        rows = [found.runtimes.get(name) for name in shown]
        return (
            doc.Verdict(found.verdict),
            *(doc.Share(row.verdict, largest((*row.cases, *row.invariance))) if row else NONE for row in rows),
        )

    columns = doc.words("machine", "verdict", *shown)
    yield doc.Table("parity", columns, _rows(results, cells))
    yield doc.Text("the number: the largest error over its bound; above 1 fails", "quiet")


def _latency(results: Sequence[MachineResult]) -> Iterator[doc.Block]:
    """A table for each workload."""
    reports = [result.report for result in results if isinstance(result.report, LatencyReport)]
    for workload in dict.fromkeys(name for report in reports for name in report.shapes):
        timed = [rows for report in reports if (rows := report.shapes.get(workload))]
        shown = dict.fromkeys(name for rows in timed for name, row in rows.items() if row.median_ns is not None)

        def cells(
            found: LatencyReport, workload: str = workload, shown: Sequence[str] = tuple(shown)
        ) -> tuple[doc.Line, ...]:
            rows = found.shapes.get(workload, {})
            best = fastest(rows)
            medians = {name: milliseconds(rows[name].median_ns) if name in rows else NONE for name in shown}
            return tuple(doc.Best(ms) if best and name == best[0] else ms for name, ms in medians.items())

        columns = (*doc.words("machine"), *doc.numbers(*shown))
        yield doc.Table(f"{workload}: median ms", columns, _rows(results, cells))
    if not reports:
        yield doc.Table("latency", doc.words("machine", "result"), _rows(results, lambda found: ()))


def _tuned(results: Sequence[MachineResult]) -> Iterator[doc.Block]:
    """What is chosen for each machine."""
    chosen = [report.chosen for result in results if isinstance(report := result.report, TuneReport)]
    workloads = dict.fromkeys(name for one in chosen if one for name in one.ms)

    def cells(found: TuneReport) -> tuple[doc.Line, ...]:
        one = found.chosen
        if one is None:
            return (doc.Verdict("nothing", "miss"),)
        times = (f"{one.ms[name]:.3g}" if name in one.ms else NONE for name in workloads)
        return (one.form, str(one.threads), *times, change(one))

    columns = (
        *doc.words("machine", "chosen"),
        *doc.numbers("threads", *(f"{name} ms" for name in workloads), "metric"),
    )
    yield doc.Table("chosen", columns, _rows(results, cells))


_TABLES = {"check": _parity, "bench": _latency, "tune": _tuned}
