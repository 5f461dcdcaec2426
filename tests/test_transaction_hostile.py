"""Names, links and changes that a folder from elsewhere may hold are refused, and nothing outside it is touched."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from generations import LAST, files, generation, interrupted, stage, tidy, write

from attnport.errors import ArtifactError
from attnport.transaction import ADDED, LOCK, OLD, STAGING, transaction, undo_unfinished
from attnport.transaction import LAST as WAITING


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "out"
    write(target, 1)
    return target


def test_removed_then_written_again_stays(folder: Path) -> None:
    with transaction(folder, LAST) as staged:
        staged.remove("weights.bin")
        staged.path("weights.bin").write_text("new")
        staged.path(LAST).write_text("the manifest")
    assert (folder / "weights.bin").read_text() == "new"


def test_written_then_removed_goes(folder: Path) -> None:
    with transaction(folder, LAST) as staged:
        staged.path("weights.bin").write_text("new")
        staged.remove("weights.bin")
        staged.remove("never there")
        staged.path(LAST).write_text("the manifest")
    assert "weights.bin" not in files(folder)


def test_a_staged_link_is_refused(folder: Path) -> None:
    with transaction(folder, LAST) as staged:
        staged.path("weights.bin").symlink_to("/etc/hostname")
        with pytest.raises(ArtifactError, match="not a regular file"):
            staged.staged()
    assert generation(folder) == 1


def test_a_folder_in_the_way_is_refused_before_anything_changes(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="in the way"):
        stage(folder, "a first one", "engines", LAST)
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


def test_a_file_moved_aside_that_is_gone_leaves_a_digest_to_tell(folder: Path) -> None:
    interrupted(folder)
    next((folder / STAGING).glob(f"*/{OLD}/weights.bin")).unlink()
    undo_unfinished(folder)
    assert tidy(folder)
    with pytest.raises(AssertionError, match="mixture"):
        generation(folder)
    assert (folder / LAST).read_text().startswith("0001"), "the manifest, whose digests tell, is the earlier one"


def unfinished(folder: Path, kind: str, name: str) -> None:
    """What looks like a change that was not finished, which moved `name` aside, or added it."""
    for place in (f"{kind}/{name}", WAITING):
        path = folder / STAGING / "t" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")


@pytest.mark.parametrize("kind", [OLD, ADDED])
def test_a_change_from_elsewhere_is_not_taken_back_through_a_linked_subfolder(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/victim").write_text("mine")
    (folder / "sub").symlink_to(tmp_path / "home")
    unfinished(folder, kind, "sub/victim")
    with pytest.raises(ArtifactError, match="not a folder of its own"):
        undo_unfinished(folder)
    with pytest.raises(ArtifactError, match="not a folder of its own"):
        write(folder, 2)
    assert (tmp_path / "home/victim").read_text() == "mine"
    assert generation_of(folder) == 1


def generation_of(folder: Path) -> int:
    return int((folder / LAST).read_text()[:4])


@pytest.mark.parametrize("linked", ["", "t", f"t/{OLD}", f"t/{OLD}/sub"])
def test_a_link_in_the_staging_folder_is_not_followed(folder: Path, tmp_path: Path, linked: str) -> None:
    home = tmp_path / "home"
    unfinished(folder, OLD, "sub/precious")
    shutil.move(folder / STAGING / linked, home)
    (folder / STAGING / linked).symlink_to(home)
    before = {path.relative_to(home) for path in home.rglob("*")}
    with contextlib.suppress(ArtifactError):
        undo_unfinished(folder)
    assert {path.relative_to(home) for path in home.rglob("*")} == before


def test_linked_staging_and_lock_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("mine")
    (folder / STAGING).symlink_to(tmp_path / "home")
    write(folder, 2)
    assert generation(folder) == 2
    assert (tmp_path / "home/precious").read_text() == "mine"
    (folder / LOCK).symlink_to(tmp_path / "made through a link")
    with pytest.raises(OSError, match="symbolic links"):
        write(folder, 3)
    assert not (tmp_path / "made through a link").exists()
    assert generation(folder) == 2
