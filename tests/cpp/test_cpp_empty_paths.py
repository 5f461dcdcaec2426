"""An empty path is to the C++ reader what it is to Python's: the folder that the process is in, and never no path."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpp_builds import Build

from attnport_bundle import load
from attnport_bundle.errors import BundleError


def in_python(folder: Path | str, *key: str) -> tuple[int, str]:
    try:
        with load(folder, require_signature=key[0] if key else None) as model:
            return 0, model.form
    except BundleError as err:
        return err.exit_code, str(err)


def in_cpp(build: Build, folder: Path | str, *key: str) -> tuple[int, str]:
    done = build.run("open_at", folder, *key)
    return done.returncode, done.stdout.removesuffix("\n")


def test_a_bundle_is_opened_from_inside(cpp_build: Build, app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(app)
    assert in_cpp(cpp_build, "") == in_python("") == (0, "ort_cpu")


def test_a_folder_that_is_no_bundle_is_called_so(
    cpp_build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_cpp(cpp_build, "")[0] == in_python("")[0] == 2


def test_an_empty_key_does_not_turn_the_check_off(
    cpp_build: Build, app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert in_cpp(cpp_build, app, "")[0] == in_python(app, "")[0] == 2
