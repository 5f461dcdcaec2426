"""Engines in the C++ reader, behind the checks: what it does with TensorRT, on pretended libraries.

No engine ran on a GPU for these tests: they show what the reader does, not what TensorRT does. Two of them need
NVIDIA's headers, in the folders that `ATTNPORT_TENSORRT_HEADERS` and `ATTNPORT_CUDA_HEADERS` name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cpp_builds
import pytest
from bundle_forms import ENGINE_VERSION, SM_86_AND_89, manifest, reform, seal
from cpp_builds import Build
from cpp_engines import pretended
from pretended_gpu import engine_bytes

Run = Callable[..., "subprocess.CompletedProcess[str]"]
by_nvidias_headers = pytest.mark.skipif(  # NVIDIA ships them in no package, so that no set-up can fetch them
    not cpp_builds.nvidias_headers(), reason="ATTNPORT_TENSORRT_HEADERS and ATTNPORT_CUDA_HEADERS name no folders"
)


@pytest.fixture
def runs(cpp_build: Build, engine_app: Path, tmp_path: Path) -> Run:
    """Runs the bundle of one engine on the pretended libraries."""
    folder = pretended(cpp_build, tmp_path / "native")

    def run(*arguments: str, app: Path = engine_app, **env: str) -> subprocess.CompletedProcess[str]:
        places = {"LD_LIBRARY_PATH": str(folder), "ATTNPORT_CACHE": str(tmp_path / "cache")}
        return cpp_build.run("engine_runs", app, *arguments, env={**places, **env})

    return run


def log_of(run: Run, path: Path, *arguments: str, **env: str) -> list[str]:
    """What was called."""
    path.unlink(missing_ok=True)
    done = run(*arguments, PRETENDED_LOG=str(path), **env)
    assert done.returncode == 0, done.stderr
    return path.read_text().splitlines()


def test_an_engine_runs_at_the_shapes_of_its_profiles_and_goes_in_order(runs: Run, tmp_path: Path) -> None:
    done = runs("cpu", "1", "8", "32")
    assert (done.returncode, done.stdout) == (0, f"tensorrt_rtx {ENGINE_VERSION}, {ENGINE_VERSION}, Pretended GPU\n")
    calls = log_of(runs, tmp_path / "log", "cpu", "1", "8", "32")
    assert [call for call in calls if call.startswith("profile")] == ["profile 0", "profile 1"]
    assert calls.index("cuDeviceGetCount") < calls.index("createInferRuntime")
    order = ["~IExecutionContext", "~IRuntimeCache", "~IRuntimeConfig", "~ICudaEngine", "~IRuntime"]
    places = [calls.index(name) for name in (*order, "cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2")]
    assert places == sorted(places)
    # x, m and y at three sizes that grow, and one memory for the contexts of both profiles
    assert calls.count("cuMemAlloc_v2") == calls.count("cuMemFree_v2") == 10
    first, second = (call for call in calls if call.startswith("scratch"))
    assert first == second
    assert calls.count("graphs 1") == 1  # CudaGraphStrategy::kWHOLE_GRAPH_CAPTURE
    done = runs("cpu", "12")
    assert done.returncode == 2
    assert done.stderr == (
        "input 'x': got shape [12, 3]; the engine's profiles take [1, 3] to [8, 3]; [16, 3] to [64, 3]. "
        "Build an engine with a profile that covers it.\n"
    )


def test_tensors_on_the_device_stay_there(runs: Run, tmp_path: Path) -> None:
    calls = log_of(runs, tmp_path / "log", "device")
    assert "cuCtxSynchronize" in calls
    # The pretended driver refuses memory that is left, so the output's is freed before the device goes.
    assert len(calls) - calls[::-1].index("cuMemFree_v2") > calls.index("~IRuntime")


@pytest.mark.parametrize(
    ("where", "words"),
    [("host", "is no memory of Pretended GPU"), ("inside", "no multiple of 256"), ("beside", None)],
)
def test_an_address_that_is_none_of_the_device_is_refused(runs: Run, where: str, words: str | None) -> None:
    done = runs(where)
    assert done.returncode == (0 if words is None else 2), done.stderr
    assert words is None or words in done.stderr


def test_threads_take_turns(runs: Run) -> None:
    done = runs("threads")
    assert done.returncode == 0, done.stderr


def test_what_was_compiled_is_there_the_next_time(runs: Run, tmp_path: Path) -> None:
    first = log_of(runs, tmp_path / "log", "cpu", "1", "32")
    (kept,) = (tmp_path / "cache").glob("*.rtxcache")
    assert not [call for call in first if call.startswith("kernels")]
    assert "kernels 2" in log_of(runs, tmp_path / "log", "cpu", "1")
    before = kept.stat().st_mtime_ns
    log_of(runs, tmp_path / "log", "cpu", "1")
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x07")
    assert "IRuntimeCache::deserialize" not in log_of(runs, tmp_path / "log", "cpu", "1")
    assert "IRuntimeCache::deserialize" not in log_of(runs, tmp_path / "log", "cpu", "1", PRETENDED_DRIVER="580.2")


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("createInferRuntime", 3, "tensorrt_rtx 1.7.1.116 makes no runtime: pretended complaint"),
        ("deserializeCudaEngine", 2, "one.engine: tensorrt_rtx cannot deserialise it on Pretended GPU: pretended comp"),
        ("createExecutionContext", 3, "TensorRT makes no context for profile 0: pretended complaint"),
        ("setOptimizationProfileAsync", 3, "TensorRT makes no context for profile 0: pretended complaint"),
        ("setInputShape", 4, "input 'x': TensorRT refuses shape [4, 3]: pretended complaint"),
        ("inferShapes", 4, "the engine leaves the shape of x open."),
        ("getTensorShape", 4, "the engine leaves the shape of y open."),
        ("setTensorAddress:3", 4, "output 'y': TensorRT refuses its address: pretended complaint"),
        ("enqueueV3", 4, "tensorrt_rtx 1.7.1.116 did not run: pretended complaint"),
        ("cuMemAlloc_v2", 3, "the NVIDIA driver answers cuMemAlloc_v2 with CUDA_ERROR_OUT_OF_MEMORY."),
        ("cuMemAlloc_v2:3", 3, "the NVIDIA driver answers cuMemAlloc_v2 with CUDA_ERROR_OUT_OF_MEMORY."),
        ("cuMemcpyHtoDAsync_v2:2", 3, "the NVIDIA driver answers cuMemcpyHtoDAsync_v2 with CUDA_ERROR_OUT_OF_MEMORY."),
        ("cuMemcpyDtoHAsync_v2", 3, "the NVIDIA driver answers cuMemcpyDtoHAsync_v2 with CUDA_ERROR_OUT_OF_MEMORY."),
        ("createRuntimeConfig", 0, ""),
        ("createRuntimeCache", 0, ""),
        ("IRuntimeCache::serialize", 0, ""),
        ("setRuntimeCache", 0, ""),
    ],
)
def test_what_fails_is_told_and_nothing_is_left(runs: Run, function: str, code: int, words: str) -> None:
    done = runs("cpu", "1", PRETENDED_FAIL=function)
    assert done.returncode == code, done.stderr
    assert words in done.stderr


def test_one_that_computes_something_else_here_is_refused(runs: Run) -> None:
    done = runs("cpu", "1", PRETENDED_FACTOR="2.1")
    assert done.returncode == 4
    assert "engine does not pass the goldens on Pretended GPU: golden-0, y: " in done.stderr


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PRETENDED_SM": "120"}, "the engine was built for SM 86, 89; Pretended GPU is SM 120."),
        ({"PRETENDED_SM": "75"}, "the engine was built for SM 86, 89; Pretended GPU is SM 75."),
        ({"PRETENDED_DEVICES": "0"}, "the NVIDIA driver finds no GPU; CUDA_VISIBLE_DEVICES may hide it."),
        ({"PRETENDED_TENSORRT": "1.7.1.115"}, "got tensorrt_rtx 1.7.1.115; expected 1.7.1.116, that release exactly"),
        ({"PRETENDED_TENSORRT": "2.0.0.1"}, "got tensorrt_rtx 2.0.0.1; expected 1.7.1.116, that release exactly"),
    ],
)
def test_another_release_or_device_is_not_here_and_tensorrt_is_not_asked(
    runs: Run, tmp_path: Path, env: Mapping[str, str], words: str
) -> None:
    log = tmp_path / "log"
    done = runs("cpu", "1", PRETENDED_LOG=str(log), **env)
    assert done.returncode == 3, done.stderr
    assert words in done.stderr
    assert "createInferRuntime" not in (log.read_text() if log.exists() else "")


def put_release(app: Path, version: str) -> None:
    """Makes the bundle's engine one of that release."""
    (app / "one.engine").write_bytes(engine_bytes(version, SM_86_AND_89))
    found = manifest(app)
    found["forms"]["engine"]["requires"]["runtime"] = version
    seal(app, found)


