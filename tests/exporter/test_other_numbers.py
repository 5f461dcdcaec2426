"""Graphs that look like attention and are another one: a lowered form gives their numbers, or they stay as they are.

Each stands beside a spelling that is fused, from which it differs in one place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from attnport.exporter.counting import count_in_graph
from attnport.exporter.fusion.recognise import leads_to_product
from attnport.exporter.imported import prepare
from attnport.exporter.targets import base

Feeds = dict[str, np.ndarray[Any, Any]]
QKV = "float[B,2,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v"
PRODUCT = "kt = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, kt) low = Constant<value_float=-inf>()"
KEYS = "axes = Constant<value_ints=[1,2]>() keys = Unsqueeze(m, axes) masked = Where(keys, s, low)"
ROWS = """
    n = Shape<start=2,end=3>(q) t = Shape<start=2,end=3>(k) zero = Constant<value_int=0>() one = Constant<value_int=1>()
    n0 = Squeeze(n) t0 = Squeeze(t) is = Range(zero, n0, one) js = Range(zero, t0, one)
    a0 = Constant<value_ints=[0]>() a1 = Constant<value_ints=[1]>() i = Unsqueeze(is, a1) j = Unsqueeze(js, a0)"""
FAR = "far = Constant<value_float=-1000000000.0>()"
SEGMENTS = (
    "float[1,8] q, float[B,T,8] k, float[B,T,8] v, bool[B,S,T] m",
    """kt = Transpose<perm=[0,2,1]>(k) s = MatMul(q, kt) low = Constant<value_float=-inf>() masked = Where(m, s, low)
       p = Softmax<axis=-1>(masked) y = MatMul(p, v)""",
)
GRAPHS = {
    "one query for many rows of a mask": SEGMENTS,
    "one head for many heads of a mask": (
        "float[B,1,S,8] q, float[B,1,T,8] k, float[B,2,T,8] v, bool[B,2,S,T] m",
        f"{PRODUCT} masked = Where(m, s, low) p = Softmax<axis=-1>(masked) y = MatMul(p, v)",
    ),
    "the maximum over queries": (
        QKV,
        """qt = Transpose<perm=[0,1,3,2]>(q) s = MatMul(k, qt) last = Constant<value_ints=[-1]>()
           most = ReduceMax<keepdims=1>(s, last) less = Sub(s, most) pt = Softmax<axis=-2>(less)
           p = Transpose<perm=[0,1,3,2]>(pt) y = MatMul(p, v)""",
    ),
    "-inf that is clamped": (
        f"{QKV}, bool[B,T] m",
        f"""{PRODUCT} {KEYS} least = Constant<value_float=-3.4028234663852886e38>() clamped = Max(masked, least)
            p = Softmax<axis=-1>(clamped) y = MatMul(p, v)""",
    ),
    "-inf that is added and clamped": (
        f"{QKV}, bool[B,T] m",
        f"""{PRODUCT} axes = Constant<value_ints=[1,2]>() keys = Unsqueeze(m, axes) none = Constant<value_float=0.0>()
            hidden = Where(keys, none, low) masked = Add(s, hidden)
            least = Constant<value_float=-3.4028234663852886e38>() clamped = Max(masked, least)
            p = Softmax<axis=-1>(clamped) y = MatMul(p, v)""",
    ),
    "another number for a row without a key": (
        f"{QKV}, bool[B,T] m",
        f"""{PRODUCT} {KEYS} p = Softmax<axis=-1>(masked) none = IsNaN(p) fifth = Constant<value_float=0.2>()
            filled = Where(none, fifth, p) y = MatMul(filled, v)""",
    ),
    "a mask from values": (
        f"{QKV}, float[B,T,8] x",
        f"""{PRODUCT} {FAR} size = Abs(x) two = Constant<value_ints=[2]>() sum = ReduceSum<keepdims=0>(size, two)
            nothing = Constant<value_float=0.0>() empty = Equal(sum, nothing) axes = Constant<value_ints=[1,2]>()
            keys = Unsqueeze(empty, axes) masked = Where(keys, far, s) p = Softmax<axis=-1>(masked) y = MatMul(p, v)""",
    ),
    "causal from the lower right": (
        QKV,
        f"""{PRODUCT} {FAR} {ROWS} shift = Sub(t0, n0) end = Add(i, shift) keep = LessOrEqual(j, end)
            masked = Where(keep, s, far) p = Softmax<axis=-1>(masked) y = MatMul(p, v)""",
    ),
    "a key that repeats the last score": (
        QKV,
        f"""{PRODUCT} pads = Constant<value_ints=[0,0,0,0,0,0,0,1]>() more = Pad<mode="edge">(s, pads)
            w = Softmax<axis=-1>(more) from = Constant<value_ints=[0]>() to = Constant<value_ints=[-1]>()
            last = Constant<value_ints=[3]>() p = Slice(w, from, to, last) y = MatMul(p, v)""",
    ),
    "a window and numbers that hide keys": (
        f"{QKV}, float[B,T] x",
        f"""{ROWS} apart = Sub(i, j) distance = Abs(apart) four = Constant<value_int=4>()
            near = LessOrEqual(distance, four) half = Constant<value_float=0.5>()
            shown = Greater(x, half) axes = Constant<value_ints=[1,2]>()
            keys = Unsqueeze(shown, axes) keep = And(near, keys) y = Attention(q, k, v, keep)""",
    ),
    "lengths above the number of keys": (
        f"{QKV}, int64[B] n_keys",
        f"""{ROWS} before = LessOrEqual(j, i) numbers = Unsqueeze(n_keys, a1) counted = Less(j, numbers)
            axes = Constant<value_ints=[1,2]>() keys = Unsqueeze(counted, axes) keep = And(before, keys)
            y = Attention(q, k, v, keep)""",
    ),
    "scores in another type": (
        QKV,
        """qd = Cast<to=11>(q) kd = Cast<to=11>(k) kt = Transpose<perm=[0,1,3,2]>(kd) s = MatMul(qd, kt)
           pd = Softmax<axis=-1>(s) p = Cast<to=1>(pd) y = MatMul(p, v)""",
    ),
}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def fed(declared: str, queries: int, keys: int) -> Feeds:
    random = np.random.default_rng(0)
    sizes = {"B": 2, "S": queries, "T": keys}
    feeds: Feeds = {}
    for text in declared.replace(", ", "|").split("|"):
        kind, _, rest = text.partition("[")
        dims, _, name = rest.partition("] ")
        shape = [int(dim) if dim.isdigit() else sizes[dim] for dim in dims.split(",")]
        feeds[name] = random.standard_normal(shape, np.float32)
        if kind == "bool":
            feeds[name] = random.random(shape) < 0.6
            feeds[name][..., 0] = True
            if len(shape) == 2:
                feeds[name][1] = False  # an item without a key
        if name == "x":
            feeds[name][1] = 0
        if kind == "int64":
            feeds[name] = np.array([keys + 40, keys - 5])
    return feeds


@pytest.mark.parametrize("target", ["onnx", "onnx_18", "ort_cpu"])
@pytest.mark.parametrize("name", GRAPHS)
def test_it_gives_its_own_numbers(name: str, target: str) -> None:
    inputs, body = GRAPHS[name]
    shape = "B,2,S,8" if "float[B,2,T,8] v" in inputs else "B,S,8"
    text = f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => (float[{shape}] y) {{ {body} }}'
    of_one_length = "window" in name or "lengths" in name
    model = onnx.parser.parse_model(text.replace(",T", ",S") if of_one_length else text)
    feeds = fed(inputs, *((200, 200) if of_one_length else (6, 4)))
    (expected,) = session(model).run(None, feeds)
    ours = prepare(ir.from_proto(model))
    lowered = base.get(target).lower(ours, count_in_graph(ours), plan="fp32", masks=(), sizes={"S": 512})
    (got,) = session(ir.to_proto(lowered.model)).run(None, feeds)
    whole = ~np.isnan(expected)
    np.testing.assert_allclose(got[whole], expected[whole], atol=1e-4)


def test_a_chain_of_sums_of_a_value_with_itself_is_read_once() -> None:
    sums = " ".join(f"b{at + 1} = Add(b{at}, b{at})" for at in range(40))
    text = f'<ir_version: 10, opset_import: ["" : 23]> g (float[5] b0) => (float[5] b40) {{ {sums} }}'
    assert not leads_to_product(ir.from_proto(onnx.parser.parse_model(text)).graph.outputs[0])
