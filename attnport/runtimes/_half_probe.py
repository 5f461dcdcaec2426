"""Tests whether a runtime really computes in the types that a graph declares, with a graph that shows the difference.

A runtime that computes half precision internally in float32, as ONNX Runtime's CPU kernels do, hides overflow and
rounding. A search for values that fp16 cannot hold would find nothing on it.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from pathlib import Path

from attnport.artifacts import AUTO, IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import AttnportError, first_line
from attnport.runtimes.base import Opening, Runtime

# Every result differs between a runtime that keeps the declared types and one that does not; see _EXPECTED.
_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
probe (float16[n] x) => (float16[n] doubled, float16[n] added, float16 product, float[n] wide) {
  two32 = Constant <value_float = 2.0> ()
  half32 = Constant <value_float = 0.5> ()
  one32 = Constant <value_float = 1.0> ()
  small32 = Constant <value_float = 0.0001> ()
  two = Cast <to = 10> (two32)
  half = Cast <to = 10> (half32)
  one = Cast <to = 10> (one32)
  small = Cast <to = 10> (small32)
  twice = Mul (x, two)
  doubled = Mul (twice, half)
  more = Add (x, one)
  added = Sub (more, x)
  dot = MatMul (x, x)
  product = Mul (dot, small)
  x32 = Cast <to = 1> (x)
  twice32 = Mul (x32, two32)
  wide = Mul (twice32, half32)
}
"""
_X = (60000.0, 2048.0)
_EXPECTED = (
    ("doubled", 0, math.inf, "60000 * 2 / 2"),
    ("added", 1, 0.0, "2048 + 1 - 2048"),
    ("product", 0, math.inf, "60000 * 60000 + 2048 * 2048, then * 0.0001"),
)


def why_not_in_half(runtime: Runtime) -> str:
    """Evidence that a runtime does not compute in a graph's declared types; "" if it does."""
    import numpy as np
    import onnx

    io = IOContract(
        (TensorSpec("x", "float16", ("n",)),),
        (
            *(TensorSpec(name, "float16", ("n",) if name != "product" else ()) for name, *_ in _EXPECTED),
            TensorSpec("wide", "float32", ("n",)),
        ),
        (Dim("n", 2, 2, 2),),
    )
    with tempfile.TemporaryDirectory(prefix="attnport-probe-") as scratch:
        path = Path(scratch) / "probe.onnx"
        onnx.save_model(onnx.parser.parse_model(_GRAPH), path)
        try:
            with contextlib.closing(runtime.open(Opening(io, plan=AUTO, model=path))) as session:
                outputs = session.run({"x": np.array(_X, np.float16)})
        except AttnportError as err:
            return err.message
        except Exception as err:  # a runtime's own exceptions share no base
            return f"it cannot run a graph in fp16: {first_line(err)}"
    for name, at, expected, what in _EXPECTED:
        got = float(np.ravel(outputs[name])[at])
        if got != expected:
            return f"{what} is {got:g} there; in fp16 it is {expected:g}"
    wide = float(outputs["wide"][0])
    return "" if wide == _X[0] else f"60000 * 2 / 2 is {wide:g} there; in fp32 it is 60000"
