"""Rewrites `s[:, 1:] += a` of scores s to `s + pad(a)`, which the exporter writes as `ScatterND` of transposed tensors.

MViT of torchvision adds relative positions so to the scores of all tokens but the class token, along rows and columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder
from attnport.onnx_graph import attribute, constant_of, dims_of, made_by, perm_of, scalar

if TYPE_CHECKING:
    import onnx_ir as ir

_END = 2**31 - 1
"""The least number that stands for the end of any axis."""


def apply(model: ir.Model) -> int:
    """Rewrites such sums along one axis, from the inner one on; returns how many `ScatterND` were rewritten."""
    build = Builder(model)
    replaced = 0
    for node in [node for node in model.graph if node.op_type == "ScatterND" and node.domain == ""]:
        first = _first_row(node.inputs[1]) if attribute(node, "reduction", "none") == "none" else None
        x, perm = _before_transposes(node.inputs[0])
        new, same = _before_transposes(node.inputs[2])
        if first is None or x is None or perm != same:
            continue
        build.before, build.scope = node, node.name or "scattered"
        total = x if _is_rest(new, x, perm[0], first) else _sum(build, new, x, perm[0], first)
        if total is not None:
            turned = build.op("Transpose", total, name="turned", perm=perm, shape=dims_of(node.outputs[0]))
            build.replace(node.outputs[0], turned)
            model.graph.remove(node, safe=True)
            replaced += 1
    return replaced


def _sum(build: Builder, new: ir.Value | None, x: ir.Value, axis: int, first: int) -> ir.Value | None:
    """`x + pad(a)`, where `new` is `x[first:] + a` along an axis."""
    total = made_by(new, "Add")
    rest = next((part for part in total.inputs if _is_rest(part, x, axis, first)), None) if total is not None else None
    term = next((part for part in total.inputs if part is not rest), None) if total is not None else None
    whole, dims, shape = dims_of(rest), dims_of(term), dims_of(x)
    if rest is None or term is None or whole is None or dims is None or shape is None or term.dtype is None:
        return None
    own = axis - len(whole) + len(dims)  # a term may have fewer axes
    if own < 0 or dims[own] != whole[axis]:
        return None
    pads = build.const([first * (at == own) for at in range(len(dims))] + [0] * len(dims), np.int64)
    padded = [shape[axis] if at == own else dim for at, dim in enumerate(dims)]
    return build.op("Add", x, build.op("Pad", term, pads, name="padded", shape=padded), name="sum", shape=shape)


def _before_transposes(value: ir.Value | None) -> tuple[ir.Value | None, list[int]]:
    """What `Transpose` nodes were given, and what all of them together do; nothing for a value of unknown rank."""
    dims = dims_of(value)
    perm = [*range(len(dims or ()))]
    while dims is not None and (node := made_by(value, "Transpose")) is not None:
        before = perm_of(node, len(perm))
        perm, value = [before[at] for at in perm], node.inputs[0]
    return (value, perm) if dims else (None, [])


def _is_rest(value: ir.Value | None, x: ir.Value, axis: int, first: int) -> bool:
    """Whether a value is `x[first:]` along an axis."""
    node, dims = made_by(value, "Slice"), dims_of(x)
    if node is None or dims is None or _before_transposes(node.inputs[0]) != (x, [*range(len(dims))]):
        return False
    given = [constant_of(each) for each in node.inputs[1:]]
    if any(each is None or each.size != 1 for each in given) or len(given) < 3:
        return False
    starts, ends, axes, steps = [*(int(each.item()) for each in given if each is not None), 1][:4]
    size = dims[axis]
    whole = ends >= (size if isinstance(size, int) else _END)
    return whole and (starts, axes % len(dims), steps) == (first, axis, 1)


def _first_row(indices: ir.Value | None) -> int | None:
    """The first of all rows from one on, as `Unsqueeze(Range(0, n, 1)[first:], -1)`; None for other indices."""
    column = made_by(indices, "Unsqueeze")
    rest = made_by(column.inputs[0], "Slice") if column is not None else None
    places = made_by(rest.inputs[0], "Range") if rest is not None else None
    starts = constant_of(rest.inputs[1]) if rest is not None else None
    if rest is None or places is None or starts is None or starts.size != 1 or rest.inputs[0] is None:
        return None
    begin, _, step = (scalar(given) for given in places.inputs)
    first = int(starts.item())
    plain = (begin, step) == (0, 1) and first >= 0 and len(dims_of(indices) or ()) == 2
    return first if plain and _is_rest(column.inputs[0] if column else None, rest.inputs[0], 0, first) else None
