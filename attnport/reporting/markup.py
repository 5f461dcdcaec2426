"""HTML that is escaped by construction: whatever is not `Html` already is text, and is escaped on its way in.

Names, reasons and evidence come from models, files and libraries; none of them is trusted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

VOID = frozenset({"br", "img", "link", "meta"})
# Control characters, halves of surrogate pairs and bidirectional overrides: they break the file, or what is read of it.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def printable(value: str) -> str:
    """A text whose unprintable characters, and those that change what is read, are replaced."""
    return _UNPRINTABLE.sub("\ufffd", value)


def text(value: object) -> Html:
    """`value` as markup: itself when it is `Html`, escaped otherwise."""
    return value if isinstance(value, Html) else Html(html.escape(printable(str(value))))


def join(children: Iterable[object], separator: str = "") -> Html:
    """Children, each escaped unless it is markup, with an escaped separator between them; None is left out."""
    return Html(text(separator).join(text(child) for child in children if child is not None))


def el(tag: str, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        tag: Its name, from our own code.
        children: Markup or text; None is left out.
        attributes: `class_` is `class`, other underscores are hyphens; None and False are left out, True is bare.
    """
    written = [tag]
    for given, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = given.rstrip("_").replace("_", "-")
        written.append(attribute if value is True else f'{attribute}="{text(value)}"')
    opening = "<" + " ".join(written) + ">"
    if tag in VOID:
        return Html(opening)
    return Html(f"{opening}{join(children)}</{tag}>")


def name(value: str) -> Html:
    """An identifier in the monospace face that may break after its separators."""
    parts = re.split(r"(?<=[._/,:(\-])", value)
    return el("code", Html("<wbr>".join(text(part) for part in parts if part)))


def table(
    caption: object,
    head: Sequence[object],
    rows: Iterable[Html],
    *,
    class_: str | None = None,
    label: str | None = None,
) -> Html:
    """A table in its own scrolling container.

    Args:
        caption: What it shows.
        head: Column headings, markup or text, or from `over_numbers`.
        rows: `tr` or `tbody` elements.
        class_: The table's class.
        label: The container's name for screen readers; the caption when that is text.
    """
    columns = el("tr", *(_heading(heading) for heading in head))
    body = el("table", el("caption", caption), el("thead", columns), *rows, class_=class_)
    # Focusable, so that the keyboard can scroll it too.
    return el("div", body, class_="scroll", tabindex="0", role="region", aria_label=label or caption)


def _heading(heading: object) -> Html:
    made = isinstance(heading, Html) and heading.startswith("<th")
    return text(heading) if made else el("th", heading, scope="col")


def over_numbers(*headings: object) -> list[object]:
    """Column headings that stand over numbers, aligned as they are."""
    return [el("th", heading, scope="col", class_="n") for heading in headings]


def row(first: object, *cells: object, class_: str | None = None) -> Html:
    """A table row whose first cell is its heading; cells that are no `td` yet become one."""
    wrapped = (cell if isinstance(cell, Html) and cell.startswith("<td") else el("td", cell) for cell in cells)
    return el("tr", el("th", first, scope="row"), *wrapped, class_=class_)


def number(value: object, **attributes: object) -> Html:
    """A table cell with a number, aligned to the right."""
    return el("td", value, class_="n", **attributes)


def verdict(value: str) -> Html:
    """A verdict in words, with a mark whose shape differs too."""
    shown = value.replace("_", " ")
    kind = {"PASS": "pass", "FAIL": "fail", "NOT_RUN": "skip"}.get(value, "plain")
    return el("span", shown, class_=f"v {kind}")


def details(summary: object, *children: object, id_: str | None = None) -> Html:
    """A part that opens on demand."""
    return el("details", el("summary", summary), *children, id_=id_)


def pending(command: str) -> Html:
    """The note that stands where a stage has not run."""
    return el("p", "Not run yet: ", el("code", command), class_="pending")
