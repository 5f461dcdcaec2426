"""Projects that use the C++ reader: a program beside a bundle, as its guide says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cpp_builds
from cpp_builds import WORK, cmake, configure, environment

PROJECT = """cmake_minimum_required(VERSION 3.18)
project(consumer LANGUAGES CXX)
{0}add_executable(program main.cpp)
target_link_libraries(program PRIVATE attnport::bundle)
"""
"""{0}: how the reader is found."""


def put(path: Path, data: bytes) -> None:
    """Writes a file unless it is so already: what did not change is not compiled again."""
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def consumer(name: str, app: Path, project: str, code: str) -> Path:
    """A project of one program, with the bundle beside it; kept, so that only what changed is compiled again."""
    folder = WORK / "consumers" / name
    held = {path.relative_to(app) for path in app.rglob("*") if path.is_file()}
    for path in (folder / "app").rglob("*"):
        if path.is_file() and path.relative_to(folder / "app") not in held:
            path.unlink()
    for path in held:
        put(folder / "app" / path, (app / path).read_bytes())
    put(folder / "CMakeLists.txt", project.encode())
    put(folder / "main.cpp", code.encode())
    return folder


def built(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Builds the project, and runs its program where the bundle is."""
    configure(folder, folder / "build", *options)
    done = cmake("--build", folder / "build")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = subprocess.run(
        [str(folder / "build" / "program")], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    cpp_builds.check_end(ran)
    return ran
