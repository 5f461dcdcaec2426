"""Bundles under other users' rights and other umasks: what may not be read is told, what should be readable is."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_folders import tree

from attnport.bundling.place import replaced
from attnport.errors import UsageError
from attnport.verbs.bundle import bundle
from attnport.verbs.verify import raise_for, verify
from attnport_bundle import BundleError, load
from attnport_bundle.model import selftest

NOBODY = 65534


@pytest.fixture
def foreign(made_bundle: Path) -> Iterator[Path]:
    """A bundle, and the rights of an ordinary user who does not own it: root may read anything."""
    base = Path(tempfile.mkdtemp(prefix="attnport-test-"))
    base.chmod(0o755)
    app = Path(shutil.copytree(made_bundle, base / "app"))
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield app
    finally:
        os.seteuid(was)
        app.chmod(0o755)
        shutil.rmtree(base)


def forbid(path: Path) -> None:
    """Takes every right from a file or folder, as its owner."""
    user = os.geteuid()
    os.seteuid(os.getuid())
    path.chmod(0)
    os.seteuid(user)


@pytest.mark.parametrize("name", ["bundle.json", "."])
@pytest.mark.parametrize("check_files", [True, False])
def test_a_bundle_that_may_not_be_read_is_told_by_its_reader(name: str, check_files: bool, foreign: Path) -> None:
    forbid(foreign / name)
    with pytest.raises(BundleError, match=r"bundle\.json cannot be read: Permission denied") as caught:
        load(foreign, check_files=check_files)
    assert caught.value.exit_code == 2
    with pytest.raises(BundleError, match="Permission denied"):
        selftest(foreign)


def test_a_name_that_no_system_takes_is_told_by_the_reader() -> None:
    with pytest.raises(BundleError, match="cannot be read: File name too long"):
        load("x" * 5000)


@pytest.mark.parametrize("name", ["weights.bin", "goldens.safetensors", "python"])
def test_a_part_that_may_not_be_read_fails_verification_by_its_name(name: str, foreign: Path) -> None:
    forbid(foreign / name)
    bad = [row for row in selftest(foreign).rows if row.verdict == "FAIL"]
    assert bad[0].check == name
    assert "Permission denied" in bad[0].detail


def test_another_users_bundle_is_neither_replaced_nor_touched(foreign: Path, made_artifact: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in foreign.rglob("*")}
    with pytest.raises(UsageError, match="cannot be written: Permission denied") as caught, replaced(foreign, list):
        pytest.fail("it may be written")
    assert caught.value.hint
    assert {path: path.stat().st_mtime_ns for path in foreign.rglob("*")} == before
    assert [path.name for path in foreign.parent.iterdir()] == ["app"]


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o000])
def test_who_may_read_a_bundle_is_the_umasks_to_say(umask: int, artifact: Path, tmp_path: Path) -> None:
    was = os.umask(umask)
    try:
        app = bundle(artifact, tmp_path / "app", lang=["python", "cpp"])
    finally:
        os.umask(was)
    for path in (app, *app.rglob("*")):
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    raise_for(verify(app))


@pytest.mark.parametrize("limit", [0, 512, 8192])
def test_a_full_disk_leaves_the_bundle_that_was_there(limit: int, artifact: Path, tmp_path: Path) -> None:
    app = bundle(artifact, tmp_path / "app")
    before = tree(app)
    sizes = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, sizes[1]))
    try:
        with pytest.raises(UsageError, match="what was there before is untouched"):
            bundle(artifact, app, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, sizes)
        signal.signal(signal.SIGXFSZ, handler)
    assert tree(app) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app", "out"]
