"""A bundle on OpenVINO whose model gives its integers back as floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
from bundle_forms import UNRUN, manifest, seal

from attnport.bundling import golden

MODEL = """<ir_version: 10, opset_import: ["" : 23]>
g (int64[batch, seq] x) => (float[batch, seq] y) { y = Cast <to = 1> (x) }"""
LEAST, MOST = -(2**31), 2**31 - 1
BEYOND = {"above": 2**32, "just above": MOST + 1, "below": LEAST - 1, "largest": 2**63 - 1, "least": -(2**63)}


def words(value: int) -> str:
    """What every reader says of a row that holds 1 and `value`."""
    return (
        f"input 'x': got values {min(1, value)} to {max(1, value)}; "
        f"OpenVINO computes int64 in 32 bits, from {LEAST} to {MOST}."
    )


def make(app: Path) -> Path:
    """Turns a bundle of `tiny_attention` into one of `MODEL`."""
    found = manifest(app)
    form = found["forms"]["ort_cpu"]
    onnx.save(onnx.parser.parse_model(MODEL), app / form["file"])
    (app / "weights.bin").unlink()
    form |= {"external": [], "dtypes": {"x": "int64", "y": "float32"}, "proof": "graph-only", "parity": UNRUN}
    form |= {"fusion": None, "runtime": "openvino", "provider": None}
    form["requires"] |= {"runtime": "2024.0"}
    found["io"] = {
        "inputs": [{"name": "x", "dtype": "int64", "dims": ["batch", "seq"], "high": None, "labels": []}],
        "outputs": [{"name": "y", "dtype": "float32", "dims": ["batch", "seq"], "high": None, "labels": []}],
        "dims": [{"name": name, "min": 1, "opt": 2, "max": 8, "step": 1} for name in ("batch", "seq")],
        "masks": [],
        "decoder": None,
    }
    given = np.array([[0, LEAST, MOST]], dtype=np.int64)
    arrays = {"golden-0/in/x": given, "golden-0/out/y": given.astype(np.float32).astype(np.float64)}
    golden.write(app / "goldens.safetensors", arrays | {"golden-0/valid/y": np.ones(given.shape, bool)})
    bound = {"case": "golden-0", "output": "y", "plan": form["plan"], "rms_bound": 0.0, "max_bound": 0.0}
    found["goldens"]["bounds"] = [bound]
    seal(app, found)
    return app
