"""The browser's set-up: nothing to do where it is there, and one line that helps where it cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "browser_setup.py"


def _run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env={**os.environ, "PATH": str(path)}, capture_output=True, text=True
    )


def _program(path: Path, name: str, code: str = "exit 0") -> None:
    path.joinpath(name).write_text(f"#!{shutil.which('sh')}\n{code}\n")
    path.joinpath(name).chmod(0o755)


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_a_browser_that_is_there_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    _program(tmp_path, name)
    _program(tmp_path, "apt-get", "exit 9")
    done = _run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_apt_the_line_says_what_to_install(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Chromium is not here")
    assert "apt-get install chromium" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_an_install_that_fails_is_told_with_what_it_said_and_one_that_works_is_asked_for_chromium(
    tmp_path: Path,
) -> None:
    _program(tmp_path, "apt-get", "echo no network >&2; exit 100")
    done = _run(tmp_path)
    assert done.returncode == 1
    assert "apt-get update --quiet failed: no network" in done.stderr
    browser = tmp_path / "chromium"
    writes = f'printf "#!/bin/sh\\n" > {browser}; {shutil.which("chmod")} 755 {browser}'
    made = f'case "$*" in *chromium) {writes};; esac'
    _program(tmp_path, "apt-get", made)
    assert _run(tmp_path).returncode == 0
