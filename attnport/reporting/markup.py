"""Builds HTML that is always escaped: everything that is not `Html` is text, and is escaped when it is added.

Names, reasons and evidence come from models, files and libraries, and are not trusted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = frozenset({"br", "img", "link", "meta"})
# Control characters, halves of surrogate pairs and bidirectional overrides, which break the file or change its text.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


def printable(value: str) -> str:
    """A text with unprintable characters, and those that change the direction of text, replaced."""
    return _UNPRINTABLE.sub("\ufffd", value)


def text(value: object) -> Html:
    """`value` as markup: unchanged if it is `Html`, otherwise escaped."""
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
    for keyword, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = keyword.rstrip("_").replace("_", "-")
        written.append(attribute if value is True else f'{attribute}="{text(value)}"')
    opening = "<" + " ".join(written) + ">"
    if tag in VOID:
        return Html(opening)
    return Html(f"{opening}{join(children)}</{tag}>")


def name(value: str) -> Html:
    """An identifier in the monospace font, which may be broken after its separators."""
    parts = re.split(r"(?<=[._/,:(\-])", value)
    return el("code", Html("<wbr>".join(text(part) for part in parts if part)))


def verdict(value: str) -> Html:
    """A verdict in words, with a mark whose shape differs by verdict."""
    shown = value.replace("_", " ")
    kind = {"PASS": "pass", "FAIL": "fail", "NOT_RUN": "skip"}.get(value, "plain")
    return el("span", shown, class_=f"v {kind}")


def details(summary: object, *children: object, id_: str | None = None) -> Html:
    """A part that opens on demand."""
    return el("details", el("summary", summary), *children, id_=id_)
