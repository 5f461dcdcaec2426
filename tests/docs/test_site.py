"""The site's sources and its check: what becomes of links and blocks, and that planted faults are found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import ROOT, load

import attnport
import attnport_bundle
from attnport_bundle import errors

reference = load("tools/reference.py")
site = load("tools/make_site.py")


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").partition("not_in_nav:")[0]))
    pages = {place for place in site.places(ROOT).values() if place.endswith(".md") and not place.startswith("adr/")}
    assert pages <= listed
    assert listed - pages == {"adr/index.md", *reference.reference_pages(ROOT)} | _places_kept()


def _places_kept() -> set[str]:
    """Pages that a comment of mkdocs.yml keeps a place for."""
    kept = re.findall(r"# Places for (.*)", (ROOT / "mkdocs.yml").read_text("utf-8"))
    return {name for line in kept for name in re.findall(r"\w+\.md", line)}


def test_no_script_is_published(tmp_path: Path) -> None:
    site.make(ROOT, tmp_path / "pages")
    made = {path.suffix for path in (tmp_path / "pages").rglob("*") if path.is_file()}
    assert made == {".md", ".png", ".svg", ".json", ".css"}
    assert "](" in (tmp_path / "pages" / "adr" / "index.md").read_text()


def test_links_lead_to_where_pages_are_on_the_site(tmp_path: Path) -> None:
    for name in ("README.md", "docs/a.md", "docs/adr/b.md", "docs/c.svg", "tool.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    known = site.places(tmp_path)
    assert known == {"README.md": "index.md", "docs/a.md": "a.md", "docs/adr/b.md": "adr/b.md", "docs/c.svg": "c.svg"}
    text = "[a](docs/a.md#part) ![c](docs/c.svg) [t](tool.py) [x](https://example.org) `[q](docs/a.md)` [n](none.md)"
    changed = "[a](a.md#part) ![c](c.svg) [t](source/tool.py.md) [x](https://example.org) `[q](docs/a.md)` [n](none.md)"
    assert site.linked("README.md", text, known, tmp_path) == (changed, {"tool.py"})
    assert site.linked("docs/adr/b.md", "[r](../../README.md)", known, tmp_path) == ("[r](../index.md)", set())
    code = "```cpp\n[&](docs/a.md)\n```\n"
    assert site.linked("README.md", code, known, tmp_path) == (code, set())


def test_lists_tables_and_code_stand_by_themselves() -> None:
    assert site.spaced("Of these:\n- one\n  more\n- two\n\nand\n|a|\n|-|\n|b|") == (
        "Of these:\n\n- one\n  more\n- two\n\nand\n\n|a|\n|-|\n|b|"
    )
    assert site.spaced("Run\n```\n- no list\n```\nthen").split() == ["Run", "```", "-", "no", "list", "```", "then"]
    assert "Run\n\n```\n- no list\n```\n\nthen" in site.spaced("Run\n```\n- no list\n```\nthen")


def test_the_reference_has_every_public_name() -> None:
    assert list(reference.homes(ROOT / "attnport")) == attnport.__all__
    assert list(reference.homes(ROOT / "attnport_bundle")) == attnport_bundle.__all__
    pages = reference.reference_pages(ROOT)
    for package in (attnport, attnport_bundle):
        text = pages[f"reference/{package.__name__}.md"]
        absent = [name for name in package.__all__ if f"{package.__name__}.{name}" not in text]
        assert [name for name in absent if not hasattr(errors, name)] == []
    assert "::: attnport_bundle.errors\n" in pages["reference/errors.md"]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('<a href="gone.html">x</a>', "links to gone.html, which is not there"),
        ('<a href="b.html#gone">x</a>', "links to b.html#gone, which has no such anchor"),
        ('<a href="#gone">x</a>', "links to #gone, which has no such anchor"),
        ('<img src="gone.png">', "links to gone.png, which is not there"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
    ],
)
def test_a_fault_of_a_built_page_is_found(page: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h2 id="there">b</h2>')
    (tmp_path / "a.html").write_text(page)
    assert list(site.problems(tmp_path)) == [f"a.html {said}"]


def test_a_style_that_loads_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@import url('https://fonts.example.org/x.css'); a { background: url(a.svg) }")
    assert list(site.problems(tmp_path)) == ["a.css loads https://fonts.example.org/x.css"]


def test_a_page_whose_links_are_good_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h2 id="there">b</h2>')
    (tmp_path / "a.html").write_text('<a href="b.html#there">b</a><a href="https://example.org">e</a><a href=".">.</a>')
    (tmp_path / "index.html").write_text("")
    assert list(site.problems(tmp_path)) == []
