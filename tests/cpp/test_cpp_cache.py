"""What the C++ reader keeps for its user, and where: never inside a bundle, nor where others may write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cpp_builds import Build

Call = Callable[..., list[str]]


@pytest.fixture
def calls(cpp_build: Build) -> Call:
    """The lines that a call of the cache answers with."""

    def run(*arguments: str | Path, code: int = 0, **env: str) -> list[str]:
        done = cpp_build.run("cache_calls", *arguments, env={"ATTNPORT_CACHE": "", **env})
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


def test_the_folder_is_made_for_this_user_alone(calls: Call, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    assert calls("find", tmp_path / "app", folder) == ["found"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert calls("find", tmp_path / "app", f"{folder}/") == ["found"]


@pytest.mark.parametrize(
    ("env", "made"),
    [
        ({"ATTNPORT_CACHE": "HERE/own", "XDG_CACHE_HOME": "HERE/xdg"}, "own"),
        ({"XDG_CACHE_HOME": "HERE/xdg", "HOME": "HERE/home"}, "xdg/attnport"),
        ({"XDG_CACHE_HOME": "xdg", "HOME": "HERE/home"}, "home/.cache/attnport"),
        ({"XDG_CACHE_HOME": "", "HOME": "HERE/home"}, "home/.cache/attnport"),
    ],
)
def test_where_it_lies_when_nobody_says(calls: Call, tmp_path: Path, env: dict[str, str], made: str) -> None:
    here = {name: value.replace("HERE", str(tmp_path)) for name, value in env.items()}
    assert calls("find", tmp_path / "app", **here) == ["found"]
    assert (tmp_path / made).is_dir()


@pytest.mark.parametrize("asked", ["app", "app/cache", "app/../app/x/y", "linked/cache", "app/"])
def test_a_cache_inside_the_bundle_is_refused(calls: Call, tmp_path: Path, asked: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "app")
    (said,) = calls("find", tmp_path / "app", f"{tmp_path}/{asked}", code=2)
    assert "inside the bundle" in said
    assert not list((tmp_path / "app").iterdir())


def test_beside_the_bundle_is_not_inside(calls: Call, tmp_path: Path) -> None:
    assert calls("find", tmp_path / "app", tmp_path / "apple") == ["found"]
    assert calls("find", f"{tmp_path}/app/", tmp_path / "app2") == ["found"]


def test_where_others_may_write_nothing_is_kept(calls: Call, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        said = f"warning: {folder}: no cache is kept there: others may write to it."
        assert calls("find", tmp_path / "app", folder) == [said, "none"]


def test_what_cannot_be_a_folder_is_a_warning(calls: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for asked, words in (("file", "File exists"), ("file/below", "Not a directory")):
        said = f"warning: {tmp_path / asked}: no cache is kept there: {words}."
        assert calls("find", tmp_path / "app", tmp_path / asked) == [said, "none"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_not_taken(calls: Call, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(0o700)
    os.chown(tmp_path / "cache", 12345, -1)
    said = f"warning: {tmp_path / 'cache'}: no cache is kept there: it belongs to user 12345."
    assert calls("find", tmp_path / "app", tmp_path / "cache") == [said, "none"]


def test_a_file_is_there_whole_or_not_at_all(calls: Call, tmp_path: Path) -> None:
    assert calls("read", tmp_path, "a") == ["none"]
    assert calls("write", tmp_path, "a", "text") == ["written"]
    assert calls("read", tmp_path, "a") == ["text"]
    assert calls("write", tmp_path / "missing", "a", "text") == ["not written"]
    (tmp_path / "folder").mkdir()
    assert calls("write", tmp_path, "folder", "text") == ["not written"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder"]


def test_a_link_or_a_pipe_is_not_read(calls: Call, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    os.mkfifo(tmp_path / "pipe")
    assert [calls("read", tmp_path, name) for name in ("there", "link", "pipe")] == [["text"], ["none"], ["none"]]


def test_what_was_compiled_is_believed_only_whole_and_of_its_entry(calls: Call, tmp_path: Path) -> None:
    entry, other = "a" * 64, "b" * 64
    assert calls("blob", tmp_path, entry) == ["none"]
    assert calls("blob", tmp_path, entry, "compiled") == ["compiled"]
    path = tmp_path / f"{entry}.rtxcache"
    data = path.read_bytes()
    (tmp_path / f"{other}.rtxcache").write_bytes(data)
    assert calls("blob", tmp_path, other) == ["none"]
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert calls("blob", tmp_path, entry) == ["none"]
        path.write_bytes(data[:at])
        assert calls("blob", tmp_path, entry) == ["none"]
    path.write_bytes(data)
    assert calls("blob", tmp_path, entry) == ["compiled"]


def test_everything_that_kernels_are_made_for_is_another_entry(calls: Call) -> None:
    usual = ["form", "provider", "1.2", "a CPU", "driver", "digest"]
    changed = [[*usual[:at], "another", *usual[at + 1 :]] for at in range(len(usual))]
    shifted = ["form", "provider", "1.2", "a CPUd", "river", "digest"]
    found = [calls("entry", *given)[0] for given in (usual, *changed, shifted)]
    assert len(set(found)) == len(found)
    assert calls("entry", *usual) == found[:1]
    assert all(len(one) == 64 for one in found)
