"""Writes linear layers with weights of 4 bits, so that a step of decoding reads an eighth of the memory.

A layer that 4 bits cost too much has 8, which round it 13 times as finely. Each 32 weights of an output have a scale of
their own, in float32; activations stay as they are in the graph. ONNX Runtime's `MatMulNBits` computes that, on CPUs
with activations rounded to int8 in blocks of 32 as well; OpenVINO reads the operator too. The largest weight of a block
is rounded to -8, or -128, which sets the scale (as in llama.cpp's Q4_0).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.contrib import CONTRIB
from attnport.exporter.builder import Builder
from attnport.exporter.linear import layers, nodes_of, sizes_of, weight_key, weight_of
from attnport.exporter.passes.cleanup import clean_up

if TYPE_CHECKING:
    import onnx_ir as ir

BLOCK = 32
"""Weights that share a scale."""
_ROUNDS_ACTIVATIONS = 4
"""The operator's `accuracy_level` with activations in int8; with one row it takes 0.35 of the time of level 0."""
_ROWS = 4096
"""Outputs that are rounded at a time."""
Array = np.ndarray[Any, Any]


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


def pack_all(model: ir.Model) -> dict[tuple[str, int], Packed]:
    """The weight of every linear layer of a lowered graph in 4 and in 8 bits, by the name of its node and the bits."""
    nodes = [node for layer in layers(model) for node in nodes_of(model, layer)[1]]
    made: dict[tuple[Hashable, int], Packed] = {}
    found = {}
    for node, bits in itertools.product(nodes, (4, 8)):
        weight = weight_key(node), bits
        if weight not in made:
            made[weight] = pack(weight_of(node), bits)
        found[str(node.name), bits] = made[weight]
    return found


def quantize(model: ir.Model, packed: Mapping[tuple[str, int], Packed], kept: Collection[str] = ()) -> None:
    """Writes every layer with weights of 4 bits, in place; those whose name is among `kept`, of 8.

    Args:
        model: As lowered, in float32.
        packed: See `pack_all`.
    """
    build = Builder(model)
    for layer in layers(model):
        bits = 8 if layer.name in kept else 4
        for node in nodes_of(model, layer)[1]:
            _quantize(build, node, packed[str(node.name), bits])
    model.opset_imports.setdefault(CONTRIB, 1)
    clean_up(model)


def _quantize(build: Builder, node: ir.Node, packed: Packed) -> None:
    width, count = sizes_of(node)
    build.before, build.scope = node, f"int{packed.bits}"
    # Layers that share a weight share what is packed of it.
    whole = build.once(("whole", id(packed)), lambda: build.stored(f"{node.name}/int{packed.bits}", packed.whole))
    scales = build.once(("scales", id(packed)), lambda: build.stored(f"{node.name}/scales", packed.scales))
    product = build.op(
        "MatMulNBits",
        node.inputs[0],
        whole,
        scales,
        name=str(node.name),
        domain=CONTRIB,
        K=width,
        N=count,
        bits=packed.bits,
        block_size=BLOCK,
        accuracy_level=_ROUNDS_ACTIVATIONS,
    )
    product.shape = node.outputs[0].shape
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    build.replace(node.outputs[0], product if bias is None else build.op("Add", product, bias, name="biased"))
