"""Writes linear layers, products of an activation with a weight of the model, in integers.

With int8, weights have a scale for each output channel, and activations, in uint8, one scale and zero point by the
ranges that they had on a user's own data. Both are written as `QuantizeLinear` and `DequantizeLinear`, which ONNX
Runtime and OpenVINO compute as integer products. Attention, norms and sums stay as they are. Two well-known steps keep
the numbers: channels with large activations are scaled down, and their weights up (SmoothQuant, Xiao et al. 2023), and
the mean error that rounding weights makes is taken out of the bias. On MiniLM this is nearer to float32 than the tools
that could do it instead: see docs/adr/0021-int8.md.

With weights of 4 bits, a step of decoding reads an eighth of the memory. A layer that 4 bits cost too much has 8, which
round it 13 times as finely. Each 32 weights of an output have a scale of their own, in float32; activations stay as
they are in the graph. ONNX Runtime's `MatMulNBits` computes that, on CPUs with activations rounded to int8 in blocks of
32 as well; OpenVINO reads the operator too. The largest weight of a block is rounded to -8, or -128, which sets the
scale (as in llama.cpp's Q4_0).

Half precision goes with that for GPUs, as in transformers.js' `q4f16`: scales and what the operator reads are fp16, and
so are embedding tables.

In the graph of an engine weights alone are integers, and `DequantizeLinear` gives them their scale: in int8 one for
each output, with 4 bits one for each 128, 64 or 32 weights of it. TensorRT keeps them so, and multiplies in fp16. They
may also be floating-point numbers: e4m3 of 8 bits, or e2m1 of 4, of which 16 share a scale, itself in e4m3 behind one
more scale for the whole weight (TensorRT's NVFP4).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnport.exporter.builder import Builder, clean_up
from attnport.exporter.naming import module_of
from attnport.onnx_graph import CONTRIB, array_of, attribute, ir, perm_of

SMOOTHING = 0.75
"""How much of a channel's range goes from activations to weights. On MiniLM the least cosine is 0.942 with 0.5, 0.976
with 0.75 and 0.920 with 0.95; the mean is best at 0.75 too."""
BLOCK = 32
"""Weights of few bits that share a scale."""
_BLOCKS = (128, 64, 32)
"""The same in the graph of an engine: the first that divides a row."""
_FP4_BLOCK, _LARGEST_FP4, _LARGEST_FP8 = 16, 6.0, 448.0
_FP4_SCALE = 256.0
"""What the largest scale of a weight becomes in e4m3: below its largest number, as the scale of scales is rounded."""
_MERGED: dict[str, Callable[..., Any]] = {"ReduceMin": np.min, "ReduceMax": np.max, "ReduceMean": np.mean}
"""The operators that observe a layer's input, and how the results of several runs are merged."""
_ROUNDS_ACTIVATIONS = 4
"""The operator's `accuracy_level` with activations in int8; with one row it takes 0.35 of the time of level 0."""
TABLE_BYTES = 1 << 20
"""Smaller tables stay in float32."""
_ROWS = 4096
"""Outputs that are rounded at a time."""
_TINY = 1e-9
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer:
    """Products that read the same tensor, as those of q, k and v, and so share its scale.

    Attributes:
        name: The module paths: of the first product, then the last parts of the others'.
        reads: The name of what they read.
        nodes: The names of their nodes.
        weights: The number of their weights, by which the work for a token grows.
    """

    name: str
    reads: str
    nodes: tuple[str, ...]
    weights: int


@dataclass(frozen=True)
class Seen:
    """The input of a layer over all tokens that were run, by channel, each `[K]`."""

    least: Array
    largest: Array
    mean: Array


@dataclass(frozen=True)
class Packed:
    """A weight `[K, N]` in few bits.

    Attributes:
        bits: 4 or 8.
        whole: Of 8 bits uint8 `[N, ceil(K/32), 32]`, where 128 stands for 0. Of 4 bits `[N, ceil(K/32), 16]`, the even
            weight of each pair in the lower half, where 8 stands for 0.
        scales: float32 `[N, ceil(K/32)]`.
    """

    bits: int
    whole: Array
    scales: Array


