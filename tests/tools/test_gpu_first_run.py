"""The run for a GPU that is at hand for minutes, rehearsed without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("timeout") is None, reason="no timeout")
STEPS = ("peaks", "doctor", "kernels", "ragged", "decode", "graphs", "operators")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable, **environment}
    line = ["bash", str(ROOT / "tools" / "gpu_first_run.sh"), *arguments]
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False)


def test_a_rehearsal_says_what_it_would_have_measured(tmp_path: Path) -> None:
    done = run("--rehearse", str(tmp_path), ONLY="peaks llama tests")
    assert done.returncode == 0, done.stdout
    found = json.loads((tmp_path / "peaks.json").read_text())
    assert "no time here is one of a GPU" in found["rehearsal"]
    assert found["peaks"]["per_s"]["copy"] > 0
    assert done.stdout.count("would run:") == 2
    assert "-m attnport.cli gpu-check --only llama_decoder" in done.stdout


def test_a_step_that_fails_does_not_stop_the_next_and_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nif [ "$2" = peaks ]; then echo broken; exit 3; fi\necho "did $2"\n')
    fake.chmod(0o755)
    done = run(str(tmp_path / "out"), ONLY="peaks kernels tests", PYTHON=str(fake))
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if "exit" in line] == [
        "== peaks: exit 3",
        "== kernels: exit 0",
        "== tests: exit 0",
    ]
    assert (tmp_path / "out" / "peaks.txt").read_text() == "broken\n"


@pytest.mark.parametrize("arguments", [(), ("--rehearse",), ("--other", "x"), ("a", "b")])
def test_what_it_takes_is_told(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "tools/gpu_first_run.sh [--rehearse] FOLDER" in done.stderr


@pytest.mark.slow
def test_it_runs_whole_without_a_gpu(tmp_path: Path) -> None:
    done = run("--rehearse", str(tmp_path))
    assert done.returncode == 0, done.stdout
    for name in STEPS:
        assert f"== {name}: exit 0" in done.stdout
    decode = json.loads((tmp_path / "decode.json").read_text())["decode"]
    assert decode["8 texts, largest difference of scores"] < 1e-4
    kernels = json.loads((tmp_path / "kernels.json").read_text())["kernels"]
    assert all(row["us"] > 0 for row in kernels.values())
