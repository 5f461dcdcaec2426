"""Tiny graphs of one attention, written by hand, and their contracts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from attnport.artifacts import IOContract
from attnport.dims import Dim, Profile, TensorSpec

NAMES = {"float16": "float16", "float32": "float", "bfloat16": "bfloat16"}
HEADS, SIZE = 2, 32
ANCHORS = {"attn": ("attn/qk", "attn/softmax", "attn/pv")}
"""Of `decomposed`."""

DECOMPOSED = """
    [n="{p}/kt"] {p}kt = Transpose<perm=[0,1,3,2]>({k})
    [n="{p}/qk"] {p}s = MatMul({q}, {p}kt)
    [n="{p}/scale"] {p}c = Mul({p}s, scale)
    [n="{p}/where"] {p}w = Where(mask, {p}c, ninf)
    [n="{p}/softmax"] {p}p = Softmax<axis=-1>({p}w)
    [n="{p}/isnan"] {p}n = IsNaN({p}p)
    [n="{p}/guard"] {p}g = Where({p}n, zero, {p}p)
    [n="{p}/pv"] {p}o = MatMul({p}g, {v})
"""


def write(path: Path, lines: str, inputs: str, outputs: str, dtype: str, opset: int = 18) -> Path:
    """Parses `lines` in ONNX's text form (with `[n="name"]` before a node that needs a name) and saves the model."""
    names, plain = [], []
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, _, rest = line.partition("] ") if line.startswith("[n=") else ("", "", line)
        names.append(name.removeprefix('[n="').removesuffix('"'))
        plain.append(rest)
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {" ".join(plain)} }}'
    model = onnx.parser.parse_model(text)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    kind = onnx.TensorProto.DataType.Value(NAMES[dtype].upper())
    for name, value in {"scale": 0.17, "ninf": -np.inf, "zero": 0.0}.items():
        model.graph.initializer.append(onnx.helper.make_tensor(name, kind, [], [value]))
    onnx.save(model, path)
    return path


def decomposed(path: Path, dtype: str = "float16", size: int = SIZE, layers: int = 1) -> Path:
    """Attention with a key padding mask, as separate nodes; with `layers` > 1 each attends the output of the last."""
    t = NAMES[dtype]
    qkv = ", ".join(f"{t}[batch,{HEADS},seq,{size}] {name}" for name in "qkv")
    lines = DECOMPOSED.format(p="attn", q="q", k="k", v="v")
    for layer in range(1, layers):
        before = "attn" if layer == 1 else f"attn{layer - 1}"
        lines += DECOMPOSED.format(p=f"attn{layer}", q=f"{before}o", k="k", v="v")
    last = "attn" if layers == 1 else f"attn{layers - 1}"
    return write(path, lines, f"{qkv}, bool[batch,1,1,seq] mask", f"{t}[batch,{HEADS},seq,{size}] {last}o", dtype)


CAUSAL = """
    start = Constant<value = int64 {0}>()
    step = Constant<value = int64 {1}>()
    columns = Constant<value_ints = [1]>()
    rows = Constant<value_ints = [0]>()
    length = Shape<start=2,end=3>(q)
    end = Squeeze(length)
    range = Range(start, end, step)
    query = Unsqueeze(range, columns)
    key = Unsqueeze(range, rows)
    causal = LessOrEqual(key, query)
"""


def masked_twice(path: Path) -> Path:
    """Attention whose scores pass two `Where` in a row, one causal: the builder of TensorRT-RTX 1.7.1 crashes on it."""
    once, twice = "Where(mask, {p}c, ninf)", "Where(mask, {p}c, ninf)\n    {p}w2 = Where(causal, {p}w, ninf)"
    lines = DECOMPOSED.replace(once, twice).replace("({p}w)", "({p}w2)").format(p="attn", q="q", k="k", v="v")
    qkv = ", ".join(f"float16[batch,{HEADS},seq,{SIZE}] {name}" for name in "qkv")
    output = f"float16[batch,{HEADS},seq,{SIZE}] attno"
    return write(path, CAUSAL + lines, f"{qkv}, bool[batch,1,1,seq] mask", output, "float16")


def operator(path: Path, dtype: str = "float16", opset: int = 23, call: str = "Attention(q, k, v, mask)") -> Path:
    """The same as one Attention operator."""
    t = NAMES[dtype]
    inputs = [f"{t}[batch,{HEADS},seq,{SIZE}] {name}" for name in "qkv"]
    inputs += ["bool[batch,1,1,seq] mask"] * ("mask" in call) + ["int64[batch] lengths"] * ("lengths" in call)
    return write(path, f'[n="attn"] o = {call}', ", ".join(inputs), f"{t}[batch,{HEADS},seq,{SIZE}] o", dtype, opset)


def contract(
    dtype: str = "float16", seq: int = 256, batch: int = 4, size: int = SIZE, lengths: bool = False, output: str = "o"
) -> IOContract:
    """The contract of these graphs; `lengths`: key lengths in place of the mask."""
    dims: tuple[str | int, ...] = ("batch", HEADS, "seq", size)
    mask = TensorSpec("mask", "bool", ("batch", 1, 1, "seq"))
    return IOContract(
        inputs=(
            *(TensorSpec(name, dtype, dims) for name in "qkv"),
            TensorSpec("lengths", "int64", ("batch",)) if lengths else mask,
        ),
        outputs=(TensorSpec(output, dtype, dims),),
        dims=(Dim("batch", 1, min(2, batch), batch), Dim("seq", 1, min(64, seq), seq)),
    )


def profile(batch: tuple[int, int, int] = (1, 2, 4), seq: tuple[int, int, int] = (1, 64, 256)) -> Profile:
    """An optimization profile of these graphs."""
    return Profile((Dim("batch", *batch), Dim("seq", *seq)))
