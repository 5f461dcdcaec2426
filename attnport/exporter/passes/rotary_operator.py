"""Rotary embeddings as the standard's operator, the inverse of `rotary`: one kernel where a runtime has it.

Written out, a rotation is nine kernels on CUDA, for queries and for keys of each layer. On an H200, steps of a Llama
with 8 layers take 0.86 of the time with the operator (docs/gpu.md); on CPU it makes no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.onnx_graph import dims_of

if TYPE_CHECKING:
    import onnx_ir as ir

_Pair = tuple["ir.Value", "ir.Value"]


def as_operator(model: ir.Model) -> int:
    """Writes every rotation of the halves of x, `[B,H,S,D]`, as `RotaryEmbedding`; returns how many.

    That is `Concat(first * cos - second * sin, second * cos + first * sin)` of the halves of the last axis. Cosines and
    sines are given to the operator as `[B,S,D/2]`, expanded once for the whole graph. What it replaces is left to
    `clean_up`.
    """
    build = Builder(model)
    replaced = 0
    for node in list(model.graph):
        found = _rotation(node)
        if found is None:
            continue
        x, cosines, sines = found
        build.before, build.scope = node, node.name or "rotary"
        caches = [_cache(build, angles, x) for angles in (cosines, sines)]
        build.replace(node.outputs[0], build.op("RotaryEmbedding", x, *caches, name="turned"))
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _rotation(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """x, the cosines and the sines by which a node puts its turned halves together; None if it is another node."""
    if node.op_type != "Concat" or len(node.inputs) != 2 or node.attributes["axis"].as_int() not in (-1, 3):
        return None
    difference, total = _operands(node.inputs[0], "Sub"), _operands(node.inputs[1], "Add")
    if difference is None or total is None:
        return None
    of_first, of_second = _operands(difference[0], "Mul"), _operands(difference[1], "Mul")
    products = [_operands(value, "Mul") for value in total]
    if of_first is None or of_second is None:
        return None
    for first, cosines in (of_first, of_first[::-1]):
        for second, sines in (of_second, of_second[::-1]):
            x = _halved(first, second)
            wanted = {frozenset((second, cosines)), frozenset((first, sines))}
            if x is not None and {frozenset(pair or ()) for pair in products} == wanted:
                fits = all(_is_cache(angles, x) for angles in (cosines, sines))
                return (x, cosines, sines) if fits else None
    return None


def _operands(value: ir.Value | None, op_type: str) -> _Pair | None:
    """The inputs of the node of an operator that computes a value; None if it is another one."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type or node.domain:
        return None
    first, second = node.inputs
    return None if first is None or second is None else (first, second)


def _halved(first: ir.Value, second: ir.Value) -> ir.Value | None:
    """The value `[B,H,S,D]` of which two values are the halves of the last axis; None if they are not."""
    one, other = first.producer(), second.producer()
    if one is None or other is None or one.op_type != other.op_type or one.inputs[0] is not other.inputs[0]:
        return None
    x = one.inputs[0]
    sizes = dims_of(x)
    if x is None or sizes is None or len(sizes) != 4 or not isinstance(sizes[3], int):
        return None
    half = sizes[3] // 2
    if half * 2 != sizes[3] or any(value.shape is None or value.shape[-1] != half for value in (first, second)):
        return None
    if one.op_type == "Split":
        axis = one.attributes["axis"].as_int() if "axis" in one.attributes else 0
        return x if one is other and axis in (-1, 3) and (first.index(), second.index()) == (0, 1) else None
    if one.op_type != "Slice":
        return None
    (start, end), (next_start, next_end) = _bounds(one), _bounds(other)
    return x if (start, end, next_start) == (0, half, half) and next_end >= 2 * half else None


def _bounds(node: ir.Node) -> tuple[int, int]:
    """From where to where a `Slice` reads the last of four axes by steps of 1; (-1, -1) if it does something else."""
    numbers = [
        None if value is None or value.const_value is None else value.const_value.numpy().tolist()
        for value in node.inputs[1:]
    ]
    if len(numbers) < 3 or numbers[2] not in ([-1], [3]) or (len(numbers) == 4 and numbers[3] != [1]):
        return -1, -1
    start, end = numbers[:2]
    return (start[0], end[0]) if start and end and len(start) == len(end) == 1 else (-1, -1)


def _is_cache(angles: ir.Value, x: ir.Value) -> bool:
    """Whether cosines or sines are the same for all heads, `[B|1,1,S|1,D/2]`, and of the type of x.

    Where x has one row for several of angles, it is x that is broadcast, which the operator does not do.
    """
    sizes, of_x = dims_of(angles), dims_of(x)
    if sizes is None or of_x is None or not 1 < len(sizes) < 5 or angles.dtype != x.dtype:
        return False
    batch, _, length, depth = of_x
    rows = [(sizes[-2], length), *([(sizes[0], batch)] if len(sizes) == 4 else [])]
    if any(size != 1 and own == 1 for size, own in rows) or not isinstance(depth, int):
        return False
    return sizes[-1] == depth // 2 and (len(sizes) < 3 or sizes[-3] == 1)


def _cache(build: Builder, angles: ir.Value, x: ir.Value) -> ir.Value:
    """Cosines or sines as `[B,S,D/2]`, once for all that have the batch and the length of x."""
    sizes, rank = dims_of(x), len(dims_of(angles) or ())
    assert sizes is not None
    batch, _, length, depth = sizes
    assert isinstance(depth, int)

    def write() -> ir.Value:
        rows = angles
        if rank == 4:
            rows = build.op("Squeeze", angles, build.const([1], np.int64), name="rows")
        ends = build.size(x, 0), build.size(x, 2), build.const([depth // 2], np.int64)
        shape = build.op("Concat", *ends, name="shape", axis=0)
        return build.op("Expand", rows, shape, name="cache")

    known = None not in (batch, length)
    return build.once(("cache", angles, batch, length) if known else ("cache", angles, x), write)
