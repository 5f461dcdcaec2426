"""Builds of the C++ reader and of its tests' programs: configured once, kept under `.cache/cpp`, built by need."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "cpp"
WORK = ROOT / ".cache" / "cpp"
READER = ROOT / "cpp"
NEW, OLD = (WORK / "onnxruntime" / suite for suite in ("sid", "trixie"))
"""ONNX Runtime's headers as `tools/cpp_setup.py` unpacks them: with plug-in providers, and from before them."""
TOGETHER = ("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=10")
"""Ten sources are compiled as one, in half the time. One build and clang-tidy go without: each source stands alone."""
SANITIZER_EXIT = 99
"""What a sanitizer that found something ends a program with: none of the reader's own exit codes."""


def lacking(what: str) -> NoReturn:
    """Skips the test; where all was set up for these tests (`make cpp-test`) it fails."""
    if os.environ.get("ATTNPORT_CPP_REQUIRED") == "1":
        pytest.fail(f"{what}; tools/cpp_setup.py --all sets it up")
    pytest.skip(what)


def tool(name: str) -> str:
    """The path of a program, also of one that pip installed."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    return found or lacking(f"no {name} here")


def headers(folder: Path) -> Path:
    return folder if (folder / "onnxruntime_c_api.h").is_file() else lacking("ONNX Runtime's headers are not there")


@functools.cache
def openvino_cmake() -> Path:
    """The folder of OpenVINO's CMake files, from its wheel."""
    spec = importlib.util.find_spec("openvino")
    found = Path(spec.origin).parent / "cmake" if spec and spec.origin else None
    return found if found and found.is_dir() else lacking("no openvino wheel here")


@functools.cache
def onnxruntime_library() -> Path:
    """ONNX Runtime's library, from its wheel."""
    spec = importlib.util.find_spec("onnxruntime")
    found = sorted((Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*")) if spec and spec.origin else []
    return found[0] if found else lacking("no onnxruntime wheel here")


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time: several of pytest may run at once."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment(**more: str) -> dict[str, str]:
    """That of a program that reads a bundle here."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("ATTNPORT_", "LD_"))}
    tell = f"exitcode={SANITIZER_EXIT}"
    return {
        **found,
        "ATTNPORT_ONNXRUNTIME": str(onnxruntime_library()),
        "ATTNPORT_CACHE": str(WORK / "proofs"),
        "ASAN_OPTIONS": f"{tell}:detect_leaks=1:detect_stack_use_after_return=1:verify_asan_link_order=0",
        "LSAN_OPTIONS": f"{tell}:print_suppressions=0:suppressions={HERE / 'lsan.supp'}",
        "UBSAN_OPTIONS": f"{tell}:halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": f"{tell}:halt_on_error=1:suppressions={HERE / 'tsan.supp'}",
        **more,
    }


def configure(source: Path, folder: Path, *options: str, compiler: str = "g++") -> None:
    """Runs CMake, or fails the test with what it said."""
    done = cmake("-G", "Ninja", "-S", source, "-B", folder, *common(compiler), *options)
    assert done.returncode == 0, done.stdout + done.stderr


def cmake(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs CMake on every processor: of parallel runs of tests, the others mostly wait for the same build."""
    command = [tool("cmake"), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, preexec_fn=_everywhere
    )


def _everywhere() -> None:
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def common(compiler: str) -> list[str]:
    """What every configuration here is told: who compiles, and where unpacked packages are."""
    unpacked = WORK / "packages" / "usr"
    found = [f"-DCMAKE_CXX_COMPILER={tool(compiler)}", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    return [*found, f"-DCMAKE_PREFIX_PATH={unpacked}"] if unpacked.is_dir() else found


@dataclass(frozen=True)
class Build:
    """A configured build of `tests/cpp`. Its targets are built when a test of this process first asks for them."""

    folder: Path
    sanitized: bool = False

    @functools.cache  # noqa: B019 (there are a few builds; where nothing changed, Ninja takes longer than most programs)
    def make(self, *targets: str) -> None:
        with locked(f"build/{self.folder.name}"):
            done = cmake("--build", self.folder, *(("--target", *targets) if targets else ()))
        assert done.returncode == 0, done.stdout + done.stderr

    def program(self, name: str) -> Path:
        """A program of the reader, or one of `tests/cpp/programs` or `tests/cpp/internals`, up to date."""
        self.make(name)
        return self.folder / "bin" / name

    @property
    def library(self) -> Path:
        """The reader's library, up to date: a shared one, or an archive."""
        self.make("attnport_bundle")
        found = [self.folder / "lib" / f"libattnport_bundle{suffix}" for suffix in (".so", ".a")]
        return next(path for path in found if path.exists())

    def module(self, name: str) -> Path:
        """A library of `tests/cpp/libraries`, up to date."""
        self.make(name)
        return self.folder / "lib" / f"lib{name}.so"

    def run(
        self, program: str, *arguments: str | Path, env: Mapping[str, str] | None = None, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program; `given` is its stdin. A finding of a sanitizer, or a crash, fails the test."""
        command = [str(self.program(program)), *map(str, arguments)]
        more = dict(env or {})
        if self.sanitized:
            more["LD_PRELOAD"] = str(self.module("no_deep_binding"))
        done = subprocess.run(
            command, env=environment(**more), capture_output=True, text=True, check=False, input=given or ""
        )
        check_end(done)
        return done


def check_end(done: subprocess.CompletedProcess[str]) -> None:
    """Fails the test for an end that is none of the reader's: a signal, or a finding of a sanitizer."""
    assert 0 <= done.returncode != SANITIZER_EXIT, f"{done.args}: {done.returncode}\n{done.stdout}{done.stderr}"


def everything() -> tuple[str, ...]:
    """CMake options that compile in every optional part.

    Engines are compiled with NVIDIA's headers where there are some, otherwise with those of the pretended library.
    """
    own = HERE / "libraries" / "tensorrt"
    tensorrt, cuda = nvidias_headers() or (own, own)
    return f"-DOpenVINO_DIR={openvino_cmake()}", f"-DTENSORRT_INCLUDE_DIR={tensorrt}", f"-DCUDA_INCLUDE_DIR={cuda}"


def nvidias_headers() -> tuple[str, str] | None:
    """The folders of TensorRT-RTX's own headers, and of CUDA's."""
    tensorrt, cuda = (os.environ.get(f"ATTNPORT_{name}_HEADERS", "") for name in ("TENSORRT", "CUDA"))
    return (tensorrt, cuda) if tensorrt and cuda else None


def build(compiler: str, onnxruntime: Path, *options: str) -> Build:
    """The build with these options, which the digest of them names."""
    given = ("ATTNPORT_PROGRAMS", "ATTNPORT_INSTALL", "ATTNPORT_WERROR")
    told = [f"-DONNXRUNTIME_INCLUDE_DIR={headers(onnxruntime)}", *(f"-D{name}=ON" for name in given)]
    every: Sequence[str] = [*common(compiler), *told, *options]
    name = hashlib.sha256("\0".join(every).encode()).hexdigest()[:16]
    (WORK / "build").mkdir(parents=True, exist_ok=True)
    made = Build(WORK / "build" / name, any("ATTNPORT_SANITIZE=" in option for option in options))
    with locked(f"build/{name}"):
        configure(HERE, made.folder, *told, *options, compiler=compiler)
    return made
