"""Writes the C++ reader's Unicode tables, from the tables of the Python that runs this.

    python tools/make_unicode_table.py

The file names the Unicode version. A test compares the reader with Python on every code point, so both must have it.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

FILE = Path(__file__).parents[1] / "cpp" / "src" / "unicode_table.cpp"
HEAD = """\
// Made by tools/make_unicode_table.py from Unicode {version}, the version of that Python. Do not edit.
#include <array>

#include "unicode.hpp"

namespace attnport::reader::unicode {{
namespace {{

constexpr Kind R = Kind::Removed;
constexpr Kind P = Kind::Punctuation;
constexpr Kind M = Kind::Mark;
constexpr Kind F = Kind::FixedMark;

"""
TAIL = "\n}  // namespace attnport::reader::unicode\n"
HANGUL = range(0xAC00, 0xD7A4)
PARTS = 4
"""The longest decomposition that the tables have room for."""


def kind(code: int) -> str:
    """How the tokenizer treats a character; "" = it is part of a word."""
    category = unicodedata.category(chr(code))
    if category in ("Cc", "Cf", "Co"):
        return "Removed"
    if category.startswith("P"):
        return "Punctuation"
    if category == "Mn":
        # A mark of class 0 separates the marks on its two sides, even though it is itself left out.
        return "Mark" if unicodedata.combining(chr(code)) else "FixedMark"
    return ""


def order(code: int) -> str:
    """The canonical combining class of a character that is not left out as a mark; "" if it is not reordered."""
    combining_class = unicodedata.combining(chr(code))
    return str(combining_class) if combining_class and kind(code) != "Mark" else ""


def parts(code: int) -> tuple[int, ...] | None:
    """The canonical decomposition without marks that are reordered; None if it is the character itself."""
    decomposed_text = unicodedata.normalize("NFD", chr(code))
    if code in HANGUL or decomposed_text == chr(code):
        return None
    return tuple(ord(char) for char in decomposed_text if kind(ord(char)) != "Mark")


def codes() -> Iterator[int]:
    """Every code point except surrogates, which UTF-8 does not have."""
    return (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)


def ranges(rule: Callable[[int], str]) -> Iterator[str]:
    """Ranges of code points with the same result of a rule: first, last and the result."""
    first, last, result = -1, -1, ""
    for code in codes():
        current = rule(code)
        if current == result and code == last + 1:
            last = code
            continue
        if result:
            yield f"{{{first:#x}, {last:#x}, {result}}},"
        first, last, result = code, code, current
    if result:
        yield f"{{{first:#x}, {last:#x}, {result}}},"


def lowered() -> Iterator[str]:
    """Ranges with the same distance to the lower-case letter; each has all characters, or every second one."""
    lower_ranges: list[list[int]] = []  # first, last, step, distance
    for code in codes():
        lower = chr(code).lower()
        if lower == chr(code) or len(lower) > 1:
            continue
        distance = ord(lower) - code
        if lower_ranges and lower_ranges[-1][3] == distance:
            first, last, step, _ = lower_ranges[-1]
            if code - last == step or (first == last and code - last == 2):
                lower_ranges[-1][1:3] = [code, code - last]
                continue
        lower_ranges.append([code, code, 1, distance])
    return (f"{{{first:#x}, {last:#x}, {step}, {distance}}}," for first, last, step, distance in lower_ranges)


def several() -> Iterator[str]:
    """Characters whose lower case has several characters."""
    for code in codes():
        lower = chr(code).lower()
        if len(lower) > 1:
            yield row(code, [ord(char) for char in lower])


def decomposed() -> Iterator[str]:
    """Characters with the parts that stay of each, where these are none or several."""
    for code in codes():
        found = parts(code)
        if found is not None and len(found) != 1:
            yield row(code, found)


def replaced() -> tuple[list[str], list[str]]:
    """Runs of characters of which one part stays, each with the place of its first part, and these parts."""
    runs: list[list[int]] = []  # first, count, place
    found: list[str] = []
    for code in codes():
        one = parts(code)
        if one is None or len(one) != 1:
            continue
        if runs and code == sum(runs[-1][:2]):
            runs[-1][1] += 1
        else:
            runs.append([code, 1, len(found)])
        found.append(f"{one[0]:#x},")
    return [f"{{{first:#x}, {count}, {place}}}," for first, count, place in runs], found


def row(code: int, found: Iterable[int]) -> str:
    """A character and what stands for it."""
    listed = [f"{one:#x}" for one in found]
    if len(listed) > PARTS:
        raise ValueError(f"U+{code:04X} has {len(listed)} parts; the tables have room for {PARTS}")
    return f"{{{code:#x}, {len(listed)}, {{{', '.join(listed)}}}}},"


def table(name: str, of: str, rows: Iterable[str]) -> Iterator[str]:
    """An array in C++, with several rows in a line."""
    listed = list(rows)
    yield f"constexpr std::array<{of}, {len(listed)}> {name}_rows{{{{\n"
    line = "   "
    for cell in listed:
        if len(line) + 1 + len(cell) > 120:
            yield line + "\n"
            line = "   "
        line += " " + cell
    yield line + "\n}};\n\n"


def text() -> str:
    """The whole file."""
    runs, letters = replaced()
    whole = [
        ("kinds", "KindRange", ranges(lambda code: kind(code)[:1])),
        ("orders", "OrderRange", ranges(order)),
        ("decompositions", "Letters", decomposed()),
        ("replaced", "Run", runs),
        ("replacements", "char32_t", letters),
        ("lower", "LowerRange", lowered()),
        ("lower_several", "Letters", several()),
    ]
    arrays = "".join("".join(table(*columns)) for columns in whole)
    shown = "".join(f"const Rows<{of}> {name}{{{name}_rows.data(), {name}_rows.size()}};\n" for name, of, _ in whole)
    return f"{HEAD.format(version=unicodedata.unidata_version)}{arrays}}}  // namespace\n\n{shown}{TAIL}"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
