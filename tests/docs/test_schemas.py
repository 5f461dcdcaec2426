"""docs/schemas says what `--json` prints, and what earlier versions wrote is read and still fits it.

The files of tests/golden/json were written before there was a key `schema`: by the verbs, cut to a few rows, and those
of `bisect` and `gpu-check` by hand. They stay as they are, until a value gets a new version that no longer reads them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from json_schema import problems
from scripts import ROOT, load

from attnport.errors import ArtifactError
from attnport.jsonfile import from_json, to_json

make = load("docs/make_schemas.py")
KINDS = make.names()
EARLIER = ROOT / "tests" / "golden" / "json"
STALE = (
    "{} is not what is printed now. If keys were added, or a description changed: python docs/make_schemas.py. If a "
    "key was removed or renamed, or has another type or meaning: raise the version in the value's `schema` first."
)


def published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((make.FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def breaks(value: Any, name: str) -> list[str]:
    schema = published(name)
    return list(problems(value, schema, schema))


def earlier(name: str) -> str:
    return (EARLIER / f"{name}.json").read_text("utf-8")


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value that is no list or object, with its place; an empty list or object counts as one."""
    if not isinstance(value, dict | list) or not value:
        yield place, value
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(item, (*place, key))


@pytest.mark.parametrize("name", KINDS)
def test_the_published_schema_is_that_of_the_value(name: str) -> None:
    path = make.FOLDER / f"{name}.json"
    assert path.is_file(), STALE.format(path.name)
    assert path.read_text("utf-8") == make.text(KINDS[name]), STALE.format(path.name)


def test_every_value_with_a_schema_is_published_and_nothing_else() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "attnport").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'schema: Literal\["attnport/([\w-]+)/\d+"\]', text)}
    assert named == set(KINDS) == {path.stem for path in make.FOLDER.glob("*.json")}


def test_the_page_has_every_schema_with_its_version() -> None:
    page = (ROOT / "docs" / "json.md").read_text("utf-8")
    rows = re.findall(r"\[`(attnport/[\w-]+/\d+)`\]\(schemas/([\w-]+)\.json\)", page)
    assert {name: schema for schema, name in rows} == {name: make.name_of(kind) for name, kind in KINDS.items()}


def test_a_value_that_changes_changes_its_schema() -> None:
    kind = KINDS["list"]
    more = dataclasses.make_dataclass("Listing", [("more", int, 0)], bases=(kind,), frozen=True)
    fewer = dataclasses.make_dataclass("Listing", [("schema", str, "attnport/list/1"), ("what", str)], kw_only=True)
    texts = {make.text(kind), make.text(more), make.text(fewer)}
    assert len(texts) == 3


@pytest.mark.parametrize("name", KINDS)
def test_what_an_earlier_version_wrote_is_read_and_fits_the_schema(name: str) -> None:
    text = earlier(name)
    assert breaks(json.loads(text), name) == []
    now = to_json(from_json(KINDS[name], text, name))
    kept = dict(leaves(json.loads(now)))
    lost = [place for place, value in leaves(json.loads(text)) if kept.get(place, "lost") != value]
    assert lost == []


@pytest.mark.parametrize("name", KINDS)
def test_what_is_printed_now_names_its_schema_first_and_fits_it(name: str) -> None:
    printed = json.loads(to_json(from_json(KINDS[name], earlier(name), name)))
    assert next(iter(printed.items())) == ("schema", make.name_of(KINDS[name]))
    assert re.fullmatch(rf"attnport/{name}/\d+", printed["schema"])
    assert breaks(printed, name) == []
    assert from_json(KINDS[name], json.dumps(printed), name) == from_json(KINDS[name], earlier(name), name)


def test_a_file_of_another_schema_is_refused() -> None:
    changed = {"schema": "attnport/parity/1", **json.loads(earlier("parity"))}
    with pytest.raises(ArtifactError, match="schema: got"):
        from_json(KINDS["parity"], json.dumps(changed), "parity.json")
    assert breaks(changed, "parity") == [".schema const"]


@pytest.mark.parametrize(
    ("place", "value", "found"),
    [
        (("verdict",), "MAYBE", ".verdict enum"),
        (("notes",), "a note", ".notes type"),
        (("runtimes",), None, ".runtimes type"),
        (("runtimes", "ort_cpu"), {}, ".runtimes.ort_cpu required"),
        (("absent",), 0, ".absent type"),
        (("runtimes", "ort_cpu", "cases", 0, "elements"), True, ".runtimes.ort_cpu.cases.0.elements type"),
        (("runtimes", "ort_cpu", "cases", 0, "rms_error"), "1", ".runtimes.ort_cpu.cases.0.rms_error anyOf"),
        (("runtimes", "ort_cpu", "ran"), {"device": "CPU"}, ".runtimes.ort_cpu.ran anyOf"),
    ],
)
def test_json_that_breaks_its_schema_is_found(place: tuple[Any, ...], value: Any, found: str) -> None:
    changed = json.loads(earlier("parity"))
    at = changed
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert breaks(changed, "parity") == [found]


def test_a_reader_of_a_published_schema_takes_keys_that_a_later_version_adds() -> None:
    later = {**json.loads(earlier("parity")), "added": 1}
    assert breaks(later, "parity") == []


def test_intervals_have_three_numbers() -> None:
    changed = json.loads(earlier("latency"))
    row = next(row for rows in changed["shapes"].values() for row in rows.values() if row["ratio"])
    row["ratio"] = [1.0, 2.0]
    assert len(breaks(changed, "latency")) == 1


def test_a_keyword_that_the_check_does_not_know_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="pattern"):
        list(problems("x", {"type": "string", "pattern": "y"}, {}))
