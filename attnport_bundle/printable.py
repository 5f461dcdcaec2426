"""The characters that may be printed to a terminal, as a fixed table (FORMAT.md, Text) that all readers share.

Python's `str.isprintable` is not used: it changes with each release of Unicode, and other languages do not have it.
"""

from __future__ import annotations

import re

_HIDDEN = (
    *((0x00, 0x1F), (0x7F, 0xA0), (0xAD, 0xAD), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F)),
    *((0x890, 0x891), (0x8E2, 0x8E2), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200F), (0x2028, 0x202F)),
    *((0x205F, 0x2064), (0x2066, 0x206F), (0x3000, 0x3000), (0xD800, 0xF8FF), (0xFDD0, 0xFDEF), (0xFEFF, 0xFEFF)),
    *((0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3)),
    *((0x1D173, 0x1D17A), (0xE0001, 0xE0001), (0xE0020, 0xE007F), (0xF0000, 0x10FFFF)),
    *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0, 0xF0000, 0x10000)),
)
"""First and last of each range of controls, formats, separators except the space, surrogates, private use and
noncharacters."""

_PATTERN = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _HIDDEN) + "]")


_BLANKS = " \t\r\n\v\f"


def is_printable(text: str) -> bool:
    """Whether every character of `text` can be printed."""
    return _PATTERN.search(text) is None


def escaped(text: str) -> str:
    """A message of a runtime or parser, made safe to print on one line: it may contain text of a model file.

    Blanks around it are removed, and each character that cannot be printed is escaped as by `repr`.
    """
    return escape_all(text.strip(_BLANKS))


def escape_all(text: str) -> str:
    """`text` with each character that cannot be printed escaped as by `repr`."""
    return _PATTERN.sub(lambda match: ascii(match[0])[1:-1], text)
