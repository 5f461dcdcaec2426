"""What `Model::run` of the C++ reader costs over the runtime's own call, on a model of one node.

    python benchmarks/cpp_overhead.py --headers FOLDER [--calls 2000] [--rounds 60] [--batch 2] [--json FILE]

`FOLDER` has `onnxruntime_c_api.h`. The reader is built as a bundle's user builds it (Release), and `cpp_overhead.cpp`
beside it: calls in turns and in random order in one process, a session of one thread each, the same file, inputs and
library. By hand is a value made, `OrtRun`, and both values released; the reader's call is everything from the list of
inputs to the tensor. Printed are the median over rounds of the medians within one, their difference and their ratio,
with 95 % bootstrap intervals over rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from attnport.bundling import golden
from attnport_bundle.format import manifest as spec

ROOT = Path(__file__).resolve().parent.parent
READER = ROOT / "cpp"
ONE_NODE = '<ir_version: 10, opset_import: ["" : 18]> g (float[batch,16] x) => (float[batch,16] y) { y = Add(x, x) }'
GRAPH_ONLY: dict[str, Any] = {"verdict": "PASS", "runtime": "NOT_RUN", "graph": "PASS", "reason": ""}
CMAKE = """
cmake_minimum_required(VERSION 3.18)
project(overhead LANGUAGES CXX)
add_subdirectory("{reader}" reader)
add_executable(cpp_overhead "{here}/cpp_overhead.cpp")
target_include_directories(cpp_overhead SYSTEM PRIVATE "{headers}")
target_link_libraries(cpp_overhead PRIVATE attnport::bundle ${{CMAKE_DL_LIBS}})
"""


def made_bundle(folder: Path) -> Path:
    """A bundle of one addition; it was never judged, so its first open runs its golden case."""
    folder.mkdir()
    onnx.save(onnx.parser.parse_model(ONE_NODE), folder / "model.one.onnx")
    x = np.arange(32, dtype=np.float32).reshape(2, 16)
    arrays = {"one/in/x": x, "one/out/y": 2.0 * x.astype(np.float64), "one/valid/y": np.ones((2, 16), np.bool_)}
    golden.write(folder / "goldens.safetensors", arrays)
    names = ("goldens.safetensors", "model.one.onnx")
    found = {
        "format": spec.FORMAT,
        "version": spec.VERSION,
        "name": "one",
        "unverified": False,
        "io": {
            "inputs": [{"name": "x", "dtype": "float32", "dims": ["batch", 16], "high": None}],
            "outputs": [{"name": "y", "dtype": "float32", "dims": ["batch", 16], "high": None}],
            "dims": [{"name": "batch", "min": 1, "opt": 2, "max": 1024, "step": 1}],
            "masks": [],
            "decoder": None,
        },
        "order": ["one"],
        "forms": {
            "one": {
                "file": "model.one.onnx",
                "external": [],
                "plan": "fp32",
                "runtime": "onnxruntime",
                "provider": "CPUExecutionProvider",
                "dtypes": {"x": "float32", "y": "float32"},
                "profiles": [],
                "requires": {"runtime": "1.23", "exact": False, "opset": 18, "sm": []},
                "proof": "graph-only",
                "parity": {**GRAPH_ONLY, "results": [], "ran": None},
                "fusion": None,
            }
        },
        "goldens": {
            "file": "goldens.safetensors",
            "bounds": [{"case": "one", "output": "y", "plan": "fp32", "rms_bound": 1e-6, "max_bound": 1e-6}],
        },
        "tokenizer": None,
        "prompts": {"named": {}, "default": ""},
        "text_limit": None,
        "provenance": {
            "source": "one",
            "inputs": [],
            "code_sha256": "0" * 64,
            "weights_sha256": "0" * 64,
            "opset": 18,
            "commands": [],
            "versions": {},
        },
        "files": {
            name: {
                "bytes": (folder / name).stat().st_size,
                "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
            }
            for name in names
        },
    }
    (folder / "bundle.json").write_text(json.dumps(found))
    return folder


def built(folder: Path, headers: Path) -> Path:
    """The program, with the reader that it is linked with."""
    folder.mkdir()
    text = CMAKE.format(reader=READER, here=ROOT / "benchmarks", headers=headers)
    (folder / "CMakeLists.txt").write_text(text)
    build = folder / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DONNXRUNTIME_INCLUDE_DIR={headers}"]
    for command in (["-S", folder, "-B", build, *options], ["--build", build, "--target", "cpp_overhead", "-j2"]):
        subprocess.run(["cmake", *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return build / "cpp_overhead"


def interval(values: np.ndarray[Any, Any]) -> list[float]:
    """The median, between the ends of its 95 % bootstrap interval."""
    drawn = np.median(np.random.default_rng(0).choice(values, (2000, values.size)), axis=1)
    return [float(np.quantile(drawn, 0.025)), float(np.median(values)), float(np.quantile(drawn, 0.975))]


def main() -> None:
    """Builds, runs, prints the figures, and writes them."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--headers", type=Path, required=True)
    arguments.add_argument("--program", type=Path, help="a program that was built before")
    arguments.add_argument("--calls", type=int, default=2000)
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--batch", type=int, default=2)
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    with tempfile.TemporaryDirectory() as name:
        app = made_bundle(Path(name) / "app")
        program = chosen.program or built(Path(name) / "program", chosen.headers.resolve())
        given = [app, app / "model.one.onnx", library, chosen.calls, chosen.rounds, chosen.batch]
        done = subprocess.run(
            [str(program), *map(str, given)],
            env=os.environ | {"ATTNPORT_CACHE": str(Path(name) / "cache")},
            check=True,
            capture_output=True,
            text=True,
        )
        shutil.rmtree(app)
    rounds = np.array([[int(word) for word in line.split()] for line in done.stdout.splitlines()])
    hand, reader = rounds[:, 0], rounds[:, 1]
    result = {
        "calls_a_round": chosen.calls,
        "rounds": chosen.rounds,
        "batch": chosen.batch,
        "onnxruntime": onnxruntime.__version__,
        "machine": platform.machine(),
        "by_hand_ns": interval(hand),
        "reader_ns": interval(reader),
        "difference_ns": interval(reader - hand),
        "ratio": interval(reader / hand),
        "rounds_ns": rounds.tolist(),
    }
    for key in ("by_hand_ns", "reader_ns", "difference_ns", "ratio"):
        low, middle, high = result[key]
        print(f"{key:14} {middle:9.3f}  [{low:.3f}, {high:.3f}]")
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
