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
    configured = cpp_builds.build("g++", NEW, "-DATTNPORT_SHARED=ON", *cpp_builds.everything())
    sources = [*sorted(READER.glob("src/**/*.cpp")), *sorted(READER.glob("programs/*.cpp"))]
    assert len(sources) > 20
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [text for text in pool.map(lambda source: tidied(source, configured.folder), sources) if text]
    assert not said, "\n".join(said)


@pytest.mark.slow
def test_clang_tidy_would_say_something(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("#include <cstdlib>\nint main(int, char** values) { return std::atoi(values[1]); }\n")
    assert "cert-err34-c" in tidied(wrong, None)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("kill -SEGV $$", "exit -11"),
        ("echo no such check >&2; exit 1", "no such check"),
        ("echo a warning", "a warning"),
        ("echo 3 warnings in headers of others >&2", ""),
    ],
)
def test_an_end_that_is_not_clean_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, says: str
) -> None:
    pretended = tmp_path / "clang-tidy"
    pretended.write_text(f"#!/bin/sh\n{does}\n")
    pretended.chmod(0o755)
    monkeypatch.setattr(f"{__name__}.tool", lambda name: str(tmp_path / name))
    said = tidied(tmp_path / "one.cpp", None)
    assert says in said
    assert bool(says) == bool(said)


def tidied(source: Path, database: Path | None) -> str:
    """What clang-tidy says of a file, with the reader's own checks; "" for nothing, and an end that is clean."""
    where = ["-p", str(database)] if database else []
    command = [tool("clang-tidy"), "--quiet", f"--config-file={READER / '.clang-tidy'}", *where, str(source)]
    done = subprocess.run(
        [*command, *([] if database else ["--", "-std=c++17"])], cwd=HERE, capture_output=True, text=True, check=False
    )
    is_clean = done.returncode == 0 and not done.stdout
    return "" if is_clean else f"{source.name}: exit {done.returncode}\n{done.stdout}{done.stderr}"
