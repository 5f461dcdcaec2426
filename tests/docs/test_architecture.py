"""What the page on the code names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from scripts import ROOT

NAMED = re.compile(r"((?:\w+/)+\w+\.py)(?:: ([\w.]+(?:, \w+)*))?")


def named() -> list[tuple[str, tuple[str, ...]]]:
    """Files with what the page says that they define."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    found = ((file, tuple(names.split(", ")) if names else ()) for file, names in NAMED.findall(text))
    return sorted({one for one in found if not one[0].startswith(("source/", "tests/"))})


def defined(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize(("file", "names"), named(), ids=str)
def test_what_the_page_names_is_there(file: str, names: tuple[str, ...]) -> None:
    path = ROOT / file if file.startswith("attnport") else ROOT / "attnport" / file
    assert path.is_file()
    assert {name.rpartition(".")[2] for name in names} <= defined(path)


def test_the_page_names_many() -> None:
    assert sum(bool(names) for _, names in named()) > 40
