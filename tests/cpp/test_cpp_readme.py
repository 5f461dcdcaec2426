"""The C++ program of README.md and its CMake lines, built and run beside MiniLM's bundle as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import cpp_builds
import pytest
from cpp_builds import NEW, ROOT
from cpp_consumers import built, consumer

WITHOUT_OPENVINO = ["-DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON"]


def block(language: str) -> str:
    """The only block of that language in README.md."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    return str(found)


def test_the_program_is_whole_and_under_25_lines() -> None:
    assert len(block("cpp").splitlines()) < 25
    assert "int main()" in block("cpp")


@pytest.mark.slow
def test_the_program_answers_its_question(minilm_app: Path) -> None:
    with cpp_builds.locked("consumer"):
        folder = consumer("readme", minilm_app, block("cmake"), block("cpp"))
        warned = "-DCMAKE_CXX_FLAGS=-O1 -Wall -Wextra -Werror"
        done = built(folder, f"-DONNXRUNTIME_INCLUDE_DIR={cpp_builds.headers(NEW)}", warned, *WITHOUT_OPENVINO)
    assert (done.returncode, done.stdout) == (0, "Where is the nearest pharmacy?\n"), done.stderr
