"""A step of attention with a cache on ONNX Runtime's CPU kernels: the cache copied by Concat, or written to in place.

    python benchmarks/cache_forms.py [--rounds 60]

One attention of 12 heads of 64, one new token behind a cache, one thread, all forms in turns in one process. Buffers
that are written to in place have the next multiple of 64 places, and are input and output at once. Printed are medians
and their ratios to Concat. Each form's output and cache are compared with NumPy's before anything is timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from onnx import parser

HEADS, DEPTH = 12, 64
WIDTH = HEADS * DEPTH
CASES = ((1, 128), (8, 128), (1, 960), (8, 960))
"""Texts, and the tokens behind each."""
Array = np.ndarray[Any, Any]
_HEADER = '<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> agraph '
_CACHES = "float[B,12,P,64] past_k, float[B,12,P,64] past_v"
_OUTPUTS = "float[B,12,X,64] new_k, float[B,12,X,64] new_v"
_ROWS = "float[B,S,768] q, float[B,S,768] k, float[B,S,768] v"
_LAST = "float[B,1,S,T] bias, int32[B] last, int32[1] total"
_GROUP = """com.microsoft.GroupQueryAttention<num_heads=12, kv_num_heads=12>(
            q, k, v, past_k, past_v, last, total, , , , bias)"""
_FOUR = "float[B,12,S,64] q, float[B,12,S,64] k, float[B,12,S,64] v"
FORMS = {
    "Concat, Attention": (23, f"""({_FOUR}, {_CACHES}, float[B,1,S,T] bias) => (float[B,12,S,64] y, {_OUTPUTS}) {{
        new_k = Concat<axis=2>(past_k, k) new_v = Concat<axis=2>(past_v, v)
        y = Attention(q, new_k, new_v, bias) }}"""),
    "TensorScatter, Attention": (24, f"""({_FOUR}, {_CACHES}, float[B,1,S,T] bias, int64[B] at)
        => (float[B,12,S,64] y, {_OUTPUTS}) {{
        new_k = TensorScatter<axis=-2>(past_k, k, at) new_v = TensorScatter<axis=-2>(past_v, v, at)
        y = Attention(q, new_k, new_v, bias) }}"""),
    "GroupQueryAttention": (23, f"""({_ROWS}, {_CACHES}, {_LAST}) => (float[B,S,768] y, {_OUTPUTS}) {{
        y, new_k, new_v = {_GROUP} }}"""),
    # It refuses several new tokens of several texts behind a cache; these go to Concat.
    "GroupQueryAttention in If": (23, f"""({_ROWS}, {_CACHES}, {_LAST}) => (float[B,S,768] y, {_OUTPUTS}) {{
        one = Constant<value_ints=[1]>() new = Shape<start=1, end=2>(q) step = Equal(new, one)
        four = Constant<value_ints=[0,0,12,64]>() three = Constant<value_ints=[0,0,768]>()
        y, new_k, new_v = If<then_branch = a () => (float[B,S,768] y1, float[B,12,X,64] k1, float[B,12,X,64] v1) {{
            y1, k1, v1 = {_GROUP}
        }}, else_branch = b () => (float[B,S,768] y2, float[B,12,X,64] k2, float[B,12,X,64] v2) {{
            q3 = Reshape(q, four) k3 = Reshape(k, four) v3 = Reshape(v, four)
            q4 = Transpose<perm=[0,2,1,3]>(q3) k4 = Transpose<perm=[0,2,1,3]>(k3) v4 = Transpose<perm=[0,2,1,3]>(v3)
            k2 = Concat<axis=2>(past_k, k4) v2 = Concat<axis=2>(past_v, v4)
            y4 = Attention(q4, k2, v2, bias) y5 = Transpose<perm=[0,2,1,3]>(y4) y2 = Reshape(y5, three)
        }}>(step) }}"""),
}  # fmt: skip
"""By name, the opset and the graph."""


def session(name: str) -> Any:
    """A session of a form, on one thread."""
    opset, graph = FORMS[name]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = parser.parse_model(_HEADER.format(opset=opset) + graph)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def expected(q: Array, k: Array, v: Array) -> Array:
    """The attention of NumPy, `[B,H,S,D]`."""
    scores = q @ k.swapaxes(2, 3) / np.sqrt(DEPTH)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def bound(name: str, ran: Any, batch: int, past: int) -> Callable[[], None]:
    """A function that runs one step of a form; its first result was found right.

    Raises:
        AssertionError: the output or the cache is wrong.
    """
    draw, total = np.random.default_rng(0), past + 1
    in_place = not name.startswith("Concat")
    places = -(-total // 64) * 64 if in_place else past
    q, k, v = (draw.standard_normal((batch, HEADS, 1, DEPTH), np.float32) for _ in range(3))
    caches = [draw.standard_normal((batch, HEADS, past, DEPTH), np.float32) for _ in range(2)]
    grouped = name.startswith("Group")
    keys = places if name.startswith("Tensor") else total
    bias = np.zeros((batch, 1, 1, keys), np.float32)
    bias[..., total:] = -np.inf
    feeds: Mapping[str, Array] = {
        **{what: one.reshape(batch, 1, WIDTH) if grouped else one for what, one in (("q", q), ("k", k), ("v", v))},
        "bias": bias, "at": np.full(batch, past), "last": np.full(batch, past, np.int32),
        "total": np.array([total], np.int32),
    }  # fmt: skip
    binding, taken = ran.io_binding(), {one.name for one in ran.get_inputs()}
    for what, array in feeds.items():
        if what in taken:
            binding.bind_cpu_input(what, array)
    for letter, cache in zip("kv", caches, strict=True):
        buffer = np.zeros((batch, HEADS, places, DEPTH), np.float32)
        buffer[:, :, :past] = cache
        value = onnxruntime.OrtValue.ortvalue_from_numpy(buffer)
        binding.bind_ortvalue_input(f"past_{letter}", value)
        if in_place:
            binding.bind_ortvalue_output(f"new_{letter}", value)
        else:
            binding.bind_output(f"new_{letter}")
    binding.bind_output("y")
    ran.run_with_iobinding(binding)
    # They come in the order in which they were bound.
    found = dict(zip(("new_k", "new_v", "y"), binding.copy_outputs_to_cpu(), strict=True))
    whole_k, whole_v = (np.concatenate(pair, axis=2) for pair in zip(caches, (k, v), strict=True))
    assert np.array_equal(found["new_k"][:, :, :total], whole_k), name
    assert np.array_equal(found["new_v"][:, :, :total], whole_v), name
    assert np.abs(found["y"].reshape(q.shape) - expected(q, whole_k, whole_v)).max() < 1e-5, name

    def run() -> None:
        ran.run_with_iobinding(binding)

    return run


def main() -> None:
    """Prints a line for each case."""
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("--rounds", type=int, default=60)
    given = parsed.parse_args()
    sessions = {name: session(name) for name in FORMS}
    draw = np.random.default_rng(1)
    for batch, past in CASES:
        runs = [bound(name, sessions[name], batch, past) for name in FORMS]
        taken: list[list[int]] = [[] for _ in runs]
        for _ in range(given.rounds):
            for at in draw.permutation(len(runs)):
                began = time.perf_counter_ns()
                runs[at]()
                taken[at].append(time.perf_counter_ns() - began)
        first = median(taken[0])
        print(f"{batch} x {past}: " + ", ".join(
            f"{name} {median(times) / 1000:.0f} us ({median(times) / first:.2f})"
            for name, times in zip(FORMS, taken, strict=True)
        ), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
