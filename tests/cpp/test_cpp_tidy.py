"""clang-tidy, with the checks that stand beside the sources of the C++ reader."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cpp_builds
import pytest
from cpp_builds import HERE, NEW, READER, tool


@pytest.mark.slow
def test_clang_tidy_has_nothing_to_say() -> None:
    configured = cpp_builds.build("g++", NEW, *cpp_builds.optimised(), *cpp_builds.vendor_headers())
    sources = [*sorted(READER.glob("src/*.cpp")), *sorted(READER.glob("programs/*.cpp"))]
    assert len(sources) > 20
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [text for text in pool.map(lambda source: tidied(source, configured.folder), sources) if text]
    assert not said, "\n".join(said)


@pytest.mark.slow
def test_clang_tidy_would_say_something(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("#include <cstdlib>\nint main(int, char** values) { return std::atoi(values[1]); }\n")
    assert "cert-err34-c" in tidied(wrong, None)


def tidied(source: Path, database: Path | None) -> str:
    """What clang-tidy says of a file, with the reader's own checks."""
    where = ["-p", str(database)] if database else []
    command = [tool("clang-tidy"), "--quiet", f"--config-file={READER / '.clang-tidy'}", *where, str(source)]
    done = subprocess.run(
        [*command, *([] if database else ["--", "-std=c++17"])], cwd=HERE, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode else ""
