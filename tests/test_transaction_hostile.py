"""Names, links and journals that a folder from elsewhere may hold are refused, and nothing outside it is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from generations import files, generation, interrupted, stage, tidy, write

from attnport.errors import ArtifactError, UsageError
from attnport.transaction import JOURNAL, LOCK, STAGING, settle, transaction


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "out"
    write(target, 1)
    return target


def test_removed_then_written_again_stays(folder: Path) -> None:
    with transaction(folder) as staged:
        staged.remove("weights.bin")
        staged.path("weights.bin").write_text("new")
    assert (folder / "weights.bin").read_text() == "new"


def test_written_then_removed_goes(folder: Path) -> None:
    with transaction(folder) as staged:
        staged.path("weights.bin").write_text("new")
        staged.remove("weights.bin")
        staged.remove("never there")
    assert "weights.bin" not in files(folder)


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/../../x", "", "a//b", JOURNAL, f"{STAGING}/x", "a\\b", "a\0b", "."]
)
def test_a_name_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    with transaction(folder) as staged:
        with pytest.raises(ArtifactError, match="not the name of a file inside"):
            staged.path(name)
        with pytest.raises(ArtifactError, match="not the name of a file inside"):
            staged.remove(name)


def test_a_staged_link_is_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="not a regular file"), transaction(folder) as staged:
        staged.path("manifest").symlink_to("/etc/hostname")
    assert generation(folder) == 1


def test_a_folder_in_the_way_is_refused_before_anything_changes(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="in the way"):
        stage(folder, "a first one", "engines")
    assert generation(folder) == 1
    assert tidy(folder)


def test_a_linked_subfolder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder / "engines", elsewhere)
    (folder / "engines").symlink_to(elsewhere)
    with pytest.raises(ArtifactError, match="not a folder of its own"):
        write(folder, 2)
    assert (elsewhere / "a/deep.engine").read_text().startswith("0001")


def test_a_link_to_the_folder_itself_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    write(tmp_path / "link", 2)
    assert generation(folder) == 2
    assert (tmp_path / "link").is_symlink()


def test_a_link_in_place_of_a_file_is_replaced_and_its_target_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to(tmp_path / "target")
    write(folder, 2)
    assert generation(folder) == 2
    assert (tmp_path / "target").read_text() == "mine"


def test_damaged_staged_files_are_rolled_back_while_none_is_in_place(folder: Path) -> None:
    interrupted(folder, lambda staging: (staging / "weights.bin").write_text("rot"))
    settle(folder)
    assert generation(folder) == 1
    assert tidy(folder)


def test_staged_files_that_are_gone_are_rolled_back_while_none_is_in_place(folder: Path) -> None:
    interrupted(folder, lambda staging: shutil.rmtree(staging))
    settle(folder)
    assert generation(folder) == 1


def test_a_damaged_file_half_way_is_an_error_that_says_what_to_do(folder: Path) -> None:
    interrupted(folder, lambda staging: (staging / "weights.bin").write_text("rot"), renames=3)
    for _ in range(2):
        with pytest.raises(ArtifactError, match="bin is damaged") as caught:
            settle(folder)
    assert "make it again" in caught.value.hint


@pytest.mark.parametrize(
    "journal",
    [
        "",
        "{",
        "[]",
        "null",
        '{"token": "t", "files": {}}',
        '{"token": 1, "files": {}, "remove": []}',
        '{"token": "t", "files": {"a": 1}, "remove": []}',
        '{"token": "t", "files": [["a", "b"]], "remove": []}',
        '{"token": "..", "files": {}, "remove": []}',
        '{"token": "t", "files": {}, "remove": ["../victim"]}',
        '{"token": "t", "files": {}, "remove": ["VICTIM"]}',
        '{"token": "t", "files": {"../victim": "00"}, "remove": []}',
        '{"token": "t", "files": {}, "remove": [".attnport-lock"]}',
        '{"token": "t", "files": {}, "remove": [["a"]]}',
        "[" * 100_000,
    ],
)
def test_a_journal_from_elsewhere_is_refused_and_touches_nothing(folder: Path, tmp_path: Path, journal: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / JOURNAL).write_text(journal.replace("VICTIM", str(victim)))
    with pytest.raises(ArtifactError, match="not a journal that can be followed"):
        settle(folder)
    with pytest.raises(ArtifactError):
        write(folder, 2)
    assert victim.read_text() == "mine"
    assert (folder / "manifest").read_text().startswith("0001")


def test_a_journal_through_a_linked_subfolder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/victim").write_text("mine")
    (folder / "sub").symlink_to(tmp_path / "home")
    (folder / JOURNAL).write_text(json.dumps({"token": "t", "files": {}, "remove": ["sub/victim"]}))
    with pytest.raises(ArtifactError, match="not a folder of its own"):
        settle(folder)
    assert (tmp_path / "home/victim").read_text() == "mine"


def test_linked_staging_and_lock_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("mine")
    (folder / STAGING).symlink_to(tmp_path / "home")
    write(folder, 2)
    assert generation(folder) == 2
    assert (tmp_path / "home/precious").read_text() == "mine"
    (folder / LOCK).symlink_to(tmp_path / "made through a link")
    with pytest.raises(UsageError, match="cannot be written"):
        write(folder, 3)
    assert not (tmp_path / "made through a link").exists()
    assert generation(folder) == 2
