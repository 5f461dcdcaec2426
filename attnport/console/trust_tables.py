"""How what is about trust is printed: what `verify` checked, what `audit` found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.console import cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.auditing.findings import Finding
    from attnport.verbs.audit import AuditReport
    from attnport.verbs.verify import VerifyResult


def show_verify(console: Console, result: VerifyResult) -> None:
    """One row a check."""
    note = " (unverified: parity was not run)" if result.unverified else ""
    table = cells.table(
        f"{result.kind} {cells.plain(result.path)}: {cells.verdict(result.verdict)}{note}", "check", "verdict", "detail"
    )
    for row in result.rows:
        table.add_row(cells.plain(row.check), cells.verdict(row.verdict), cells.plain(row.detail))
    console.print(table)


def show_audit(console: Console, report: AuditReport) -> None:
    """One row for all findings of a kind in a file, with the first of them; how to mend what `--fix` cannot, below."""
    groups: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.file, finding.kind, finding.fixable), []).append(finding)
    if groups:
        table = cells.table("what is given away", "kind", "times", "--fix", "first of them", right=("times",))
        for (file, kind, fixable), findings in groups.items():
            first = findings[0]
            told = f"{file}: {first.where}: {first.evidence}"
            table.add_row(kind, str(len(findings)), "yes" if fixable else "no", cells.plain(told))
        console.print(table)
        cells.notes(console, {f"{one.kind} of {one.file}": one.advice for one in report.findings if one.advice})
    for note in report.notes:
        console.print(f"not looked at: {cells.plain(note)}", style="yellow")
    if report.fixed:
        console.print(f"{report.fixed} taken away")
    count = len(report.findings)
    end = f"[bold red]{count} given away[/]" if count else "[green]nothing found[/]"
    files = f"{len(report.files)} file{'' if len(report.files) == 1 else 's'}"
    console.print(f"{report.kind} {cells.plain(report.path)}, {files}: {end}")
