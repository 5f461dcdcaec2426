"""The forms of one attention on ONNX Runtime's CPU kernels: which is the fastest for a mask, a length and a head dim.

    python benchmarks/ort_forms.py [--sizes 1x128,1x2048] [--masks none,padding,dense,causal] [--depths 32,64]
        [--heads 12] [--key-heads 12] [--layers 4] [--seconds 4] [-o FILE.json]

Each graph holds a few attentions in a row between tensors `[B,S,H*D]`, as a transformer has them, with what a form
needs beside its operator: transpositions, repeated heads, and the mask, which is made once from int64 `[B,T]` for all
layers. All forms of a case are sessions of one process, run in turns in random order, so that a slow moment of the
machine hits all. A session of one thread computes in the thread that calls it, so samples are that thread's CPU time:
what other processes take away does not count. Printed are medians and their ratios to the first form.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP, LEAST_RUNS, MOST_RUNS = 2, 5, 61
LOW = "-3.4028234e38"


@dataclass(frozen=True)
class Case:
    """Sizes of one attention and its mask: none, padding (by key), causal, or dense (causal and padding)."""

    batch: int
    length: int
    heads: int
    key_heads: int
    depth: int
    mask: str
    layers: int

    def __str__(self) -> str:
        heads = f"H={self.heads}" + (f" G={self.key_heads}" if self.key_heads != self.heads else "")
        return f"{self.batch}x{self.length} {heads} D={self.depth} {self.mask}"


# What each mask is made into, once a graph: `keep` is bool[B,1,1,T]; S and T are one size.
_FULL = """
 one = Constant<value_ints=[1]>() size = Shape<start=1, end=2>(mask) target = Concat<axis=0>(one, one, size, size)
"""
_KEEP = {
    "padding": _FULL + " kb = Cast<to=9>(mask) axes = Constant<value_ints=[1,2]>() keep = Unsqueeze(kb, axes)",
    "causal": _FULL
    + """ zero = Constant<value_int=0>() step = Constant<value_int=1>() size0 = Squeeze(size)
 js = Range(zero, size0, step) jaxes = Constant<value_ints=[0,1,2]>() j = Unsqueeze(js, jaxes)
 iaxes = Constant<value_ints=[0,1,3]>() i = Unsqueeze(js, iaxes) keep = LessOrEqual(j, i)""",
}
_KEEP["dense"] = (
    _KEEP["causal"].replace("keep =", "kc =")
    + " kb = Cast<to=9>(mask) axes = Constant<value_ints=[1,2]>() kp = Unsqueeze(kb, axes) keep = And(kc, kp)"
)
_BOOL = " m = Expand(keep, target)"
_FLOAT = _BOOL + " low = Constant<value_float=-inf>() nil = Constant<value_float=0.0>() f = Where(m, nil, low)"
_ROWS = """
 ki = Cast<to=6>(keep) last = Constant<value_ints=[-1]>() most = ReduceMax<keepdims=1>(ki, last) some = Cast<to=9>(most)
 none = Constant<value_float=0.0>()
"""


def _split(x: str, to: str, heads: int, depth: int) -> str:
    return (
        f" {to}_shape = Constant<value_ints=[0,0,{heads},{depth}]>() {to}_4 = Reshape({x}, {to}_shape)"
        f" {to} = Transpose<perm=[0,2,1,3]>({to}_4)"
    )


def _join(x: str, to: str, case: Case) -> str:
    return (
        f" {to}_t = Transpose<perm=[0,2,1,3]>({x}) {to}_shape = Constant<value_ints=[0,0,{case.heads * case.depth}]>()"
        f" {to} = Reshape({to}_t, {to}_shape)"
    )


def _repeat(x: str, to: str, case: Case) -> str:
    times = case.heads // case.key_heads
    if times == 1:
        return f" {to} = Identity({x})"
    return (
        f" {to}_axis = Constant<value_ints=[2]>() {to}_5 = Unsqueeze({x}, {to}_axis)"
        f" {to}_each = Constant<value_ints=[1,1,{times},1,1]>() {to}_6 = Expand({to}_5, {to}_each)"
        f" {to}_shape = Constant<value_ints=[0,{case.heads},-1,{case.depth}]>() {to} = Reshape({to}_6, {to}_shape)"
    )


def _attention(mask: str, attributes: str = "") -> Callable[[Case, str, str], str]:
    """The standard's operator on rank 4."""

    def write(case: Case, x: str, y: str) -> str:
        G, D = case.key_heads, case.depth
        parts = [_split(x, f"{y}q", case.heads, D), _split("k", f"{y}k", G, D), _split("v", f"{y}v", G, D)]
        given = f", {mask}" if mask else ""
        return f"{''.join(parts)} {y}o = Attention{attributes}({y}q, {y}k, {y}v{given}){_join(f'{y}o', y, case)}"

    return write


