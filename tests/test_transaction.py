"""A folder is changed all at once: killed, failed or contested at any moment, it holds one state, never a mixture."""

from __future__ import annotations

import errno
import functools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from generations import LAST, generation, interrupted, stage, tidy, write
from killing import CALLS, Armed, in_child
from representatives import representatives

from attnport.transaction import STAGING, transaction, undo_unfinished


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "out"
    write(target, 1)
    return target


def count_calls(folder: Path) -> int:
    """How many of `CALLS` a write of generation 2 makes."""
    read, send = os.pipe()

    def count() -> None:
        armed = Armed(0)
        armed.install()
        write(folder, 2)
        os.write(send, str(armed.count).encode())

    assert in_child(count) == 0
    os.close(send)
    with os.fdopen(read) as answer:
        return int(answer.read())


def test_the_checker_notices_a_mixture(folder: Path) -> None:
    (folder / "weights.bin").write_text("0002" * 2000)
    with pytest.raises(AssertionError, match="mixture"):
        generation(folder)


def test_the_checker_notices_a_file_that_is_cut_short(folder: Path) -> None:
    (folder / "weights.bin").write_text("0001" * 1999)
    with pytest.raises(AssertionError, match="mixture"):
        generation(folder)


def test_the_checker_notices_a_file_that_was_not_removed(folder: Path) -> None:
    (folder / "even").write_text("0001" * 2000)
    with pytest.raises(AssertionError):
        generation(folder)


def test_a_change_replaces_adds_and_removes_and_leaves_nothing_of_its_own(folder: Path) -> None:
    write(folder, 2)
    assert generation(folder) == 2
    assert tidy(folder)
    assert not (folder / "odd").exists(), "the folder that a removed file stood in stays empty"


@pytest.mark.parametrize("when", representatives(["before", "after"], ["before"]))
@pytest.mark.parametrize("start", [0, 1], ids=["new folder", "earlier artifact"])
def test_killed_at_every_call_it_holds_the_earlier_or_the_later_state(tmp_path: Path, start: int, when: str) -> None:
    spare, seen = tmp_path / "spare", set()
    if start:
        write(spare, start)
    calls = count_calls(_copy(spare, tmp_path / "count"))
    assert calls > 20
    for at in range(1, calls + 1):
        target = _copy(spare, tmp_path / f"{at}")
        assert in_child(lambda at=at, target=target: (Armed(at, when).install(), write(target, 2))) == -signal.SIGKILL
        if target.exists():
            undo_unfinished(target)
            found = generation(target)
            assert found in (start, 2)
            seen.add(found)
            assert not (target / STAGING).exists()
        else:
            assert not start
        write(target, 3)
        assert generation(target) == 3
    assert 2 in seen
    assert start in seen


def undo_and_die(folder: Path, at: int) -> None:
    Armed(at, "after").install()
    undo_unfinished(folder)


@pytest.mark.parametrize("start", [0, 1], ids=["new folder", "earlier artifact"])
def test_killed_again_and_again_while_recovering_it_still_goes_back(tmp_path: Path, start: int) -> None:
    target = tmp_path / "out"
    if start:
        write(target, start)
    interrupted(target)
    with pytest.raises(AssertionError):
        assert generation(target) == start, "the writer was not killed half way"
    kills = 0
    while in_child(functools.partial(undo_and_die, target, kills + 1)) == -signal.SIGKILL:
        kills += 1
    assert kills > 5
    assert generation(target) == start
    assert not (target / STAGING).exists()


def test_killed_at_random_moments_it_holds_one_state(tmp_path: Path) -> None:
    target = tmp_path / "out"
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; import generations as t\n"
        "n = t.generation(Path(sys.argv[1])) if Path(sys.argv[1]).exists() else 0\n"
        "while True:\n    n += 1; t.write(Path(sys.argv[1]), n, 100_000); print(n, flush=True)"
    )
    clock, last = random.Random(20261120), 0
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(target), str(Path(__file__).parent)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout
            began, done = time.monotonic(), int(writer.stdout.readline())
            time.sleep(clock.random() * (time.monotonic() - began) / 2)  # however fast this machine is just now
            writer.kill()
        undo_unfinished(target)
        found = generation(target)
        assert found >= done > last
        last = found


