"""The recommendation: what to embed and how; else why nothing is recommended and what would change that."""

from __future__ import annotations

from collections.abc import Iterator

from attnport.reporting import document as doc
from attnport.reporting.measures import milliseconds
from attnport.reporting.recommendation import Choice, Recommendation, Timing

BASIS = (
    "Of the runtimes that passed parity here, were timed on every workload and that a bundle can carry, the fastest."
)


def section(found: Recommendation, baseline: str) -> Iterator[doc.Block]:
    """The choice with its times and its command, and why it is not another one."""
    if found.choice is None:
        yield doc.Text(f"Nothing can be recommended: {found.reason}.", "big")
        if found.commands:
            yield doc.Commands(found.commands)
    else:
        yield from _choice(found, found.choice, baseline)
    if found.others:
        others = tuple((doc.Name(key), why) for key, why in found.others.items())
        yield doc.Folded("Why not the others", (doc.Pairs(others, "reasons"),))


def _choice(found: Recommendation, choice: Choice, baseline: str) -> Iterator[doc.Block]:
    file = (" (", doc.Name(choice.file), ")")
    yield doc.Text((doc.Name(choice.runtime), f", {choice.plan}, form ", doc.Name(choice.form), *file), "big")
    yield doc.Text(BASIS, "quiet")
    yield doc.Pairs(tuple((each.workload, _timing(each, baseline)) for each in choice.timings), "tally timings")
    if found.ties:
        ties = doc.listed(map(doc.Name, found.ties))
        yield doc.Text(("No difference shown to ", ties, " on any workload."))
    if found.notes:
        yield doc.Bullets(found.notes)
    yield doc.Commands((choice.command,), ("Embed it; ", doc.Code("--lang cpp"), " adds the reader in C++"))


def _timing(timing: Timing, baseline: str) -> doc.Line:
    shown = f"{milliseconds(timing.median_ns)} ms"
    if timing.ratio is None:
        return shown
    low, mid, high = timing.ratio
    return shown, doc.Span(f"{mid:.2f}× {baseline} [{low:.2f}, {high:.2f}], {timing.verdict}", "sub")
