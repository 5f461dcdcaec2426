"""A virtual environment with a few packages and nothing of this project: where a bundle lands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def make(folder: Path, *packages: str, by: str | Path = sys.executable) -> Path:
    """The Python of a new environment that holds `packages`; the test is skipped, with pip's words, where it cannot.

    Args:
        by: The Python that it is made of.
    """
    subprocess.run([by, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install(python, *packages)
    return python


def install(python: Path, *packages: str) -> None:
    """Installs more; the test is skipped, with pip's words, where it cannot."""
    done = pip(python, "install", "--quiet", "--no-input", *packages)
    if done.returncode:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        pytest.skip(f"pip cannot install {' '.join(packages)} here: {said}")


def pip(python: Path, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), verb, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def packages(python: Path) -> dict[str, str]:
    """What is installed there, with versions."""
    done = pip(python, "list", "--format=json")
    assert done.returncode == 0, done.stderr
    return {one["name"].lower(): one["version"] for one in json.loads(done.stdout)}


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it in `folder`, without what would let it see this project or a cache of the user's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["ATTNPORT_CACHE"] = str(folder.parent / f"{folder.name} cache")
    return subprocess.run(
        [str(python), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
