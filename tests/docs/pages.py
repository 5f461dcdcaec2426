"""The guides as text: which pages there are, and the commands and the Python that they show."""

from __future__ import annotations

import re

from scripts import ROOT

FORMAT = ROOT / "attnport" / "bundling" / "FORMAT.md"
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md"), FORMAT})
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
STARTS = ("attnport ", "cd app/python ")


def blocks(text: str) -> list[tuple[str, str]]:
    """The language and the lines of every piece of code of a page, fenced or indented, which has no language."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    rest = fence.sub("", text)
    indented = re.findall(r"(?:^|(?<=\n))(?:#[^\n]*)?\n((?: {4}[^\n]*\n)+)", rest)
    return [*fence.findall(text), *(("", code) for code in indented)]


def python_blocks(text: str) -> list[str]:
    """The fenced pieces of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def shell_lines(text: str) -> list[str]:
    """The lines of code of a page, or of a module's text, that run attnport or a bundle; continued lines are joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", joined, re.DOTALL | re.MULTILINE))
    indented = "\n".join(re.findall(r"^ {4,}(.*)$", joined, re.MULTILINE))
    return [line for line in f"{fenced}\n{indented}".splitlines() if line.startswith(STARTS)]
