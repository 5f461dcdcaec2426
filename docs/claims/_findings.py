"""What a claim's measurement gives, and when a figure is said to bear the claim out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HOLDS = "holds"
FAILS = "does not hold here"
PARTLY = "holds in part"
UNKNOWN = "not measurable here"

Ratio = tuple[float, float, float]
"""Low, middle and high of an interval; all one where a figure does not vary, as a file's size."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Verdict:
    """Whether the claim holds in one setting.

    Attributes:
        what: The setting, such as `ort_cpu, 8 x 128`.
        said: `HOLDS`, `FAILS` or `UNKNOWN`.
        why: The figure, or what is missing.
    """

    what: str
    said: str
    why: str


@dataclass(frozen=True)
class Findings:
    """One claim, measured.

    Attributes:
        how: How it was measured, in Markdown.
        tables: Markdown tables.
        pictures: SVG text by the picture's name; the name says what is to be seen.
        verdicts: One a setting.
        figures: What the tables were made from, for `--json`.
    """

    how: str
    tables: Sequence[str]
    pictures: Mapping[str, str]
    verdicts: Sequence[Verdict]
    figures: Mapping[str, Any] = field(default_factory=dict)


def of_ratio(what: str, ratio: Ratio) -> Verdict:
    """The claim being that a ratio is below 1: its whole interval has to be."""
    low, _, high = ratio
    if high < 1:
        return Verdict(what, HOLDS, shown(ratio))
    opposite = "the opposite: " if low > 1 else "no difference shown: "
    return Verdict(what, FAILS, opposite + shown(ratio))


def of_half(what: str, ratio: Ratio) -> Verdict:
    """The claim being that a ratio is a half: its whole interval has to be nearer to a half than to 0 or to 1."""
    low, _, high = ratio
    return Verdict(what, HOLDS if low > 0.25 and high < 0.75 else FAILS, f"{shown(ratio)}, 0.5 claimed")


def both(first: Verdict, second: Verdict) -> Verdict:
    """A claim of two parts, in the setting of the first."""
    said = HOLDS if first.said == second.said == HOLDS else FAILS
    return Verdict(first.what, said, f"{first.why}; {second.what}: {second.why}")


def of_order(what: str, smaller: Ratio, larger: Ratio) -> Verdict:
    """The claim being that one figure is below another: their intervals have to lie apart."""
    said = f"{shown(smaller)} against {shown(larger)}"
    if smaller[2] < larger[0]:
        return Verdict(what, HOLDS, said)
    return Verdict(what, FAILS, f"{'the opposite' if larger[2] < smaller[0] else 'no difference shown'}: {said}")


def of_exponent(what: str, exponent: Ratio, claimed: int) -> Verdict:
    """The claim being growth with the power 2, or at most 1: the whole interval has to be on that side of 1.5."""
    low, _, high = exponent
    holds = high < 1.5 if claimed == 1 else low > 1.5
    said = "2" if claimed == 2 else "at most 1"
    return Verdict(what, HOLDS if holds else FAILS, f"exponent {shown(exponent)}, {said} claimed")


def unmeasured(what: str, why: str) -> Verdict:
    """A setting that this machine does not have."""
    return Verdict(what, UNKNOWN, why)


def overall(verdicts: Sequence[Verdict]) -> str:
    """One word for several settings; those that could not be measured count only where no other could."""
    said = {verdict.said for verdict in verdicts} - {UNKNOWN}
    if len(said) > 1:
        return PARTLY
    return said.pop() if said else UNKNOWN


def shown(ratio: Ratio) -> str:
    """`0.52 (0.50 to 0.55)`, or `0.52` where there is no interval."""
    low, middle, high = (f"{part:.2f}" for part in ratio)
    return middle if ratio[0] == ratio[2] else f"{middle} ({low} to {high})"


def exact(part: float, whole: float) -> Ratio:
    """The ratio of two figures that do not vary."""
    return (part / whole,) * 3


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'-|' * len(head)}", *lines[1:]])
