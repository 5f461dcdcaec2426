"""Several writers and readers of one folder: one writer at a time, readers see one state."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest
from generations import LAST, generation, tidy, write
from killing import in_child

from attnport.transaction import LOCK, OLD, STAGING, BusyError, Transaction, locked, transaction, undo_unfinished


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "out"
    write(target, 1)
    return target


def test_a_second_writer_is_refused_and_says_so(folder: Path) -> None:
    with transaction(folder, LAST) as staged:
        staged.path("manifest").write_text("half")
        with pytest.raises(BusyError, match="another process") as caught:
            write(folder, 2)
        assert caught.value.exit_code == 2
        assert staged.path("manifest").read_text() == "half", "the first writer's files were taken away"
    assert (folder / "manifest").read_text() == "half"


def test_many_writers_at_once_never_mix(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def contend(seed: int) -> None:
        wins = 0
        while wins < 5:
            try:
                write(target, 2 * seed + wins % 2)
                wins += 1
            except BusyError:
                time.sleep(0.0005 * seed)

    children = []
    for seed in range(1, 5):
        child = os.fork()
        if child == 0:
            try:
                contend(seed)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    assert generation(target) > 0
    assert tidy(target)


def test_the_lock_of_a_dead_process_holds_nobody_up(folder: Path) -> None:
    def die_holding() -> None:
        with locked(folder):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die_holding) == -signal.SIGKILL
    assert (folder / LOCK).exists()
    write(folder, 2)
    assert generation(folder) == 2
    assert tidy(folder)


def test_a_lock_file_that_its_holder_deleted_meanwhile_counts_for_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, others = fcntl.flock, []

    def overtaken(handle: int, operation: int) -> None:
        """Between our open and our lock the holder deletes its file and another writer makes and locks a new one."""
        if not others:
            (folder / LOCK).unlink()
            others.append(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT))
            flock(others[0], fcntl.LOCK_EX)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    with pytest.raises(BusyError):
        write(folder, 2)
    os.close(others[0])
    assert generation(folder) == 1


def test_a_reader_sees_the_earlier_state_while_a_writer_stages(folder: Path) -> None:
    with transaction(folder, LAST) as staged:
        staged.path("manifest").write_text("half")
        undo_unfinished(folder)
        assert generation_of_final(folder) == 1
        assert staged.path("manifest").read_text() == "half", "the reader discarded a live writer's files"


def generation_of_final(folder: Path) -> int:
    return int((folder / "manifest").read_text()[:4])


def test_a_reader_waits_for_a_writer_that_renames(folder: Path) -> None:
    def slow() -> None:
        replace = Path.replace
        Path.replace = lambda self, target: (replace(self, target), time.sleep(0.15))[0]  # type: ignore[assignment]
        write(folder, 2)

    child = os.fork()
    if child == 0:
        try:
            slow()
        finally:
            os._exit(0)
    while not any((folder / STAGING).glob(f"*/{OLD}")):
        time.sleep(0.005)
    undo_unfinished(folder)
    assert generation(folder) == 2
    os.waitpid(child, 0)


def test_a_child_that_outlives_a_killed_writer_cannot_write_into_the_next_change(folder: Path) -> None:
    first = Transaction(folder, LAST)
    orphan = first.path("stray.engine")
    undo_unfinished(folder)
    with transaction(folder, LAST) as staged:
        staged.path(LAST).write_text("0001" * 2000)
        with pytest.raises(FileNotFoundError):
            orphan.write_text("late")
    assert generation(folder) == 1
