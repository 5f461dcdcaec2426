"""The C++ program of the guide with its CMake lines, and its other lines, built and run beside MiniLM's bundle."""

from __future__ import annotations

import re
from pathlib import Path

import cpp_builds
import pytest
from cpp_builds import NEW, ROOT
from cpp_consumers import built, consumer

WITHOUT_OPENVINO = ["-DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON"]


GUIDE = ROOT / "docs" / "embedding-cpp.md"
PROGRAM = "int main()"


def block(language: str, words: str = "") -> str:
    """The only block of that language in the guide that has some words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)
    (found,) = (text for text in blocks if words in text)
    return str(found)


def test_the_program_is_whole_and_under_25_lines() -> None:
    assert len(block("cpp", PROGRAM).splitlines()) < 25


@pytest.mark.slow
def test_the_program_answers_its_question(minilm_app: Path) -> None:
    with cpp_builds.locked("consumer"):
        folder = consumer("readme", minilm_app, block("cmake"), block("cpp", PROGRAM))
        warned = "-DCMAKE_CXX_FLAGS=-O1 -Wall -Wextra -Werror"
        done = built(folder, f"-DONNXRUNTIME_INCLUDE_DIR={cpp_builds.headers(NEW)}", warned, *WITHOUT_OPENVINO)
    assert (done.returncode, done.stdout) == (0, "Where is the nearest pharmacy?\n"), done.stderr


MINE = """struct {
    std::vector<std::int64_t> encode(const std::string&, std::int64_t) const { return {101, 2129, 102}; }
} mine;
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "before", "first"),
    [
        ("[2, width]", "", "vectors.data<float>()[0]"),
        ("embedding = ", "", "embedding[0]"),
        ("mine", MINE, "vectors.data<float>()[0]"),
    ],
)
def test_the_lines_of_the_guide_give_a_vector(minilm_app: Path, words: str, before: str, first: str) -> None:
    lines = block("cpp", words)
    code = f"{before}int main() {{\n{lines}\nstd::cout << {first}; }}\n"
    code = f"#include <attnport/bundle.hpp>\n#include <iostream>\n{code}"
    with cpp_builds.locked("consumer"):
        folder = consumer("guide", minilm_app, block("cmake"), code)
        done = built(folder, f"-DONNXRUNTIME_INCLUDE_DIR={cpp_builds.headers(NEW)}", *WITHOUT_OPENVINO)
    assert done.returncode == 0, done.stderr
    assert -1 < float(done.stdout) < 1
