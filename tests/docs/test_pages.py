"""The guides say what is so: links lead somewhere, Python in them imports, exit codes and commands are real."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import click
import pytest
from pages import PAGES, SCRIPTS, python_blocks, shell_lines
from scripts import ROOT

from attnport import errors
from attnport.cli import cli
from attnport.latency import statistics
from attnport.parity import bound as parity


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of a Markdown page that lead to no file; a lambda of C++ looks like one."""
    words = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", words)
    return [target for target in targets if "://" not in target and not (page.parent / target).exists()]


def missing_imports(code: str) -> list[str]:
    """What a piece of Python imports from attnport that is not there."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attnport":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if not (has_name(str(node.module), alias.name) or is_module(name)):
                    missing.append(name)
    return missing


def has_name(module: str, name: str) -> bool:
    return is_module(module) and hasattr(importlib.import_module(module), name)


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def commands(text: str) -> list[list[str]]:
    """The arguments of every `attnport ...` line of code, comments cut off."""
    return [shlex.split(line, comments=True)[1:] for line in shell_lines(text) if line.startswith("attnport ")]


def refused(arguments: list[str]) -> str:
    """Why the command line would not take these arguments; "" when it would. Nothing is run."""
    verb = cli.commands.get(arguments[0])
    if verb is None:
        return f"no verb {arguments[0]}"
    try:
        verb.make_context(arguments[0], list(arguments[1:]))
    except click.ClickException as err:
        return err.format_message()
    return ""


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=lambda page: page.name)
def test_every_command_of_a_page_is_one_that_the_command_line_takes(page: Path) -> None:
    assert [(line, refused(line)) for line in commands(page.read_text()) if refused(line)] == []


def test_the_readme_shows_every_verb_of_a_users_way() -> None:
    shown = {line[0] for line in commands((ROOT / "README.md").read_text())}
    assert shown >= set(cli.commands) - {"list"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_python_of_a_page_are_good(page: Path) -> None:
    text = page.read_text()
    assert broken_links(page, text) == []
    assert [name for code in python_blocks(text) for name in missing_imports(code)] == []


def test_the_exit_codes_of_the_guide_are_those_of_the_errors() -> None:
    table = re.findall(r"^\| (\d+) \| ", (ROOT / "docs" / "stable.md").read_text(), re.MULTILINE)
    owned = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    assert {int(code) for code in table} == owned | {0, 129, 130, 143}


@pytest.mark.parametrize(
    ("said", "page", "there"),
    [
        ("0.90 of the time", "performance", r"\b0\.90\b"),
        ("0.83 in bf16", "performance", r"\b0\.83\b"),
        ("573 are right", "models", r"attnport gets \*\*573\*\* right"),
        ("649 types", "models", r"649 types were tried"),
    ],
)
def test_the_figures_of_the_readme_are_those_of_the_pages(said: str, page: str, there: str) -> None:
    assert said in " ".join((ROOT / "README.md").read_text().replace("[", "").split())
    assert re.search(there, (ROOT / "docs" / f"{page}.md").read_text())


def test_the_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    wanted = set(re.findall(r"\bmake ([a-z][a-z-]*)\b", (ROOT / "README.md").read_text())) | {"test-all", "lint"}
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= wanted <= targets


def test_the_numbers_of_the_guides_are_those_of_the_code() -> None:
    assert f"cosine of {parity.COSINE}" in (ROOT / "docs" / "parity.md").read_text()
    said = (ROOT / "docs" / "latency.md").read_text()
    assert f"nominal {statistics.CONFIDENCE:.0%}".replace("%", " %") in said
    assert f"from {statistics.P90_SAMPLES} samples" in said
    assert f"from {statistics.P99_SAMPLES} samples" in said


def test_a_broken_link_and_a_missing_import_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "there.md").touch()
    text = "[a](there.md) [b](there.md#part) ![c](gone.png) [d](https://example.org/x)"
    assert broken_links(page, text) == ["gone.png"]
    assert missing_imports("from attnport.dims import Dim, Missing") == ["attnport.dims.Missing"]
    assert missing_imports("from attnport.nowhere import x\nimport json") == ["attnport.nowhere.x"]


def test_a_command_that_does_not_exist_is_found() -> None:
    wanted = [["fuse", "out/", "--target", "a"]]
    assert commands("attnport does it\n    attnport fuse out/ \\\n  --target a  # why\n") == wanted
    assert commands("x\n```\nattnport fuse out/ --target a\n```\nattnport is good\n") == wanted
    assert refused(["melt", "out/"]) == "no verb melt"
    assert "--colour" in refused(["fuse", "out/", "--colour"])
    assert "Missing" in refused(["fuse"])
    assert refused(["fuse", "out/", "--explain"]) == ""
