"""What the fuzzer once found interesting stays answered by the C++ reader, under the sanitizers, without the fuzzer."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from cpp_builds import Build

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
TARGETS = ("manifest", "goldens")
"""The fuzz targets of the C++ reader, which have their corpora with Python's."""


def replay(build: Build, target: str, files: list[Path]) -> subprocess.CompletedProcess[str]:
    return build.run(f"replay_{target}", given="".join(f"{path}\n" for path in files))


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_is_answered_without_a_finding_and_in_time(cpp_build: Build, target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert len(files) > 5
    cpp_build.program(f"replay_{target}")
    start = time.monotonic()
    done = replay(cpp_build, target, files)
    assert (done.returncode, done.stderr.splitlines()) == (0, [str(path) for path in files])
    assert time.monotonic() - start < 60


def test_a_find_ends_the_replay(cpp_build: Build, tmp_path: Path) -> None:
    assert replay(cpp_build, "manifest", [tmp_path / "nowhere"]).returncode == 2