def _decomposed(mask: bool) -> Callable[[Case, str, str], str]:
    def write(case: Case, x: str, y: str) -> str:
        G, D = case.key_heads, case.depth
        text = _split(x, f"{y}q", case.heads, D) + _split("k", f"{y}kg", G, D) + _split("v", f"{y}vg", G, D)
        text += _repeat(f"{y}kg", f"{y}k", case) + _repeat(f"{y}vg", f"{y}v", case)
        text += f" {y}kt = Transpose<perm=[0,1,3,2]>({y}k) {y}c = Constant<value_float={1 / math.sqrt(D):.9f}>()"
        text += f" {y}qs = Mul({y}q, {y}c) {y}s = MatMul({y}qs, {y}kt)"
        if mask:
            text += f" {y}low = Constant<value_float={LOW}>() {y}m = Where(keep, {y}s, {y}low)"
        text += f" {y}p = Softmax<axis=-1>({y}{'m' if mask else 's'}) {y}o = MatMul({y}p, {y}v)"
        text += f" {y}g = Where(some, {y}o, none)" if mask else ""
        return text + _join(f"{y}{'g' if mask else 'o'}", y, case)

    return write


def _repeat_rows(case: Case, y: str) -> tuple[str, str, str]:
    """Grouped heads of k and v as `[B,T,H*D]`, repeated: the text and the two names."""
    if case.key_heads == case.heads:
        return "", "k", "v"
    text, times, wide = "", case.heads // case.key_heads, case.heads * case.depth
    for name, to in (("k", f"{y}k"), ("v", f"{y}v")):
        text += (
            f" {to}_shape = Constant<value_ints=[0,0,{case.key_heads},1,{case.depth}]>()"
            f" {to}_5 = Reshape({name}, {to}_shape) {to}_each = Constant<value_ints=[1,1,1,{times},1]>()"
            f" {to}_6 = Expand({to}_5, {to}_each) {to}_rows = Constant<value_ints=[0,0,{wide}]>()"
            f" {to} = Reshape({to}_6, {to}_rows)"
        )
    return text, f"{y}k", f"{y}v"


def _zero_without_keys(y: str) -> str:
    return (
        f" {y}some_a = Constant<value_ints=[1]>() {y}some = Squeeze(some, {y}some_a) {y} = Where({y}some, {y}u, none)"
    )


def _contrib(mask: str, attributes: str = "", guard: bool = False) -> Callable[[Case, str, str], str]:
    """com.microsoft.MultiHeadAttention on `[B,S,H*D]`, grouped heads repeated."""

    def write(case: Case, x: str, y: str) -> str:
        text, k, v = _repeat_rows(case, y)
        result = f"{y}u" if guard else y
        text += (
            f" {result} = com.microsoft.MultiHeadAttention<num_heads={case.heads}{attributes}>({x}, {k}, {v}, {mask})"
        )
        return text + (_zero_without_keys(y) if guard else "")

    return write


_COLUMNS = """
 lead = Shape<end=2>(mask) tail = Constant<value_ints=[1,1]>() column = Concat<axis=0>(lead, tail)
 low_ = Constant<value_float=-1e30>() one_f = Constant<value_float=1.0>() hide = Where(keep, none, low_)
 hidden = Reshape(hide, column) ones = Expand(one_f, column)
"""