@pytest.mark.parametrize("start", [0, 1], ids=["new folder", "earlier artifact"])
def test_a_full_disk_at_every_call_loses_nothing(tmp_path: Path, start: int) -> None:
    spare = tmp_path / "spare"
    if start:
        write(spare, start)
    calls = count_calls(_copy(spare, tmp_path / "count"))

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    failures = 0
    for at in range(1, calls + 1):
        target = _copy(spare, tmp_path / f"{at}")
        failed = in_child(lambda at=at, target=target: (Armed(at, "before", full).install(), write(target, 2)))
        failures += failed != 0
        if target.exists():
            undo_unfinished(target)
            assert generation(target) in ((start, 2) if failed else (2,))
        write(target, 3)
        assert generation(target) == 3
    assert failures > 10


def test_a_file_that_cannot_be_written_whole_changes_nothing(folder: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(folder, 2, 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert generation(folder) == 1
    assert tidy(folder)


def test_a_really_full_disk_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root; the tests with a file-size limit and injected errors ran")
    try:
        write(disk / "out", 1)
        full = 0
        for size in range(2000, 40_000, 2000):
            try:
                write(disk / "out", 2, size)
            except OSError:
                full += 1
                undo_unfinished(disk / "out")
                assert generation(disk / "out") in (1, 2)
        assert full > 2
        undo_unfinished(disk / "out")
        assert generation(disk / "out") == 2
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_error_between_two_renames_is_taken_back_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if Path(target) == folder / LAST:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            write(folder, 2)
    assert generation(folder) == 1
    assert tidy(folder)


def test_a_change_without_its_last_file_is_no_change(folder: Path) -> None:
    stage(folder, "weights.bin", "new/file")
    assert generation(folder) == 1
    assert tidy(folder)


def test_an_exception_or_interrupt_discards_what_was_staged(folder: Path) -> None:
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            stage(folder, "manifest", "new/file", error=error())
        assert generation(folder) == 1
        assert tidy(folder)


def test_a_failed_first_change_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"):
        stage(tmp_path / "out", "a/b", error=ValueError("no"))
    assert not (tmp_path / "out").exists()


def test_a_foreign_error_is_not_taken_for_ours(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), transaction(folder, LAST):
        (tmp_path / "missing weights").read_bytes()


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder, and the rights of an ordinary user: root may write anywhere."""
    base = Path(tempfile.mkdtemp(prefix="attnport-test-"))
    base.chmod(0o755)
    was = os.geteuid()
    if was == 0:
        os.chown(base, 65534, 65534)
        os.seteuid(65534)
    try:
        yield base
    finally:
        os.seteuid(was)
        for path in (base, *base.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(base)


def test_a_read_only_folder_is_refused_for_writing_and_open_for_reading(unprivileged: Path) -> None:
    target = unprivileged / "out"
    write(target, 1)
    (target / STAGING).mkdir()
    target.chmod(0o555)
    with pytest.raises(PermissionError):
        write(target, 2)
    undo_unfinished(target)
    assert generation(target) == 1
    (target).chmod(0o755)
    (target / STAGING).rmdir()
    interrupted(target)
    target.chmod(0o555)
    undo_unfinished(target)
    assert (target / LAST).read_text().startswith("0001"), "the manifest is renamed last"
    target.chmod(0o755)
    undo_unfinished(target)
    assert generation(target) == 1


def test_a_folder_that_cannot_be_made_is_refused(unprivileged: Path) -> None:
    unprivileged.chmod(0o555)
    with pytest.raises(PermissionError):
        write(unprivileged / "a/b", 1)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(FileExistsError):
        write(tmp_path / "out", 1)
    assert (tmp_path / "out").read_text() == "a file"


def test_every_patched_call_is_one_that_a_change_makes() -> None:
    assert set(CALLS) >= {"replace", "unlink", "rmdir", "mkdir", "fsync"}


def _copy(source: Path, target: Path) -> Path:
    if source.exists():
        shutil.copytree(source, target)
    return target
