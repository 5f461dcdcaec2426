"""The environment that `make gpu-check` makes: which PyTorch goes into it, and what is said of one without CUDA."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def made(tmp_path: Path, target: str) -> str:
    """What make would run for a new environment."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    line = [
        "make",
        "--dry-run",
        "--no-print-directory",
        "--assume-old=gpu-driver",
        f"GPU_VENV={tmp_path / 'environment'}",
        target,
    ]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not (tmp_path / "environment").exists()
    return found


@pytest.fixture
def commands(tmp_path: Path) -> str:
    return made(tmp_path, "gpu-check")


def test_the_tests_that_need_a_gpu_run_in_the_same_environment_with_what_tests_need(tmp_path: Path) -> None:
    commands = made(tmp_path, "gpu-test")
    before, after = commands.split(".[tensorrt]")
    assert '".[gpu-check]" "torch===' in before.replace("\\\n", " ")
    assert '".[gpu-check,dev]" "torch===' in after
    assert commands.splitlines()[-1].endswith("python -m pytest -m gpu tests/contract tests/runtimes tests/gpu")


def test_every_package_is_pinned_by_both_files_of_constraints(commands: str) -> None:
    installs = [line for line in commands.replace("\\\n", " ").splitlines() if " install --quiet -" in line]
    assert len(installs) == 3
    for line in installs:
        assert re.search(r"--constraint constraints.txt\s+--constraint constraints-gpu.txt ", line), line


def test_a_pytorch_for_the_cpu_alone_does_not_satisfy_it(commands: str) -> None:
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    (wanted,) = re.findall(r'"(torch=.+?)"', commands)
    accepts = Requirement(wanted).specifier.contains
    assert accepts(pinned[1])
    assert not accepts(f"{pinned[1]}+cpu")


@pytest.mark.parametrize(("cuda", "said"), [("None", "PyTorch 9.9+cpu has no CUDA: "), ("'13.0'", "")])
def test_one_without_cuda_is_told_and_stops_nothing(commands: str, cuda: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(f"class version: cuda = {cuda}\n__version__ = '9.9+cpu'\n")
    (code,) = re.findall(r"python -c '(import torch.+?)'", commands, re.DOTALL)
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -c '{code}'"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(said)
    assert bool(done.stdout) == bool(said)
