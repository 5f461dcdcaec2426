"""The recommendation: what to embed and how; else why nothing is recommended and what would change that."""

from __future__ import annotations

from attnport.reporting import document as doc
from attnport.reporting.measures import milliseconds
from attnport.reporting.recommendation import Recommendation, Timing

BASIS = (
    "Of the runtimes that passed parity here, were timed on every workload and that a bundle can carry, the fastest."
)


def section(found: Recommendation, baseline: str) -> tuple[doc.Block, ...]:
    """The choice with its times and its command, and why it is not another one."""
    others = tuple((doc.Name(key), why) for key, why in found.others.items())
    rest = (doc.Folded("Why not the others", (doc.Pairs(others, "reasons"),)),) if others else ()
    if found.choice is None:
        steps = (doc.Commands(found.commands),) if found.commands else ()
        return (doc.Text(f"Nothing can be recommended: {found.reason}.", "big"), *steps, *rest)
    choice = found.choice
    ties = ("No difference shown to ", doc.listed(map(doc.Name, found.ties)), " on any workload.")
    return (
        doc.Text(
            (
                doc.Name(choice.runtime),
                f", {choice.plan}, form ",
                doc.Name(choice.form),
                " (",
                doc.Name(choice.file),
                ")",
            ),
            "big",
        ),
        doc.Text(BASIS, "quiet"),
        doc.Pairs(tuple((timing.workload, _timing(timing, baseline)) for timing in choice.timings), "tally timings"),
        *([doc.Text(ties)] if found.ties else []),
        *([doc.Bullets(found.notes)] if found.notes else []),
        doc.Commands((choice.command,), ("Embed it; ", doc.Code("--lang cpp"), " adds the reader in C++")),
        *rest,
    )


def _timing(timing: Timing, baseline: str) -> doc.Line:
    shown = f"{milliseconds(timing.median_ns)} ms"
    if timing.ratio is None:
        return shown
    low, mid, high = timing.ratio
    return shown, doc.Span(f"{mid:.2f}× {baseline} [{low:.2f}, {high:.2f}], {timing.verdict}", "sub")