def layers(model: ir.Model, *, halves: bool = False) -> tuple[Layer, ...]:
    """The linear layers of a lowered graph in float32, in topological order.

    Args:
        model: The graph.
        halves: Also those in float16 and bfloat16.
    """
    dtypes = ("FLOAT", "FLOAT16", "BFLOAT16") if halves else ("FLOAT",)
    by_input: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        value = node.inputs[0] if node.inputs else None
        if value is not None and _is_linear(node, dtypes):
            by_input.setdefault(str(value.name), []).append(node)
    made, seen = list[Layer](), Counter[str]()
    for reads, nodes in by_input.items():
        name = _path(nodes)
        seen[name] += 1
        name = name if seen[name] == 1 else f"{name} #{seen[name]}"
        weights = sum(math.prod(_sizes_of(node)) for node in nodes)
        made.append(Layer(name, reads, tuple(str(node.name) for node in nodes), weights))
    return tuple(made)


def _is_linear(node: ir.Node, dtypes: Collection[str]) -> bool:
    """Whether a node is a product of an activation with a weight `[K, N]` of one of these types."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain or len(node.inputs) < 2:
        return False
    value, weight = node.inputs[0], _stored(node)[0]
    if value is None or value.const_value is not None or weight is None:
        return False
    if weight.dtype.name not in dtypes or len(weight.shape) != 2:
        return False
    if node.op_type == "MatMul":
        return True
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    plain = all(attribute(node, name, 1) == 1 for name in ("alpha", "beta")) and not attribute(node, "transA", 0)
    return plain and (bias is None or (bias.const_value is not None and len(bias.const_value.shape) == 1))


def _stored(node: ir.Node) -> tuple[ir.TensorProtocol | None, bool]:
    """The second factor of a product if it is a weight, and whether the product takes it transposed.

    Many models use their embedding table as the weight of the last layer too, through a `Transpose`.
    """
    weight = node.inputs[1]
    turned = bool(attribute(node, "transB", 0))
    before = weight.producer() if weight is not None else None
    if before is not None and before.op_type == "Transpose" and before.inputs[0] is not None:
        return (before.inputs[0].const_value, not turned) if perm_of(before, 2) == [1, 0] else (None, turned)
    return (weight.const_value if weight is not None else None), turned


def _weight_of(node: ir.Node) -> Array:
    """The weight of a linear layer as `[K, N]`."""
    tensor, turned = _stored(node)
    assert tensor is not None
    array: Array = tensor.numpy()
    return array.T if turned else array


def _weight_key(node: ir.Node) -> Hashable:
    """Equal for linear layers whose weight is one tensor of the graph, read in the same way."""
    tensor, turned = _stored(node)
    return id(tensor), turned


def _sizes_of(node: ir.Node) -> tuple[int, int]:
    """K and N of a linear layer's weight."""
    tensor, turned = _stored(node)
    assert tensor is not None
    first, second = tensor.shape.numpy()
    return (second, first) if turned else (first, second)


def _path(nodes: list[ir.Node]) -> str:
    paths = [module_of(node) or str(node.name) for node in nodes]
    return ", ".join([paths[0], *(path.rpartition(".")[2] for path in paths[1:])])


def _nodes_of(model: ir.Model, layer: Layer) -> tuple[ir.Value, list[ir.Node]]:
    """What a layer reads, and its nodes."""
    nodes = [node for node in model.graph if node.name in layer.nodes]
    value = nodes[0].inputs[0]
    assert value is not None
    return value, nodes


def observe(model: ir.Model, chosen: Collection[Layer]) -> tuple[str, ...]:
    """Adds, in place, outputs of shape `[K]` with the least, the largest and the mean of what each layer reads.

    Returns:
        The names of the outputs; `observed` reads what they hold.
    """
    build, added = Builder(model), []
    build.scope = "seen"
    for layer in chosen:
        value, nodes = _nodes_of(model, layer)
        rows = build.op("Reshape", value, build.const([-1, _sizes_of(nodes[0])[0]]))
        for kind in _MERGED:
            output = build.op(kind, rows, build.const([0]), keepdims=0)
            output.name = f"seen/{kind}/{layer.reads}"
            model.graph.outputs.append(output)
            added.append(output.name)
    return tuple(added)


def observed(chosen: Collection[Layer], rows: Mapping[str, Sequence[Array]]) -> dict[str, Seen]:
    """What each layer reads, by `Layer.reads`.

    Args:
        chosen: The layers that were observed.
        rows: By output of `observe`, its values in each run.
    """
    return {
        layer.reads: Seen(*(merged(rows[f"seen/{kind}/{layer.reads}"], 0) for kind, merged in _MERGED.items()))
        for layer in chosen
    }


def write_int8(model: ir.Model, inputs: Mapping[str, Seen], kept: Collection[str] = ()) -> None:
    """Writes every layer in int8, in place, but those whose name is among `kept`.

    Args:
        model: As lowered, in float32.
        inputs: What each layer reads, by `Layer.reads`.
        kept: The names of the layers that stay in float32.
    """
    build = Builder(model)
    build.scope = "int8"
    for layer in layers(model):
        if layer.name not in kept:
            _write_int8(build, layer, inputs[layer.reads])
    clean_up(model)
    _write_tables(build)


