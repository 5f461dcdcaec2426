"""The fixed table of what can be printed against Unicode, and FORMAT.md against the table."""

from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path

import attnport.bundling
from attnport_bundle.errors import _HIDDEN, escaped, is_printable

FORMAT = Path(attnport.bundling.__file__).with_name("FORMAT.md")
HIDDEN = {"Cc", "Cf", "Zs", "Zl", "Zp", "Co", "Cs"}
LETTERS = [chr(number) for number in range(sys.maxunicode + 1)]


def is_noncharacter(letter: str) -> bool:
    return 0xFDD0 <= ord(letter) <= 0xFDEF or ord(letter) & 0xFFFE == 0xFFFE


def test_the_table_hides_what_unicode_says_is_no_mark_on_paper_and_nothing_else() -> None:
    wrong = [
        hex(ord(letter))
        for letter in LETTERS
        if unicodedata.category(letter) != "Cn"  # a later release of Unicode may say what it is
        and is_printable(letter) is not (letter == " " or unicodedata.category(letter) not in HIDDEN)
    ]
    assert not wrong


def test_of_what_is_not_assigned_noncharacters_alone_are_hidden() -> None:
    unassigned = [letter for letter in LETTERS if unicodedata.category(letter) == "Cn"]
    since_unicode_15 = {chr(number) for number in range(0x13439, 0x13440)}  # format controls of hieroglyphs
    hidden = {letter for letter in unassigned if not is_printable(letter)}
    assert hidden - since_unicode_15 == set(filter(is_noncharacter, unassigned))


def test_what_python_prints_is_printable() -> None:
    assert all(is_printable(letter) for letter in LETTERS if letter.isprintable())


def test_what_others_said_is_one_line_that_can_be_printed() -> None:
    said = "\n No Op \x1b[2J\n\u202e\udcff\U000f0000 in 'é \\ 漢' \r\n"
    assert escaped(said) == r"No Op \x1b[2J\n\u202e\udcff\U000f0000 in 'é \ 漢'"
    assert (escaped(" \n"), escaped("")) == ("", "")
    assert is_printable(escaped("".join(LETTERS)))


def test_the_format_has_the_table() -> None:
    text = FORMAT.read_text().partition("## Text\n")[2].partition("\n## ")[0]
    start = "These characters are not printable: U+"
    words = re.sub(r"\s+", " ", text.partition(", and the last two")[0]).removeprefix(start)
    stated = [tuple(int(end, 16) for end in item.split(" to ")) for item in words.split(", ")]
    found = [(first, last) if first != last else (first,) for first, last in _HIDDEN if first & 0xFFFE != 0xFFFE]
    assert stated == found
