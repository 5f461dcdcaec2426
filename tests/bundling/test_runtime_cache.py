"""The user's cache: where it lies, whose it is, and what is not believed in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from attnport_bundle import BundleError, load
from attnport_bundle.errors import BundleWarning
from attnport_bundle.runtimes.kernels import MAGIC, Cache, RuntimeCache, default_folder, find

ENTRY, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    found = find(tmp_path / "bundle", tmp_path / "cache")
    assert found is not None
    return found


def test_what_was_kept_is_read_again(cache: Cache) -> None:
    RuntimeCache(cache, ENTRY).write(b"kernels")
    assert RuntimeCache(cache, ENTRY).read() == b"kernels"
    assert RuntimeCache(cache, OTHER).read() is None
    RuntimeCache(cache, ENTRY).write(b"")
    assert RuntimeCache(cache, ENTRY).read() == b""


def test_a_damaged_file_or_a_link_is_none(cache: Cache) -> None:
    kept = RuntimeCache(cache, ENTRY)
    kept.write(b"kernels")
    path = cache.folder / kept.name
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert RuntimeCache(cache, ENTRY).read() is None
        path.write_bytes(whole[:at])
        assert RuntimeCache(cache, ENTRY).read() is None
    (cache.folder / RuntimeCache(cache, OTHER).name).write_bytes(whole)
    path.unlink()
    path.symlink_to(cache.folder / RuntimeCache(cache, OTHER).name)
    assert RuntimeCache(cache, ENTRY).read() is None
    path.unlink()
    os.mkfifo(path)
    assert RuntimeCache(cache, ENTRY).read() is None


def test_equal_bytes_are_not_written_again(cache: Cache) -> None:
    kept = RuntimeCache(cache, ENTRY)
    kept.write(b"kernels")
    (cache.folder / kept.name).unlink()
    kept.write(b"kernels")
    assert list(cache.folder.iterdir()) == []
    kept.write(b"more kernels")
    assert kept.read() == b"more kernels"


def test_a_file_appears_whole_or_not_at_all(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("one", b"before")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert not cache.write("one", b"behind")
    monkeypatch.undo()
    assert [path.name for path in cache.folder.iterdir()] == ["one"]
    assert cache.read("one") == b"before"
    assert MAGIC not in (cache.read("one") or b"")


def test_the_folder_is_the_users_alone(cache: Cache, tmp_path: Path) -> None:
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    cache.write("one", b"")
    assert stat.S_IMODE((cache.folder / "one").stat().st_mode) == 0o600
    for mode in (0o777, 0o720):
        cache.folder.chmod(mode)
        with pytest.warns(BundleWarning, match="others may write to it"):
            assert find(tmp_path / "bundle", cache.folder) is None
    cache.folder.chmod(0o755)
    assert find(tmp_path / "bundle", cache.folder) is not None


def test_a_folder_of_somebody_else_is_not_used(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = cache.folder.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.warns(BundleWarning, match=f"it belongs to user {owner}"):
        assert find(tmp_path / "bundle", cache.folder) is None


def test_where_no_folder_can_be_made_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.warns(BundleWarning, match="no cache is kept there"):
            assert find(tmp_path / "bundle", folder) is None


def test_a_cache_inside_the_bundle_is_refused(app: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(app)
    for folder in (app, app / "cache", tmp_path / "link" / "cache", app / "python" / ".." / "cache"):
        with pytest.raises(BundleError, match="inside the bundle") as caught:
            find(app, folder)
        assert caught.value.exit_code == 2
    assert not (app / "cache").exists()


def test_where_it_lies_when_nobody_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ATTNPORT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == tmp_path / ".cache" / "attnport"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == tmp_path / ".cache" / "attnport"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "attnport"
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "own"))
    assert default_folder() == tmp_path / "own"


def test_a_bundle_with_nothing_to_keep_makes_no_folder(
    made_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "own"))
    load(made_bundle).close()
    assert not (tmp_path / "own").exists()
