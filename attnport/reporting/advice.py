"""The recommendation as the head of the page has it."""

from __future__ import annotations

from attnport.reporting.markup import Html, details, el, join, name
from attnport.reporting.measures import milliseconds
from attnport.reporting.recommendation import Recommendation, Timing

BASIS = (
    "Of the runtimes that passed parity here, were timed on every workload and that a bundle can carry, the fastest."
)


def section(found: Recommendation, baseline: str) -> Html:
    """What to embed and how; else why nothing is recommended and what would change that."""
    others = [el("div", el("dt", name(key)), el("dd", why)) for key, why in found.others.items()]
    rest = details("Why not the others", el("dl", *others, class_="reasons")) if others else None
    if found.choice is None:
        steps = [el("pre", "\n".join(found.commands), tabindex="0")] if found.commands else []
        return join((el("p", "Nothing can be recommended: ", found.reason, ".", class_="big"), *steps, rest))
    choice = found.choice
    facts = join((name(choice.runtime), f", {choice.plan}, form ", name(choice.form), " (", name(choice.file), ")"))
    timings = [el("div", el("dt", timing.workload), el("dd", *_timing(timing, baseline))) for timing in choice.timings]
    ties = join((name(tie) for tie in found.ties), ", ")
    return join(
        (
            el("p", facts, class_="big"),
            el("p", BASIS, class_="quiet"),
            el("dl", *timings, class_="tally timings"),
            el("p", "No difference shown to ", ties, " on any workload.") if found.ties else None,
            el("ul", *(el("li", note) for note in found.notes), class_="notes") if found.notes else None,
            el("p", "Embed it; ", el("code", "--lang cpp"), " adds the reader in C++", class_="label"),
            el("pre", choice.command, tabindex="0"),
            rest,
        )
    )


def _timing(timing: Timing, baseline: str) -> list[object]:
    shown = f"{milliseconds(timing.median_ns)} ms"
    if timing.ratio is None:
        return [shown]
    low, mid, high = timing.ratio
    sub = f"{mid:.2f}× {baseline} [{low:.2f}, {high:.2f}], {timing.verdict}"
    return [shown, el("span", sub, class_="sub")]
