"""Where C++ has to be tested, what lacks is a failure that says what to do, and no test that is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cpp_builds
import pytest
from cpp_builds import ROOT


def test_a_tool_that_is_not_there_fails_the_test_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNPORT_CPP_REQUIRED", "1")
    with pytest.raises(pytest.fail.Exception, match=r"no c\+\+-99 here; tools/cpp_setup\.py --all sets it up"):
        cpp_builds.tool("c++-99")
    monkeypatch.delenv("ATTNPORT_CPP_REQUIRED")
    with pytest.raises(pytest.skip.Exception, match=r"no c\+\+-99 here"):
        cpp_builds.tool("c++-99")


def test_ci_requires_it(tmp_path: Path) -> None:
    """The script of CI itself, with a `make` that shows what it was called with."""
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$1 $ATTNPORT_CPP_REQUIRED"\n')
    make.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "ATTNPORT_CPP_REQUIRED"}
    env["PATH"] = f"{tmp_path}{os.pathsep}{env['PATH']}"
    done = subprocess.run([str(ROOT / ".ci" / "run")], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "test 1\n"


def test_a_run_without_compilers_fails_and_says_so(tmp_path: Path) -> None:
    """As `make test` would go on behind a set-up that failed."""
    env = os.environ | {"ATTNPORT_CPP_REQUIRED": "1", "PATH": str(tmp_path)}
    test = f"{ROOT / 'tests' / 'cpp' / 'test_cpp_attacks.py'}::test_help_is_no_error"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "here; tools/cpp_setup.py --all sets it up" in done.stdout