def _write_int8(build: Builder, layer: Layer, seen: Seen) -> None:
    value, nodes = _nodes_of(build.model, layer)
    weights = [_weight_of(node).astype(np.float64) for node in nodes]
    smooth_K = _smoothing(seen, weights)
    least = min(float((seen.least / smooth_K).min()), 0.0)
    largest = max(float((seen.largest / smooth_K).max()), _TINY)
    step = (largest - least) / 255
    ends = build.const(step, np.float32), build.const(np.clip(round(-least / step), 0, 255), np.uint8)
    build.before = nodes[0]
    smoothed = build.op("Mul", value, build.const(1 / smooth_K, np.float32))
    whole = build.op("QuantizeLinear", smoothed, *ends, dtype=ir.DataType.UINT8)
    read = build.op("DequantizeLinear", whole, *ends, dtype=ir.DataType.FLOAT)
    for node, weight_KN in zip(nodes, weights, strict=True):
        smoothed_KN = weight_KN * smooth_K[:, None]
        step_N = np.maximum(np.abs(smoothed_KN).max(0), _TINY) / 127
        whole_KN = np.clip(np.rint(smoothed_KN / step_N), -127, 127)
        missing_N = (seen.mean / smooth_K) @ (smoothed_KN - whole_KN * step_N)
        build.before = node
        weight = build.op(
            "DequantizeLinear",
            build.stored(f"{node.name}/int8", whole_KN.astype(np.int8)),
            build.const(step_N, np.float32),
            build.const(np.zeros(len(step_N)), np.int8),
            dtype=ir.DataType.FLOAT,
            axis=1,
        )
        _replace(build, node, read, weight, missing_N)


def _replace(build: Builder, node: ir.Node, read: ir.Value, weight: ir.Value, missing_N: Array) -> None:
    """Writes a layer's product anew, with its bias corrected by what rounding the weights takes away on average.

    A product without a bias gets none.
    """
    product = build.op("MatMul", read, weight)
    product.shape = node.outputs[0].shape
    if node.op_type == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        known = bias.const_value.numpy() if bias is not None and bias.const_value is not None else 0
        build.replace(node.outputs[0], build.op("Add", product, build.const(known + missing_N, np.float32)))
        return
    uses = tuple(node.outputs[0].uses())
    if len(uses) == 1 and uses[0].node.op_type == "Add":
        bias = uses[0].node.inputs[1 - uses[0].idx]
        if bias is not None and bias.const_value is not None and tuple(bias.const_value.shape) == missing_N.shape:
            corrected = build.const(bias.const_value.numpy() + missing_N, np.float32)
            uses[0].node.replace_input_with(1 - uses[0].idx, corrected)
    build.replace(node.outputs[0], product)


def _smoothing(seen: Seen, weights: list[Array]) -> Array:
    """The divisor of each channel of the activations, `[K]`, with a geometric mean of 1."""
    activations = np.maximum(np.maximum(-seen.least, seen.largest), _TINY)
    largest = np.maximum(np.max([np.abs(weight).max(1) for weight in weights], axis=0), _TINY)
    factor = activations**SMOOTHING / largest ** (1 - SMOOTHING)
    smooth: Array = factor / np.exp(np.log(factor).mean())
    return smooth


def _write_tables(build: Builder) -> None:
    """Writes tables that are read by rows, as embeddings are, in int8, in place: each row with a step of its own.

    They are half of a small embedder's file, and no product takes time for them.
    """
    for name, value in list(build.model.graph.initializers.items()):
        tensor, uses = value.const_value, tuple(value.uses())
        by_rows = all(
            use.node.op_type == "Gather" and use.idx == 0 and not attribute(use.node, "axis", 0) for use in uses
        )
        if tensor is None or tensor.dtype.name != "FLOAT" or len(tensor.shape) != 2 or not uses or not by_rows:
            continue
        if tensor.nbytes < TABLE_BYTES:
            continue
        table_VD: Array = tensor.numpy()
        step_V = np.maximum(np.abs(table_VD).max(1, keepdims=True), _TINY).astype(np.float32) / 127
        whole = build.stored(f"{name}/int8", np.rint(table_VD / step_V).astype(np.int8))
        steps = build.stored(f"{name}/steps", step_V)
        for use in uses:
            build.before, build.scope, ids = use.node, "int8", use.node.inputs[1]
            rows = build.op("Cast", build.op("Gather", whole, ids), to=ir.DataType.FLOAT, dtype=ir.DataType.FLOAT)
            read = build.op("Mul", rows, build.op("Gather", steps, ids))
            read.shape = use.node.outputs[0].shape
            build.replace(use.node.outputs[0], read)
    clean_up(build.model)


