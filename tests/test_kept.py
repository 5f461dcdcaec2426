"""What is kept of an export is what was exported, and belongs to the sources as they are."""

from __future__ import annotations

from pathlib import Path

import kept
import pytest

from attnport.artifacts import SourceAttention

MADE = (b"graph", (SourceAttention("module#1", "module", "softmax"),))


def never(*given: Path) -> kept.Made:
    raise AssertionError("it was made again")


def test_an_export_is_made_once_and_again_where_its_sources_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.kept("a", lambda: MADE, tmp_path) == MADE
    assert kept.kept("a", never, tmp_path) == MADE
    with pytest.raises(AssertionError, match="made again"):
        kept.kept("b", never, tmp_path)
    monkeypatch.setattr(kept, "state", lambda: "another")
    assert kept.kept("a", lambda: (b"other", ()), tmp_path) == (b"other", ())
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_what_was_written_by_halves_is_made_again(tmp_path: Path) -> None:
    kept.kept("a", lambda: MADE, tmp_path)
    for path in tmp_path.rglob("a.json"):
        path.write_bytes(path.read_bytes()[:-5])
    assert kept.kept("a", lambda: MADE, tmp_path) == MADE
    assert kept.kept("a", never, tmp_path) == MADE


def test_a_folder_that_was_filled_by_halves_is_made_again(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.kept_folder("a", half, tmp_path)
    folder = kept.kept_folder("a", lambda folder: (folder / "whole").touch(), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert kept.kept_folder("a", never, tmp_path) == folder


def test_the_state_is_that_of_every_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("attnport", "attnport_bundle"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    before = kept.state.__wrapped__()
    (tmp_path / "attnport" / "new.py").write_text("x = 1\n")
    changed = kept.state.__wrapped__()
    (tmp_path / "attnport" / "new.py").write_text("x = 2\n")
    assert len({before, changed, kept.state.__wrapped__()}) == 3
