#!/usr/bin/env python3
"""Fuzzes the bundle's readers in Python and C++: `make fuzz`. Both start from tests/fuzz/corpus.

Inputs that reach new code in the Python reader are added to the corpus; `make test` replays it with both readers. If an
input causes a crash, the run ends with exit 1; the input is in .cache/fuzz, and belongs into the corpus with the fix.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
WORK = ROOT / ".cache" / "fuzz"
BUILD = ROOT / ".cache" / "cpp" / "fuzzing"
HEADERS = ROOT / ".cache" / "cpp" / "onnxruntime" / "sid"
TARGETS = {"manifest": 20, "external": 20, "goldens": 20}
"""The targets in Python, which are those of the corpora, and the seconds that each is fuzzed for."""
CPP_TARGETS = {"manifest": 60, "goldens": 15}
"""The same for the targets in C++, which start from the same corpora. It does not read ONNX files."""
MAX_FILES = 100
_OPTIONS = ("-max_len=8192", "-timeout=2", "-verbosity=0", "-print_final_stats=1")


def main() -> int:
    """Fuzzes all targets. Returns the exit code of the first that finds something."""
    for target, seconds in TARGETS.items():
        new_inputs = _new_folder(target)
        print(f"fuzzing {target} for {seconds} s", flush=True)
        total = f"-max_total_time={seconds}"
        code = _run(
            target, *_OPTIONS, total, f"-artifact_prefix={WORK / target}-", str(new_inputs), str(CORPUS / target)
        )
        if code:
            return _tell(target, code)
        _keep(target, new_inputs)
    return _build() or _fuzz_cpp()


def _fuzz_cpp() -> int:
    environment = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    for target, seconds in CPP_TARGETS.items():
        name = f"cpp-{target}"
        new_inputs = _new_folder(name)
        print(f"fuzzing {target} in C++ for {seconds} s", flush=True)
        command = [BUILD / "bin" / f"fuzz_{target}", *_OPTIONS, f"-max_total_time={seconds}", "-print_funcs=0"]
        places = [f"-artifact_prefix={WORK / name}-", new_inputs, CORPUS / target]
        code = subprocess.run([*map(str, command), *map(str, places)], check=False, env=environment).returncode
        if code:
            return _tell(name, code)
    return 0


def _build() -> int:
    """Builds the C++ targets: clang, its fuzzer and its sanitizers; `tools/cpp_setup.py --all` sets them up."""
    options = {
        "CMAKE_CXX_COMPILER": "clang++",
        "CMAKE_CXX_FLAGS": "-O1 -g1 -fno-sanitize-recover=undefined",
        "CMAKE_PREFIX_PATH": str(ROOT / ".cache" / "cpp" / "packages" / "usr"),
        "ONNXRUNTIME_INCLUDE_DIR": str(HEADERS),
        "CMAKE_DISABLE_FIND_PACKAGE_OpenSSL": "ON",
        "CMAKE_DISABLE_FIND_PACKAGE_OpenVINO": "ON",
        "FUZZ": "ON",
        "ATTNPORT_PROGRAMS": "OFF",
        "ATTNPORT_WERROR": "ON",
        "ATTNPORT_SANITIZE": "address,undefined",
    }
    source = ROOT / "tests" / "cpp"
    configure = ["cmake", "-G", "Ninja", "-S", source, "-B", BUILD, *(f"-D{name}={to}" for name, to in options.items())]
    targets = (f"fuzz_{target}" for target in CPP_TARGETS)
    print("building the fuzz targets of the C++ reader", flush=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for command in (configure, ["cmake", "--build", BUILD, "--target", *targets]):
        try:
            done = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
            )
        except OSError as err:
            print(f"the C++ reader cannot be built: {err}; tools/cpp_setup.py --all", file=sys.stderr)
            return 3
        if done.returncode:
            print(f"{done.stdout}{done.stderr}\nthe C++ reader's fuzz targets cannot be built", file=sys.stderr)
            return 1
    return 0


def _new_folder(name: str) -> Path:
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _tell(name: str, code: int) -> int:
    print(f"{name}: a find; see {WORK}/{name}-*", file=sys.stderr)
    return code


def _keep(target: str, new_inputs: Path) -> None:
    """Adds inputs to the corpus that reach new code."""
    corpus, merged = CORPUS / target, WORK / f"{target}-merged"
    shutil.rmtree(merged, ignore_errors=True)
    shutil.copytree(corpus, merged)
    _run(target, "-merge=1", "-verbosity=0", str(merged), str(new_inputs))
    known = {path.name for path in corpus.iterdir()}
    new = sorted((path for path in merged.iterdir() if path.name not in known), key=lambda path: path.stat().st_size)
    added = new[: max(0, MAX_FILES - len(known))]
    for path in added:
        shutil.copy(path, corpus)
    print(f"{target}: {len(known)} files in the corpus, {len(added)} added", flush=True)


def _run(target: str, *options: str) -> int:
    command = [sys.executable, "tests/fuzz/runner.py", target, *options]
    with tempfile.TemporaryDirectory() as scratch:  # libFuzzer ends without Python's own cleanup
        return subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "TMPDIR": scratch}).returncode


if __name__ == "__main__":
    sys.exit(main())