def pack_all(model: ir.Model) -> dict[tuple[str, int], Packed]:
    """The weight of every linear layer of a lowered graph in 4 and in 8 bits, by the name of its node and the bits."""
    nodes = [node for layer in layers(model) for node in _nodes_of(model, layer)[1]]
    by_weight: dict[tuple[Hashable, int], Packed] = {}
    by_node = {}
    for node, bits in itertools.product(nodes, (4, 8)):
        weight = _weight_key(node), bits
        if weight not in by_weight:
            by_weight[weight] = pack(_weight_of(node), bits)
        by_node[str(node.name), bits] = by_weight[weight]
    return by_node


def pack(weight_KN: Array, bits: int) -> Packed:
    """Rounds a weight to 4 or 8 bits."""
    parts = [_pack_rows(weight_KN[:, start : start + _ROWS], bits) for start in range(0, weight_KN.shape[1], _ROWS)]
    whole, scales = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Packed(bits, whole, scales)


def _pack_rows(weight_KN: Array, bits: int) -> tuple[Array, Array]:
    zero = 1 << bits - 1
    width, count = weight_KN.shape
    missing = -width % BLOCK
    blocks = np.pad(weight_KN.T.astype(np.float32), ((0, 0), (0, missing))).reshape(count, -1, BLOCK)
    at = np.abs(blocks).argmax(-1, keepdims=True)
    scales = np.take_along_axis(blocks, at, -1) / -zero
    whole = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0))
    whole = (np.clip(whole, -zero, zero - 1) + zero).astype(np.uint8)
    return (whole if bits == 8 else whole[..., 0::2] | whole[..., 1::2] << 4), scales[..., 0]


def write_int4(model: ir.Model, packed: Mapping[tuple[str, int], Packed], kept: Collection[str] = ()) -> None:
    """Writes every layer with weights of 4 bits, in place; those whose name is among `kept`, of 8.

    Args:
        model: As lowered, in float32 or float16.
        packed: See `pack_all`.
        kept: The names of the layers that have 8 bits.
    """
    build = Builder(model)
    for layer in layers(model, halves=True):
        bits = 8 if layer.name in kept else 4
        for node in _nodes_of(model, layer)[1]:
            _write_int4(build, node, packed[str(node.name), bits])
    model.opset_imports.setdefault(CONTRIB, 1)
    clean_up(model)
    _write_tables(build)


def _write_int4(build: Builder, node: ir.Node, packed: Packed) -> None:
    width, count = _sizes_of(node)
    build.before, build.scope = node, f"int{packed.bits}"
    # Layers that share a weight share what is packed of it.
    whole = build.once(("whole", id(packed)), lambda: build.stored(f"{node.name}/int{packed.bits}", packed.whole))
    weight = _stored(node)[0]
    assert weight is not None
    of_blocks = packed.scales.astype(weight.dtype.numpy())
    scales = build.once(("scales", id(packed)), lambda: build.stored(f"{node.name}/scales", of_blocks))
    product = build.op(
        "MatMulNBits", node.inputs[0], whole, scales, name=str(node.name), domain=CONTRIB, K=width, N=count,
        bits=packed.bits, block_size=BLOCK, accuracy_level=_ROUNDS_ACTIVATIONS,
    )  # fmt: skip
    product.shape = node.outputs[0].shape
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    build.replace(node.outputs[0], product if bias is None else build.op("Add", product, bias, name="biased"))


def write_weights(model: ir.Model, bits: int, kept: Collection[str] = (), *, floats: bool = False) -> None:
    """Writes the weight of every layer in few bits that `DequantizeLinear` reads, in place.

    Args:
        model: As lowered, in float32, float16 or bfloat16.
        bits: 8 or 4.
        floats: As floating-point numbers, in place of integers.
        kept: The names of the layers that have 8 bits in place of 4, or stay as they are in place of 8.
    """
    build = Builder(model)
    for layer in layers(model, halves=True):
        if bits == 8 and layer.name in kept:
            continue
        for node in _nodes_of(model, layer)[1]:
            _write_weight(build, node, 8 if layer.name in kept else bits, floats=floats)
    clean_up(model)


