"""A file in its folder is all that it takes; helpers are not listed, and a name that there is not is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport import registry
from attnport.errors import UsageError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package beside a registry of its own, with things and helpers in it."""
    folder = tmp_path / "things"
    folder.mkdir()
    for name in ("base", "_helper", "__init__", "one_thing", "another"):
        (folder / f"{name}.py").write_text(f"THING = {name!r}\n")
    (folder / "notes.txt").write_text("no module")
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    return f"{tmp_path.name}.things"


def test_files_are_found_in_order_without_helpers(package: str) -> None:
    assert registry.names(package) == ["another", "one_thing"]


def test_a_hyphen_is_an_underscore(package: str) -> None:
    assert registry.module(package, "one-thing", "thing").THING == "one_thing"


@pytest.mark.parametrize("name", ["base", "_helper", "nothing", "", "../one_thing", "one_thing.py"])
def test_a_name_that_there_is_not_is_an_error_that_lists_those_there_are(name: str, package: str) -> None:
    with pytest.raises(UsageError, match="there is none; expected one of another, one_thing"):
        registry.module(package, name, "thing")


@pytest.mark.parametrize(
    ("package", "known"),
    [
        ("attnport.runtimes", "ort_cpu"),
        ("attnport.exporter.targets", "onnx"),
        ("attnport.exporter.fusion.rules", "softmax"),
    ],
)
def test_every_folder_that_is_searched_is_where_it_is_searched(package: str, known: str) -> None:
    assert known in registry.names(package)
