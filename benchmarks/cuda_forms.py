"""Ways to write one attention for ONNX Runtime on CUDA: the kernel that each becomes, its error, and its time.

    python benchmarks/cuda_forms.py [--device cpu] [-o FILE.json]

fp16, with every mask given as bool `[B,1,S,T]`. What is timed is the attention with what a form needs around it: the
cache put together, transpositions, repeated heads, the mask as a bias. Inputs and outputs are bound to memory of the
device, and a form runs as a CUDA graph; times are medians of 7 turns of 10 calls by the host's clock, until the device
is done. The kernel is what ONNX Runtime prints (attnport/runtimes/_ort.py). Errors are the largest beside
float64, and beside zero in a row without an allowed key. `--device cpu` shows that the graphs are right without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attnport.runtimes._cuda import load_cuda
from attnport.runtimes._ort import printed_kernels

HALF = TensorProto.FLOAT16
CONTRIB = "com.microsoft"
LLAMA, BERT = {"heads": 32, "groups": 4, "depth": 64}, {"heads": 12, "groups": 12, "depth": 64}
FORMS = ("repeated", "repeated, keys as cached", "folded", "Attention")
STEP_FORMS = ("products", "folded, column", "grouped, column", "grouped, no padding")
"""Of one new token: a mask of keys alone can be a column of q and k, and the causal one hides nothing."""
COLUMN = 8
"""Columns of q, k and v in those forms: flash attention takes depths that are multiples of 8."""
TURNS, CALLS = 7, 10


@dataclass(frozen=True)
class Sizes:
    """Of one attention: `new` queries behind `past` cached keys; `heads` of queries share `groups` of keys."""

    batch: int
    new: int
    past: int
    heads: int
    groups: int
    depth: int

    @property
    def keys(self) -> int:
        """T."""
        return self.past + self.new

    def __str__(self) -> str:
        return f"{self.batch} x {self.new} behind {self.past}, {self.heads} heads in {self.groups} groups"


CASES = (
    Sizes(8, 1, 2047, **LLAMA),
    Sizes(1, 1, 2047, **LLAMA),
    Sizes(8, 504, 8, **LLAMA),
    Sizes(8, 512, 0, **BERT),
    Sizes(32, 128, 0, **BERT),
    Sizes(2, 513, 0, **BERT),
)


class Graph:
    """Nodes in order; constants are named by the node that takes them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def const(self, array: Any) -> str:
        """Adds a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name


def model(form: str, sizes: Sizes) -> onnx.ModelProto:
    """q `[B,H,S,D]`, k and v `[B,G,S,D]`, the cache `[B,G,P,D]`, mask `[B,1,S,T]`; gives y."""
    B, S, P, T, H, G, D = (
        sizes.batch, sizes.new, sizes.past, sizes.keys, sizes.heads, sizes.groups, sizes.depth,
    )  # fmt: skip
    graph, each = Graph(), H // G
    k, v = (graph.add("Concat", f"past_{name}", name, axis=2) if P else name for name in "kv")
    if form == "Attention":
        y = graph.add("Attention", "q", k, v, "mask")
    elif form in STEP_FORMS:
        y = _step(graph, form, sizes, k, v)
    else:
        zero, low = graph.const(np.float16(0)), graph.const(np.float16(-np.inf))
        bias = graph.add("Where", "mask", zero, low)
        if form == "folded":
            wide = graph.add("Expand", graph.add("Unsqueeze", bias, graph.const([3])), graph.const([B, 1, S, each, T]))
            bias = graph.add("Reshape", wide, graph.const([B, 1, S * each, T]))
            apart = graph.add("Reshape", "q", graph.const([B, G, each, S, D]))
            q = graph.add("Transpose", apart, perm=[0, 3, 2, 1, 4])
            q = graph.add("Reshape", q, graph.const([B, S * each, G * D]))
        else:
            q = graph.add("Reshape", graph.add("Transpose", "q", perm=[0, 2, 1, 3]), graph.const([B, S, H * D]))
            k, v = (_repeated(graph, value, sizes, as_cached=form != "repeated") for value in (k, v))
        heads = G if form == "folded" else H
        options: dict[str, Any] = {"num_heads": heads, "scale": D**-0.5}
        y = graph.add("MultiHeadAttention", q, k, v, "", "", bias, domain=CONTRIB, **options)
        if form == "folded":
            apart = graph.add("Reshape", y, graph.const([B, S, each, G, D]))
            y = graph.add("Transpose", apart, perm=[0, 1, 3, 2, 4])
            y = graph.add("Reshape", y, graph.const([B, S, H * D]))
    shapes = {"q": (B, H, S, D), "k": (B, G, S, D), "v": (B, G, S, D)}
    shapes |= {"past_k": (B, G, P, D), "past_v": (B, G, P, D)} if P else {}
    inputs = [helper.make_tensor_value_info(name, HALF, shape) for name, shape in shapes.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, (B, 1, S, T)))
    output = helper.make_tensor_value_info(y, HALF, None)
    made = helper.make_graph(graph.nodes, "forms", inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def _repeated(graph: Graph, value: str, sizes: Sizes, *, as_cached: bool) -> str:
    """Keys or values with each head as often as it is shared: `[B,H,T,D]`, or `[B,T,H*D]`."""
    axis = 2 if as_cached else 3
    if not as_cached:
        value = graph.add("Transpose", value, perm=[0, 2, 1, 3])
    repeats = [1] * 5
    repeats[axis] = sizes.heads // sizes.groups
    value = graph.add("Expand", graph.add("Unsqueeze", value, graph.const([axis])), graph.const(repeats))
    B, T, H, D = sizes.batch, sizes.keys, sizes.heads, sizes.depth
    return graph.add("Reshape", value, graph.const([B, H, T, D] if as_cached else [B, T, H * D]))


def _step(graph: Graph, form: str, sizes: Sizes, k: str, v: str) -> str:
    """One of STEP_FORMS, `[B,1,H*D]`: keys and values with the new ones go in as k and v, `[B,G,T,D]`."""
    B, P, T, H, G, D = sizes.batch, sizes.past, sizes.keys, sizes.heads, sizes.groups, sizes.depth
    zero, low = graph.const(np.float16(0)), graph.const(np.float16(-65504))
    if form == "products":
        q = graph.add("Reshape", "q", graph.const([B, G, H // G, D]))
        q = graph.add("Mul", q, graph.const(np.float16(D**-0.5)))
        scores = graph.add("MatMul", q, graph.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = graph.add("Add", scores, graph.add("Where", "mask", zero, low))
        y = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), v)
        return graph.add("Reshape", y, graph.const([B, 1, H * D]))
    wide = D if form == "grouped, no padding" else D + COLUMN
    q, past_k, past_v, new_k, new_v = graph.add("Reshape", "q", graph.const([B, 1, H, D])), "past_k", "past_v", "k", "v"
    if wide != D:
        ones = np.zeros((B, 1, H, COLUMN), np.float16)
        ones[..., 0] = 1
        q = graph.add("Concat", q, graph.const(ones), axis=3)
        column = graph.add("Transpose", graph.add("Where", "mask", zero, low), perm=[0, 1, 3, 2])
        column = graph.add("Pad", column, graph.const([0] * 7 + [COLUMN - 1]))
        column = graph.add("Expand", column, graph.const([B, G, T, COLUMN]))
        pads = graph.const([0] * 7 + [COLUMN])
        if form == "folded, column":
            k, v = graph.add("Concat", k, column, axis=3), graph.add("Pad", v, pads)
        else:
            starts, middle, ends, axis = (graph.const([number]) for number in (0, P, T, 2))
            past_k = graph.add("Concat", "past_k", graph.add("Slice", column, starts, middle, axis), axis=3)
            new_k = graph.add("Concat", "k", graph.add("Slice", column, middle, ends, axis), axis=3)
            past_v, new_v = graph.add("Pad", "past_v", pads), graph.add("Pad", "v", pads)
    options: dict[str, Any] = {"scale": D**-0.5}
    if form == "folded, column":
        q = graph.add("Reshape", q, graph.const([B, G, H // G, wide]))
        q = graph.add("Reshape", graph.add("Transpose", q, perm=[0, 2, 1, 3]), graph.const([B, H // G, G * wide]))
        y = graph.add("MultiHeadAttention", q, k, v, domain=CONTRIB, num_heads=G, **options)
        y = graph.add("Transpose", graph.add("Reshape", y, graph.const([B, H // G, G, wide])), perm=[0, 2, 1, 3])
        y = graph.add("Reshape", y, graph.const([B, 1, H, wide]))
    else:
        new_k, new_v = (graph.add("Reshape", one, graph.const([B, 1, G * wide])) for one in (new_k, new_v))
        last, total = graph.const(np.full(B, T - 1, np.int32)), graph.const(np.array([T], np.int32))
        rows = graph.add("Reshape", q, graph.const([B, 1, H * wide]))
        y = graph.add(
            "GroupQueryAttention", rows, new_k, new_v, past_k, past_v, last, total, domain=CONTRIB,
            num_heads=H, kv_num_heads=G, **options,
        )  # fmt: skip
        graph.nodes[-1].output.extend(["present_k", "present_v"])
        y = graph.add("Reshape", y, graph.const([B, 1, H, wide]))
    if wide != D:
        y = graph.add("Slice", y, graph.const([0]), graph.const([D]), graph.const([3]))
    return graph.add("Reshape", y, graph.const([B, 1, H * D]))


def feeds(sizes: Sizes) -> dict[str, np.ndarray]:
    """Random tensors; a third of the last item's keys is hidden, and every key from the first item's first query."""
    rng = np.random.default_rng(0)
    made = {}
    for value in model("Attention", sizes).graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        made[value.name] = rng.standard_normal(shape, np.float32).astype(np.float16)
    mask = np.ones((sizes.batch, 1, sizes.new, sizes.keys), bool)
    mask[-1, :, :, : sizes.keys // 3] = False
    mask[0, :, 0] = False
    return made | {"mask": mask}


def reference(sizes: Sizes, given: dict[str, np.ndarray]) -> np.ndarray:
    """`[B,S,H,D]` in float64; zero in a row without an allowed key."""
    exact = {name: array.astype(np.float64) for name, array in given.items() if name != "mask"}
    k, v = (np.concatenate([exact[f"past_{name}"], exact[name]], 2) if sizes.past else exact[name] for name in "kv")
    k, v = (np.repeat(array, sizes.heads // sizes.groups, axis=1) for array in (k, v))
    scores = np.where(given["mask"], exact["q"] @ k.swapaxes(-1, -2) * sizes.depth**-0.5, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return (weights / np.where(total, total, 1) @ v).swapaxes(1, 2)


def measured(form: str, sizes: Sizes, device: str, kernels_allowed: str = "") -> dict[str, Any]:
    """What one form does; `problem` where it does not run. `kernels_allowed` is the option `sdpa_kernel`."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    data, given = model(form, sizes).SerializeToString(), feeds(sizes)

    def opened(**options: str) -> Any:
        options |= {"sdpa_kernel": kernels_allowed} if kernels_allowed else {}
        provider = "CPUExecutionProvider" if device == "cpu" else ("CUDAExecutionProvider", options)
        return ort.InferenceSession(data, settings, providers=[provider], enable_fallback=0)

    def bound(session: Any, output: Any = None) -> Any:
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        name = session.get_outputs()[0].name
        _ = binding.bind_output(name, device) if output is None else binding.bind_ortvalue_output(name, output)
        return binding

    try:
        values = {name: ort.OrtValue.ortvalue_from_numpy(array, device, 0) for name, array in given.items()}
        with printed_kernels() as kernels:
            session = opened()
            binding = bound(session)
            session.run_with_iobinding(binding)
        output = binding.get_outputs()[0]
        got = output.numpy().astype(np.float64)
        graph = opened(enable_cuda_graph="1")
        replay = bound(graph, output)
        graph.run_with_iobinding(replay)
        turns = []
        for _ in range(TURNS):
            began = time.perf_counter()
            for _ in range(CALLS):
                graph.run_with_iobinding(replay)
            turns.append((time.perf_counter() - began) / CALLS)
    except Exception as err:  # a runtime's own exceptions share no base
        return {"problem": str(err).splitlines()[0][:200]}
    got = got.swapaxes(1, 2) if got.ndim == 4 else got.reshape(sizes.batch, sizes.new, sizes.heads, sizes.depth)
    error = np.abs(got - reference(sizes, given))
    error[~np.isfinite(error)] = np.inf
    empty = ~given["mask"].any(-1)[:, 0]
    return {
        "kernel": ", ".join(sorted({name for names in kernels.values() for name in names})),
        "error": float(error[~empty].max(initial=0.0)),
        "error_without_a_key": float(error[empty].max(initial=0.0)),
        "us": 1e6 * statistics.median(turns),
    }


