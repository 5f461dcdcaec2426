"""Engines in the C++ reader: what is checked before TensorRT is asked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bundle_forms import ENGINE_VERSION, SM_86_AND_89
from cpp_builds import Build
from cpp_engines import pretended
from pretended_gpu import engine_bytes

from attnport_bundle.errors import FeedError, IntegrityError
from attnport_bundle.runtimes import tensorrt as engine_header
from attnport_bundle.runtimes import tensorrt as engine_session

WHOLE = engine_bytes(ENGINE_VERSION, SM_86_AND_89)
HEADERS = {
    "whole": WHOLE,
    "default targets": engine_bytes("1.8.0.255", 0b1111111),
    "no target": engine_bytes("0.0.0.0"),
    "one target": engine_bytes(ENGINE_VERSION, 0b1000),
    "cut short": WHOLE[:-1],
    "longer": WHOLE + b"\0",
    "half a header": WHOLE[:30],
    "magic alone": WHOLE[:4],
    "half a magic": b"vt",
    "another magic": b"ptrt" + WHOLE[4:],
    "not printable": b"\x00\xff\n\x80" + WHOLE[4:],
    "nothing": b"",
    "absurd size": WHOLE[:16] + b"\xff" * 8 + WHOLE[24:],
}


@pytest.fixture
def libraries(cpp_build: Build, tmp_path: Path) -> Path:
    return pretended(cpp_build, tmp_path / "lib")


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_read_as_in_python(cpp_build: Build, tmp_path: Path, name: str) -> None:
    path = tmp_path / "one.engine"
    path.write_bytes(HEADERS[name])
    done = cpp_build.run("engine_calls", "header", path)
    try:
        header = engine_header.read_header(path)
    except (ValueError, IntegrityError):
        assert done.returncode == 6
        assert done.stdout.startswith(str(path))
    else:
        shown = " ".join(map(str, (header.version, path.stat().st_size, *header.sm)))
        shown += " and later" if header.later else ""
        assert (done.returncode, done.stdout.rstrip("\n")) == (0, shown)


@pytest.mark.parametrize(("version", "sm"), [(ENGINE_VERSION, (86,)), ("1.7.1.115", (86, 89)), ("x'y", ())])
def test_one_that_is_not_the_manifests_is_refused(
    cpp_build: Build, tmp_path: Path, version: str, sm: tuple[int, ...]
) -> None:
    path = tmp_path / "one.engine"
    path.write_bytes(WHOLE)
    done = cpp_build.run("engine_calls", "check", path, "tensorrt_rtx", version, *map(str, sm))
    assert done.returncode == 6
    assert f"got version {ENGINE_VERSION}" in done.stdout
    assert cpp_build.run("engine_calls", "check", path, "tensorrt", version).returncode == 0
    right = cpp_build.run("engine_calls", "check", path, "tensorrt_rtx", ENGINE_VERSION, "86", "89")
    assert right.returncode == 0


@pytest.mark.parametrize("shape", ["1,4", "8,4", "9,4", "16,4", "3,4", "3", "0,4"])
@pytest.mark.parametrize(
    "ranges", [[], ["1,4:8,4", "16,4:64,4"], ["1,4:64,4", "1,4:8,4"], ["1,4:8,4", "1,4:8,4"], ["2,4:2,4"]]
)
def test_a_profile_is_chosen_as_in_python(cpp_build: Build, shape: str, ranges: list[str]) -> None:
    def sizes(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    profiles = [{"x": (sizes(least), sizes(most))} for least, _, most in (one.partition(":") for one in ranges)]
    done = cpp_build.run("engine_calls", "profile", shape, *ranges)
    try:
        chosen = engine_session.choose_profile(profiles, {"x": sizes(shape)})
    except FeedError:
        assert done.returncode == 2
        assert "input 'x': got shape [" in done.stdout
    else:
        assert (done.returncode, done.stdout) == (0, f"{chosen}\n")


def test_the_gpu_is_asked_what_it_is_and_takes_memory(cpp_build: Build, libraries: Path) -> None:
    done = cpp_build.run("engine_calls", "device", env={"LD_LIBRARY_PATH": str(libraries)})
    assert done.stdout.splitlines() == [f"Pretended GPU, 89, {'ab' * 16}, 580.1", "same, 1, 0"]
    assert done.returncode == 0


@pytest.mark.parametrize(
    "function",
    [
        "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceGetUuid",
        "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuStreamCreate", "cuMemAlloc_v2",
        "cuMemAlloc_v2:2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize",
    ],
)  # fmt: skip
def test_what_the_driver_refuses_is_told_by_its_own_name_and_nothing_is_left(
    cpp_build: Build, libraries: Path, tmp_path: Path, function: str
) -> None:
    log = tmp_path / "log"
    env = {"LD_LIBRARY_PATH": str(libraries), "PRETENDED_FAIL": function, "PRETENDED_LOG": str(log)}
    done = cpp_build.run("engine_calls", "device", env=env)
    called = function.partition(":")[0]
    assert done.stdout.splitlines()[-1] == f"the NVIDIA driver answers {called} with CUDA_ERROR_OUT_OF_MEMORY."
    assert done.returncode == 3
    calls = log.read_text().splitlines()
    refused = called == "cuDevicePrimaryCtxRetain"
    assert calls.count("cuDevicePrimaryCtxRetain") - refused == calls.count("cuDevicePrimaryCtxRelease_v2")


def test_no_driver_and_no_gpu_are_told(cpp_build: Build, libraries: Path, tmp_path: Path) -> None:
    if _loads("libcuda.so.1"):
        pytest.skip("there is an NVIDIA driver here")
    done = cpp_build.run("engine_calls", "device")
    assert (done.returncode, done.stdout) == (3, "no NVIDIA driver: libcuda.so.1 cannot be loaded.\n")
    done = cpp_build.run("engine_calls", "device", env={"LD_LIBRARY_PATH": str(libraries), "PRETENDED_DEVICES": "0"})
    told = "the NVIDIA driver finds no GPU; CUDA_VISIBLE_DEVICES may hide it.\n"
    assert (done.returncode, done.stdout) == (3, told)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(libraries / "libtensorrt_rtx.so.1", other / "libcuda.so.1")
    done = cpp_build.run("engine_calls", "device", env={"LD_LIBRARY_PATH": str(other)})
    assert (done.returncode, done.stdout) == (3, "no NVIDIA driver: libcuda.so.1 has no cuInit.\n")


def _loads(name: str) -> bool:
    import ctypes

    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def test_a_library_is_taken_in_the_forms_release_alone(cpp_build: Build, libraries: Path) -> None:
    def answer(*arguments: str, **env: str) -> tuple[int, str]:
        done = cpp_build.run("engine_calls", "library", *arguments, env=env)
        return done.returncode, done.stdout.rstrip("\n")

    path = str(libraries / "libtensorrt_rtx.so.1")
    assert answer("tensorrt_rtx", ENGINE_VERSION, ATTNPORT_TENSORRT_RTX=path) == (0, ENGINE_VERSION)
    assert answer("tensorrt_rtx", ENGINE_VERSION, LD_LIBRARY_PATH=str(libraries)) == (0, ENGINE_VERSION)
    assert answer("tensorrt", "1.7.1.116", ATTNPORT_TENSORRT=path) == (0, ENGINE_VERSION)
    code, words = answer("tensorrt_rtx", "1.7.1.115", ATTNPORT_TENSORRT_RTX=path)
    assert code == 3
    assert words.startswith("got tensorrt_rtx 1.7.1.116; expected 1.7.1.115, that release exactly; put ")
    code, words = answer("tensorrt_rtx", ENGINE_VERSION)
    assert code == 3
    assert words.startswith("tensorrt_rtx cannot be loaded: libtensorrt_rtx.so.1: ")
    assert words.endswith("; put the library's path into ATTNPORT_TENSORRT_RTX.")
    code, words = answer("tensorrt", "11.1.0.106")
    assert (code, "libnvinfer.so.11: " in words, "into ATTNPORT_TENSORRT." in words) == (3, True, True)
    code, words = answer("tensorrt", "11.1.0.106", ATTNPORT_TENSORRT=str(libraries / "libcuda.so.1"))
    assert (code, words.endswith("is no library of tensorrt: it has no getInferLibMajorVersion.")) == (3, True)


@pytest.mark.slow
def test_a_build_without_the_headers_says_so(cpp_clang: Build, engine_app: Path) -> None:
    done = cpp_clang.run("engine_runs", engine_app, "cpu", "1")
    assert done.returncode == 3
    assert "tensorrt_rtx: this library was built without TensorRT's headers" in done.stderr
    assert "TENSORRT_INCLUDE_DIR and CUDA_INCLUDE_DIR" in done.stderr
