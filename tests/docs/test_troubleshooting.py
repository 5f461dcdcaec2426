"""Every message that the page of troubleshooting quotes is one that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scripts import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
HOLE = "\0"


def quoted(text: str) -> list[str]:
    """The messages in the headings of a page."""
    return re.findall(r"^### `(.*)`$", text, re.MULTILINE)


def written(code: str) -> Iterator[str]:
    """Every text of a piece of Python but docstrings; `HOLE` is what is filled in, parts that follow are one."""
    tree = ast.parse(code)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in said:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
            yield "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def known(message: str, texts: list[str]) -> bool:
    """Whether one text has all that a message says between its holes, in its order, and holes where it has them."""
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in message.split("…")), re.DOTALL | re.IGNORECASE)
    return any(pattern.search(text) for text in texts)


def test_every_message_of_the_page_is_one_of_the_code() -> None:
    files = [*(ROOT / "attnport").rglob("*.py"), *(ROOT / "attnport_bundle").rglob("*.py")]
    texts = [text for file in files for text in written(file.read_text("utf-8"))]
    messages = quoted(PAGE.read_text("utf-8"))
    assert len(messages) > 40
    assert [message for message in messages if not known(message, texts)] == []


def test_a_message_that_nobody_writes_is_found() -> None:
    texts = list(written('x = f"{name} is missing; " f"expected {kind}."'))
    assert known("… is missing; expected ….", texts)
    assert not known("… is absent; expected ….", texts)
    assert not known("expected … is missing", texts)
    assert list(written('"""This is missing."""')) == []
