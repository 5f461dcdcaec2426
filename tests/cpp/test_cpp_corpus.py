"""What the fuzzer once found interesting stays answered by the C++ reader, under the sanitizers, without the fuzzer."""

from __future__ import annotations

import io
import subprocess
import time
import zipfile
from pathlib import Path

import pytest
from cpp_builds import Build

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
TARGETS = {"manifest": "manifest", "external": "external", "npz": "goldens"}
"""Each fuzz target of the C++ reader, and the corpus that it shares with Python's."""


def replay(build: Build, target: str, files: list[Path]) -> subprocess.CompletedProcess[str]:
    return build.run(f"replay_{target}", given="".join(f"{path}\n" for path in files))


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_is_answered_without_a_finding_and_in_time(cpp_build_asan: Build, target: str) -> None:
    files = sorted((CORPUS / TARGETS[target]).iterdir())
    assert len(files) > 5
    cpp_build_asan.program(f"replay_{target}")
    start = time.monotonic()
    done = replay(cpp_build_asan, target, files)
    assert (done.returncode, done.stderr.splitlines()) == (0, [str(path) for path in files])
    assert time.monotonic() - start < 60


def test_arrays_of_an_archive_are_looked_at_without_it(cpp_build_asan: Build, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO((CORPUS / "goldens" / "valid").read_bytes()))
    files = []
    for number, member in enumerate(archive.infolist()):
        files.append(tmp_path / str(number))
        data = archive.read(member)
        files[-1].write_bytes(data if number % 2 else data[: len(data) - number // 2])
    assert len(files) > 5
    assert replay(cpp_build_asan, "npz", files).returncode == 0


def test_a_find_ends_the_replay(cpp_build_asan: Build, tmp_path: Path) -> None:
    assert replay(cpp_build_asan, "manifest", [tmp_path / "nowhere"]).returncode == 2
