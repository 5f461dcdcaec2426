#!/usr/bin/env python3
"""Fuzzes the bundle's readers, Python's and the C++ one: `make fuzz`. Both start from tests/fuzz/corpus.

What reaches new code of Python's reader is kept in the corpus; `make test` replays it with both. A find ends the run
with exit 1; its input lies in .cache/fuzz, to be moved into the corpus with the fix.
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
CPP_TARGETS = {"manifest": 60, "external": 15, "goldens": 15}
"""The same for the targets in C++, which start from the same corpora."""
MAX_FILES = 100
_OPTIONS = ("-max_len=8192", "-timeout=2", "-verbosity=0", "-print_final_stats=1")


def main() -> int:
    """Fuzzes each target for its share of the time; the exit code of the first that finds something."""
    for target, seconds in TARGETS.items():
        found = _new_folder(target)
        print(f"fuzzing {target} for {seconds} s", flush=True)
        total = f"-max_total_time={seconds}"
        code = _run(target, *_OPTIONS, total, f"-artifact_prefix={WORK / target}-", str(found), str(CORPUS / target))
        if code:
            return _tell(target, code)
        _keep(target, found)
    return _build() or _fuzz_cpp()


def _fuzz_cpp() -> int:
    environment = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    for target, seconds in CPP_TARGETS.items():
        name = f"cpp-{target}"
        found = _new_folder(name)
        print(f"fuzzing {target} in C++ for {seconds} s", flush=True)
        command = [BUILD / "bin" / f"fuzz_{target}", *_OPTIONS, f"-max_total_time={seconds}", "-print_funcs=0"]
        places = [f"-artifact_prefix={WORK / name}-", found, CORPUS / target]
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
    found = WORK / name
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    return found


def _tell(name: str, code: int) -> int:
    print(f"{name}: a find; see {WORK}/{name}-*", file=sys.stderr)
    return code


def _keep(target: str, found: Path) -> None:
    """Takes into the corpus what reaches code that the corpus does not."""
    corpus, merged = CORPUS / target, WORK / f"{target}-merged"
    shutil.rmtree(merged, ignore_errors=True)
    shutil.copytree(corpus, merged)
    _run(target, "-merge=1", "-verbosity=0", str(merged), str(found))
    known = {path.name for path in corpus.iterdir()}
    new = sorted((path for path in merged.iterdir() if path.name not in known), key=lambda path: path.stat().st_size)
    kept = new[: max(0, MAX_FILES - len(known))]
    for path in kept:
        shutil.copy(path, corpus)
    print(f"{target}: {len(known)} files in the corpus, {len(kept)} added", flush=True)


def _run(target: str, *options: str) -> int:
    command = [sys.executable, "tests/fuzz/runner.py", target, *options]
    with tempfile.TemporaryDirectory() as scratch:  # libFuzzer ends without Python's own clearing up
        return subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "TMPDIR": scratch}).returncode


if __name__ == "__main__":
    sys.exit(main())