def _column(case: Case, x: str, y: str) -> str:
    """com.microsoft.MultiHeadAttention whose key padding is one more column of q and k: without a mask, it is flash."""
    text, k, v = _repeat_rows(case, y)
    for name, to, more in ((x, f"{y}q", "ones"), (k, f"{y}kc", "hidden")):
        text += (
            f" {to}_each = Constant<value_ints=[1,1,{case.heads},1]>() {to}_more = Expand({more}, {to}_each)"
            f" {to}_shape = Constant<value_ints=[0,0,{case.heads},{case.depth}]>() {to}_4 = Reshape({name}, {to}_shape)"
            f" {to}_5 = Concat<axis=3>({to}_4, {to}_more)"
            f" {to}_wide = Constant<value_ints=[0,0,{case.heads * (case.depth + 1)}]>()"
            f" {to}_rows = Reshape({to}_5, {to}_wide)"
        )
    scale = f", scale={1 / math.sqrt(case.depth):.9f}"
    text += f" {y}u = com.microsoft.MultiHeadAttention<num_heads={case.heads}{scale}>({y}q_rows, {y}kc_rows, {v})"
    return text + _zero_without_keys(y)


def _grouped(causal: int, bias: str) -> Callable[[Case, str, str], str]:
    """com.microsoft.GroupQueryAttention on `[B,S,H*D]` and `[B,T,G*D]`."""

    def write(case: Case, x: str, y: str) -> str:
        return (
            f" {y} = com.microsoft.GroupQueryAttention<num_heads={case.heads}, kv_num_heads={case.key_heads},"
            f" causal={causal}>({x}, k, v, , , lens, total, , , {bias})"
        )

    return write


_LENGTHS = """
 batch = Shape<end=1>(mask) size_ = Shape<start=1, end=2>(mask) one_ = Constant<value_ints=[1]>()
 less = Sub(size_, one_) less32 = Cast<to=6>(less) lens = Expand(less32, batch) total = Cast<to=6>(size_)
"""
_PAD = " kpm = Cast<to=6>(mask)"


def forms(mask: str) -> dict[str, tuple[str, Callable[[Case, str, str], str]]]:
    """By name, the shared part of the graph and what writes one attention."""
    found: dict[str, tuple[str, Callable[[Case, str, str], str]]] = {}
    if mask == "none":
        found["Attention"] = ("", _attention(""))
        found["decomposed"] = ("", _decomposed(False))
        found["MultiHeadAttention"] = ("", _contrib(""))
        found["GroupQueryAttention"] = (_LENGTHS, _grouped(0, ""))
        return found
    keep = _KEEP[mask]
    found["Attention, float mask"] = (keep + _FLOAT, _attention("f"))
    found["Attention, bool mask"] = (keep + _BOOL, _attention("m"))
    found["decomposed"] = (keep + _ROWS, _decomposed(True))
    found["MultiHeadAttention, bias"] = (keep + _FLOAT, _contrib(", , f"))
    if mask == "padding":
        key = _contrib(", kpm", f", mask_filter_value={LOW}", guard=True)
        found["MultiHeadAttention, key padding"] = (keep + _ROWS + _PAD, key)
        found["MultiHeadAttention, key padding as a column"] = (keep + _ROWS + _COLUMNS, _column)
        found["GroupQueryAttention, bias"] = (keep + _FLOAT + _LENGTHS, _grouped(0, ", f"))
    if mask == "causal":
        found["Attention, is_causal"] = ("", _attention("", "<is_causal=1>"))
        found["MultiHeadAttention, unidirectional"] = ("", _contrib("", ", unidirectional=1"))
        found["GroupQueryAttention"] = (_LENGTHS, _grouped(1, ""))
    if mask == "dense":
        found["GroupQueryAttention, bias"] = (keep + _FLOAT + _LENGTHS, _grouped(0, ", f"))
    return found