def _write_weight(build: Builder, node: ir.Node, bits: int, *, floats: bool) -> None:
    value, form = node.inputs[0], f"{'fp' if floats else 'int'}{bits}"
    assert value is not None
    build.before, build.scope = node, form
    write = _float_weight if floats else _whole_weight
    # Layers that share a weight share what is written for it.
    weight = build.once((form, _weight_key(node)), lambda: write(build, _weight_of(node), f"{node.name}/{form}", bits))
    product = build.op("MatMul", value, weight, name=str(node.name), dtype=value.dtype)
    product.shape = node.outputs[0].shape
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    result = product if bias is None else build.op("Add", product, bias, name="biased", dtype=value.dtype)
    build.replace(node.outputs[0], result)


def _whole_weight(build: Builder, weight_KN: Array, name: str, bits: int) -> ir.Value:
    """A weight in integers, as it is read."""
    width = len(weight_KN)
    block = next((size for size in _BLOCKS if not width % size), 0) if bits == 4 else 0
    bits, block = (4, block) if block else (8, width)  # one scale for a whole row is too coarse for 4 bits
    largest = 127 if bits == 8 else 7
    apart = weight_KN.astype(np.float32).reshape(width // block, block, -1)
    scales = (np.abs(apart).max(1) / largest).astype(weight_KN.dtype)
    scales[scales == 0] = 1  # of zeros, or of what is too small for float16
    whole = np.rint(apart / scales.astype(np.float32)[:, None]).clip(-largest, largest)
    stored: Array = whole.reshape(weight_KN.shape).astype(np.int8 if bits == 8 else ir.DataType.INT4.numpy())
    options: dict[str, Any] = {"axis": 1} if bits == 8 else {"axis": 0, "block_size": block}
    of_blocks = build.stored(f"{name}/scales", scales[0] if bits == 8 else scales)
    return build.op("DequantizeLinear", build.stored(name, stored), of_blocks, dtype=of_blocks.dtype, **options)


def _float_weight(build: Builder, weight_KN: Array, name: str, bits: int) -> ir.Value:
    """A weight in e4m3, or in e2m1 where blocks divide its rows, as it is read."""
    width, half = len(weight_KN), weight_KN.dtype
    fine, coarse = ir.DataType.FLOAT8E4M3FN.numpy(), ir.DataType.FLOAT4E2M1.numpy()
    in_blocks = bits == 4 and not width % _FP4_BLOCK
    block, largest, kind = (_FP4_BLOCK, _LARGEST_FP4, coarse) if in_blocks else (width, _LARGEST_FP8, fine)
    apart = weight_KN.astype(np.float32).reshape(width // block, block, -1)
    exact = np.abs(apart).max(1) / largest
    of_scales = np.array(exact.max() / _FP4_SCALE if in_blocks else 1, half)
    step = np.float32(of_scales) or np.float32(1)  # 0 of zeros, or of what is too small for float16
    stored = (exact / step).astype(fine if in_blocks else half)
    stored[stored == 0] = 1  # TensorRT refuses a scale of 0
    parts = apart / (stored.astype(np.float32) * step)[:, None]
    rounded = build.stored(name, parts.clip(-largest, largest).reshape(weight_KN.shape).astype(kind))
    dtype = ir.DataType.from_numpy(half)
    if not in_blocks:
        by_output = build.stored(f"{name}/scales", stored[0])
        return build.op("DequantizeLinear", rounded, by_output, dtype=dtype, axis=1)
    by_block = build.op(
        "DequantizeLinear", build.stored(f"{name}/scales", stored), build.const(step, half), dtype=dtype
    )
    return build.op("DequantizeLinear", rounded, by_block, dtype=dtype, axis=0, block_size=block)


def widen_fp4(model: ir.Model) -> None:
    """Writes weights in e2m1 as the numbers that they stand for, in place: ONNX Runtime's CPU has no such type."""
    build = Builder(model)
    for node in list(model.graph):
        held = node.inputs[0].const_value if node.op_type == "DequantizeLinear" and node.inputs[0] is not None else None
        if held is None or held.dtype.name != "FLOAT4E2M1":
            continue
        by_block = node.inputs[1].producer() if node.inputs[1] is not None else None
        assert by_block is not None
        stored, step = (array_of(value) for value in by_block.inputs if value is not None)
        scales = (stored.astype(np.float32) * step.astype(np.float32)).astype(step.dtype)
        wide = held.numpy().astype(step.dtype) * np.repeat(scales, _FP4_BLOCK, axis=0)
        build.replace(node.outputs[0], build.stored(f"{node.name}/wide", wide))
    clean_up(model)
