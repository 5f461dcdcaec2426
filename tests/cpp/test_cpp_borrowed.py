"""Inputs on the CPU are not copied, not written to, and nobody looks at them behind the call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from bundle_forms import UNRUN, manifest, seal
from cpp_builds import Build

from attnport.bundling import golden

LARGE_BYTES = 256 << 20
MODEL = """<ir_version: 10, opset_import: ["" : 23]>
rows (float[batch, seq] x) => (float[batch] greatest) <int64[1] last = {1}>
{greatest = ReduceMax<keepdims = 0>(x, last)}
"""


@pytest.fixture(params=["onnxruntime", "openvino"])
def rows_app(app: Path, request: pytest.FixtureRequest) -> Path:
    """A bundle whose model gives the greatest of each row: it reads every input, and has no other use for memory."""
    found = manifest(app)
    form = found["forms"]["ort_cpu"]
    onnx.save(onnx.parser.parse_model(MODEL), app / form["file"])
    (app / "weights.bin").unlink()
    form |= {"external": [], "dtypes": {"x": "float32", "greatest": "float32"}, "proof": "graph-only", "parity": UNRUN}
    form |= {"fusion": None}
    if request.param == "openvino":
        form |= {"runtime": "openvino", "provider": None, "requires": form["requires"] | {"runtime": "2024.0"}}
    found["io"] = {
        "inputs": [{"name": "x", "dtype": "float32", "dims": ["batch", "seq"], "high": None, "labels": []}],
        "outputs": [{"name": "greatest", "dtype": "float32", "dims": ["batch"], "high": None, "labels": []}],
        "dims": [{"name": name, "min": 1, "opt": 2, "max": LARGE_BYTES, "step": 1} for name in ("batch", "seq")],
        "masks": [],
        "decoder": None,
    }
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {"golden-0/in/x": given, "golden-0/out/greatest": given.max(1).astype(np.float64)}
    golden.write(app / "goldens.safetensors", arrays | {"golden-0/valid/greatest": np.ones(2, bool)})
    bound = {"case": "golden-0", "output": "greatest", "plan": form["plan"], "rms_bound": 0.0, "max_bound": 0.0}
    found["goldens"]["bounds"] = [bound]
    seal(app, found)
    return app


def test_inputs_may_be_gone_behind_every_call(cpp_build: Build, rows_app: Path) -> None:
    done = cpp_build.run("borrowed", rows_app, "shapes")
    assert (done.returncode, done.stdout) == (0, "300 calls, 0 wrong\n"), done.stderr


def test_a_large_input_is_not_copied(cpp_build: Build, rows_app: Path) -> None:
    done = cpp_build.run("borrowed", rows_app, str(LARGE_BYTES))
    assert done.returncode == 0, done.stderr
    # OpenVINO's reduction takes an eighth of its input for itself, at 256 MiB as at 1 GiB.
    assert int(done.stdout) < LARGE_BYTES // 2