@pytest.mark.parametrize("version", ["1.4.0.1", "1.8.0.1", "2.0.0.1"])
def test_a_library_whose_classes_may_lie_otherwise_is_refused(
    runs: Run, engine_app: Path, tmp_path: Path, version: str
) -> None:
    put_release(engine_app, version)
    library = str(tmp_path / "native" / "libtensorrt_rtx.so.1")
    done = runs("cpu", "1", PRETENDED_TENSORRT=version, ATTNPORT_TENSORRT_RTX=library)
    assert done.returncode == 3, done.stderr
    assert "compiled with headers of TensorRT-RTX 1." in done.stderr
    assert f"this is TensorRT-RTX {version[:3]}. Build with its own headers" in done.stderr


@pytest.fixture
def real() -> tuple[str, str]:
    """NVIDIA's own library, from its wheel, and the release that it is."""
    found = importlib.util.find_spec("tensorrt_rtx_libs")
    if found is None or found.origin is None:
        pytest.skip("tensorrt_rtx is not installed")
    return str(Path(found.origin).parent / "libtensorrt_rtx.so.1"), importlib.metadata.version("tensorrt_rtx")


def test_nvidias_own_library_where_no_gpu_is_gives_a_clear_error(
    cpp_build: Build, engine_app: Path, tmp_path: Path, real: tuple[str, str]
) -> None:
    library, version = real
    env = {"ATTNPORT_TENSORRT_RTX": library, "ATTNPORT_CACHE": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    for release, words in (
        (version, "no NVIDIA driver: |the NVIDIA driver (finds no GPU|answers cuInit with CUDA_ERROR_NO_DEVICE)"),
        ("1.0.0.0", re.escape(f"got tensorrt_rtx {version}; expected 1.0.0.0, that release exactly")),
    ):
        put_release(engine_app, release)
        done = cpp_build.run("engine_runs", engine_app, "cpu", "1", env=env)
        assert (done.returncode, done.stdout) == (3, "")
        assert re.search(words, done.stderr), done.stderr


@by_nvidias_headers
def test_nvidias_own_library_with_a_driver_that_it_cannot_use_gives_a_clear_error(
    cpp_build: Build, engine_app: Path, tmp_path: Path, real: tuple[str, str]
) -> None:
    """The pretended driver lets the reader through to the real classes, which were compiled by others."""
    library, version = real
    put_release(engine_app, version)
    env = {
        "LD_LIBRARY_PATH": str(pretended(cpp_build, tmp_path / "native")),
        "ATTNPORT_TENSORRT_RTX": library,
        "ATTNPORT_CACHE": str(tmp_path / "cache"),
        # The sanitizer's own search for leaks crashes beside that library.
        "ASAN_OPTIONS": cpp_builds.environment()["ASAN_OPTIONS"] + ":detect_leaks=0",
    }
    done = cpp_build.run("engine_runs", engine_app, "cpu", "1", env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "one.engine: tensorrt_rtx cannot deserialise it on Pretended GPU: " in done.stderr
    assert "CUDA driver version is insufficient" in done.stderr


def test_its_bytes_are_compared_also_where_files_are_not(runs: Run, engine_app: Path, tmp_path: Path) -> None:
    assert runs("trusted").returncode == 0
    data = (engine_app / "one.engine").read_bytes()
    (engine_app / "one.engine").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    log = tmp_path / "log"
    done = runs("trusted", PRETENDED_LOG=str(log))
    assert done.returncode == 6, done.stderr
    assert done.stderr == f"{engine_app / 'one.engine'}: changed: its SHA-256 is not that of the manifest.\n"
    assert "createInferRuntime" not in log.read_text()


def one_profile(found: dict[str, Any]) -> None:
    del found["forms"]["engine"]["profiles"][1]


def wider_profile(found: dict[str, Any]) -> None:
    found["forms"]["engine"]["profiles"][0]["dims"][0]["max"] = 9


def other_dtype(found: dict[str, Any]) -> None:
    found["forms"]["engine"]["dtypes"]["y"] = "float16"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (one_profile, "has 2 optimization profiles; the manifest says 1."),
        (wider_profile, "profile 0 takes 'x' from [1, 3] to [8, 3]; the manifest says [1, 3] to [9, 3]."),
        (other_dtype, "tensor 'y' is bfloat16; the manifest says float16."),
    ],
)
def test_an_engine_that_is_not_the_manifests_is_refused(
    runs: Run, engine_app: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    found = manifest(engine_app)
    change(found)
    seal(engine_app, found)
    done = runs("cpu", "1")
    assert done.returncode == 6, done.stderr
    assert words in done.stderr


def test_the_next_form_is_taken_where_one_cannot_run_and_that_is_said(runs: Run, engine_app: Path) -> None:
    reform(engine_app, {"engine": {}, "other": {}})
    done = runs("cpu", "1", PRETENDED_FAIL="createInferRuntime:1")
    assert done.returncode == 0, done.stderr
    assert "other runs; passed over: engine: " in done.stderr


@by_nvidias_headers
def test_the_headers_are_laid_out_as_nvidias_own_package_calls_its_library(
    cpp_build: Build, engine_app: Path, tmp_path: Path
) -> None:
    """Python's reader, with the package of the release, on a library that was compiled with the headers."""
    found = importlib.util.find_spec("tensorrt_rtx_libs")
    if found is None or found.origin is None:
        pytest.skip("tensorrt_rtx is not installed")
    folder = pretended(cpp_build, tmp_path / "native")
    (folder / "libtensorrt_onnxparser_rtx.so.1").symlink_to(
        Path(found.origin).parent / "libtensorrt_onnxparser_rtx.so.1"
    )
    empty = tmp_path / "site" / "tensorrt_rtx_libs"
    empty.mkdir(parents=True)
    (empty / "__init__.py").touch()  # the package's own loads the real library
    program = (
        "import sys, numpy; from attnport_bundle import load\n"
        "with load(sys.argv[1]) as model:\n"
        "    for n in (1, 8, 32):\n"
        "        x = numpy.arange(3 * n, dtype=numpy.float32).reshape(n, 3)\n"
        "        assert (model.run(x=x, m=numpy.ones(n, bool))['y'] == 2 * x).all()\n"
        "    print(model.provider)\n"
    )
    env = os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(cpp_builds.ROOT)]),
        "ATTNPORT_CACHE": str(tmp_path / "cache"),
        "PRETENDED_LOG": str(tmp_path / "log"),
    }
    command = [sys.executable, "-c", program, str(engine_app)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"tensorrt_rtx {ENGINE_VERSION}\n"), done.stderr
    assert "enqueueV3" in (tmp_path / "log").read_text()