def model_text(case: Case, shared: str, write: Callable[[Case, str, str], str]) -> str:
    """The graph in ONNX's text form."""
    wide, narrow = case.heads * case.depth, case.key_heads * case.depth
    body = shared + "".join(write(case, f"y{at - 1}" if at else "q", f"y{at}") for at in range(case.layers))
    return (
        f'<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g (float[B,S,{wide}] q, float[B,S,{narrow}] k,'
        f" float[B,S,{narrow}] v, int64[B,S] mask) => (float[B,S,{wide}] y{case.layers - 1}) {{{body} }}"
    )


def session(text: str) -> Any:
    """A session of one thread that does not spin."""
    import onnx.parser
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    model = onnx.parser.parse_model(text)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feeds(case: Case) -> dict[str, Any]:
    """Random tensors; of each item, a last part of up to a third is padding."""
    rng = np.random.default_rng(0)
    wide, narrow = case.heads * case.depth, case.key_heads * case.depth
    made: dict[str, Any] = {
        name: rng.standard_normal((case.batch, case.length, size), np.float32)
        for name, size in (("q", wide), ("k", narrow), ("v", narrow))
    }
    mask = np.ones((case.batch, case.length), np.int64)
    for item in range(case.batch):
        mask[item, case.length - (item + 1) * case.length // (3 * case.batch) :] = 0
    return {**made, "mask": mask}


def measure(case: Case, seconds: float) -> dict[str, dict[str, Any]]:
    """By form: samples in ns for one attention, and the largest difference from the first form."""
    given = feeds(case)
    opened, results = {}, {}
    for name, (shared, write) in forms(case.mask).items():
        opened[name] = session(model_text(case, shared, write))
        used = {each.name for each in opened[name].get_inputs()}
        for _ in range(WARM_UP):
            results[name] = opened[name].run(None, {key: value for key, value in given.items() if key in used})[0]
    samples: dict[str, list[int]] = {name: [] for name in opened}
    order, began = random.Random(0), time.perf_counter()
    while len(next(iter(samples.values()))) < MOST_RUNS:
        if len(next(iter(samples.values()))) >= LEAST_RUNS and time.perf_counter() - began > seconds * len(opened):
            break
        for name in order.sample(list(opened), len(opened)):
            used = {each.name for each in opened[name].get_inputs()}
            given_now = {key: value for key, value in given.items() if key in used}
            start = time.thread_time_ns()
            opened[name].run(None, given_now)
            samples[name].append((time.thread_time_ns() - start) // case.layers)
    first = next(iter(results.values()))
    return {
        name: {
            "median_ns": int(statistics.median(found)),
            "samples_ns": found,
            "difference": float(np.abs(results[name] - first).max()),
        }
        for name, found in samples.items()
    }


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Every combination that was asked for."""
    for size in options.sizes.split(","):
        batch, length = map(int, size.split("x"))
        for depth in map(int, options.depths.split(",")):
            for mask in options.masks.split(","):
                yield Case(batch, length, options.heads, options.key_heads, depth, mask, options.layers)


def main() -> None:
    """Measures every case, prints the medians, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1x128,8x128,1x512,1x1024,1x2048,1x4096", help="B x S, S being T too")
    parser.add_argument("--masks", default="none,padding,dense,causal")
    parser.add_argument("--depths", default="32,64")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--key-heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4, help="for each form of a case")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    import onnxruntime as ort

    rows = []
    for case in cases(options):
        found = measure(case, options.seconds)
        base = next(iter(found.values()))["median_ns"]
        print(f"{case}  ({len(next(iter(found.values()))['samples_ns'])} runs)", flush=True)
        for name, row in found.items():
            print(f"  {row['median_ns'] / 1e6:9.3f} ms  {row['median_ns'] / base:5.2f}  {name}", flush=True)
            if row["difference"] > 1e-3:
                raise SystemExit(f"{case}, {name}: differs from the first form by {row['difference']:.1e}")
        rows.append({"case": str(case), "forms": found})
    result = {"onnxruntime": ort.__version__, "platform": platform.platform(), "threads": 1, "rows": rows}
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