def by_torch(sizes: Sizes) -> dict[str, Any]:
    """`scaled_dot_product_attention` alone, without putting the cache together, as a CUDA graph."""
    import torch

    given = {name: torch.from_numpy(array).cuda() for name, array in feeds(sizes).items()}
    k, v = (torch.cat([given[f"past_{name}"], given[name]], 2) if sizes.past else given[name] for name in "kv")

    def call() -> None:
        torch.nn.functional.scaled_dot_product_attention(
            given["q"], k, v, attn_mask=given["mask"], enable_gqa=sizes.groups != sizes.heads
        )

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    turns = []
    for _ in range(TURNS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            graph.replay()
        torch.cuda.synchronize()
        turns.append((time.perf_counter() - began) / CALLS)
    return {"us": 1e6 * statistics.median(turns)}


def main() -> None:
    """Prints a table, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    if asked.device == "cuda":
        load_cuda()
    import onnxruntime as ort

    found: dict[str, dict[str, Any]] = {}
    for sizes in CASES:
        print(sizes)
        forms = [(form, "") for form in (*FORMS, *(STEP_FORMS if sizes.new == 1 else ()))]
        if asked.device == "cuda":  # without cuDNN's: flash, memory-efficient and math
            forms += [(form, "19") for form, _ in forms if form != "products"]
        for form, allowed in forms:
            row = measured(form, sizes, asked.device, allowed)
            form += " without cuDNN" if allowed else ""
            found.setdefault(str(sizes), {})[form] = row
            told = (
                row.get("problem")
                or "{us:8.1f} us  error {error:.1e}  without a key {error_without_a_key:.1e}  {kernel}"
            )
            print(f"  {form:40s} {told.format(**row) if 'us' in row else told}", flush=True)
        if asked.device == "cuda":
            row = found[str(sizes)]["torch scaled_dot_product_attention"] = by_torch(sizes)
            print(f"  {'torch, attention alone':26s} {row['us']:8.1f} us", flush=True)
    if asked.output:
        asked.output.write_text(json.dumps({"onnxruntime": ort.__version__, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
