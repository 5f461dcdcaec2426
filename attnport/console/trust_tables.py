"""What `verify` and `audit` print."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnport.console import cells
from attnport.reporting import document as doc
from attnport.reporting.facts import count

if TYPE_CHECKING:
    from attnport.auditing.findings import Finding
    from attnport.verbs.audit import AuditReport
    from attnport.verbs.verify import VerifyResult


def show_verify(result: VerifyResult) -> Iterator[doc.Block]:
    """A row for each check."""
    note = " (unverified: parity was not run)" if result.unverified else ""
    title = (f"{result.kind} {result.path}: ", doc.Verdict(result.verdict), note)
    rows = ((row.check, doc.Verdict(row.verdict), row.detail) for row in result.rows)
    yield doc.Table(title, doc.words("check", "verdict", "detail"), doc.rows(rows))


def show_audit(report: AuditReport) -> Iterator[doc.Block]:
    """A row for all findings of a kind in a file, with the first of them; below, advice where `--fix` does not help."""
    groups: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.file, finding.kind, finding.fixable), []).append(finding)
    if groups:
        columns = cells.columns("kind", "times", "--fix", "first of them", right=("times",))
        rows = (
            (kind, str(len(of_kind)), "yes" if fixable else "no", f"{file}: {of_kind[0].where}: {of_kind[0].evidence}")
            for (file, kind, fixable), of_kind in groups.items()
        )
        yield doc.Table("what is given away", columns, doc.rows(rows))
        yield cells.notes(
            {f"{advised.kind} of {advised.file}": advised.advice for advised in report.findings if advised.advice}
        )
    yield from cells.warnings(report.notes, "not looked at")
    if report.fixed:
        yield doc.Text(f"{report.fixed} taken away")
    count_found = len(report.findings)
    end = doc.Verdict(f"{count_found} given away", "fail") if count_found else doc.Verdict("nothing found", "pass")
    yield doc.Text((f"{report.kind} {report.path}, {count(len(report.files), 'file')}: ", end))
