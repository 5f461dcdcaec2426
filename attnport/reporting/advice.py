"""The section about what to embed and how, or why nothing is recommended and what would change that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnport.reporting import document as doc
from attnport.reporting.absences import wanting, without
from attnport.reporting.measures import milliseconds
from attnport.reporting.recommendation import Choice, Recommendation, Timing

BASIS = (
    "Of the runtimes that passed parity here, were timed on every workload and that a bundle can carry, the fastest."
)


def section(recommendation: Recommendation, baseline: str, absent: Sequence[str] = ()) -> Iterator[doc.Block]:
    """The recommended runtime with its times and its command, and why the others are not recommended.

    Args:
        absent: The runtimes that this machine lacks, which share a line.
    """
    if recommendation.choice is None:
        yield doc.Text(f"Nothing can be recommended: {recommendation.reason}.", "big")
        if recommendation.commands:
            yield doc.Commands(recommendation.commands)
    else:
        yield from _choice(recommendation, recommendation.choice, baseline)
    if recommendation.others:
        told = without(absent, recommendation.others)
        others: tuple[tuple[doc.Line, doc.Line], ...] = tuple((doc.Name(key), why) for key, why in told.items())
        if absent:
            others += ((doc.listed(map(doc.Name, absent)), wanting(absent)),)
        yield doc.Folded("Why not the others", (doc.Pairs(others, "reasons"),))


def _choice(recommendation: Recommendation, choice: Choice, baseline: str) -> Iterator[doc.Block]:
    file = (" (", doc.listed(map(doc.Name, choice.files), " and "), ")")
    yield doc.Text((doc.Name(choice.runtime), f", {choice.plan}, form ", doc.Name(choice.form), *file), "big")
    yield doc.Text(BASIS, "quiet")
    yield doc.Pairs(tuple((timing.workload, _timing(timing, baseline)) for timing in choice.timings), "tally timings")
    if recommendation.ties:
        ties = doc.listed(map(doc.Name, recommendation.ties))
        yield doc.Text(("No difference shown to ", ties, " on any workload."))
    if recommendation.notes:
        yield doc.Bullets(recommendation.notes)
    yield doc.Commands((choice.command,), ("Embed it; ", doc.Code("--lang cpp"), " adds the reader in C++"))


def _timing(timing: Timing, baseline: str) -> doc.Line:
    shown = f"{milliseconds(timing.median_ns)} ms"
    if timing.ratio is None:
        return shown
    low, mid, high = timing.ratio
    return shown, doc.Span(f"{mid:.2f}× {baseline} [{low:.2f}, {high:.2f}], {timing.verdict}", "sub")
