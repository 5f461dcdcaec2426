"""Writes the number in place of -1 in the target of a `Reshape`, where the graph knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnport.exporter.builder import Builder

if TYPE_CHECKING:
    import onnx_ir as ir


def number_reshapes(model: ir.Model) -> int:
    """Replaces -1 in targets such as `Concat(batch, seq, -1, 16)` by the size that the output is known to have.

    A runtime that does not know batch and seq when it loads a graph finds no number for -1 either, so that it knows no
    head count. Shapes are those that `infer_sizes` wrote.

    Returns how many targets changed.
    """
    build, changed = Builder(model), 0
    for node in list(model.graph):
        target = node.inputs[1] if node.op_type == "Reshape" and len(node.inputs) > 1 else None
        made = target.producer() if target is not None else None
        shape = node.outputs[0].shape
        if made is None or made.op_type != "Concat" or shape is None or len(made.inputs) != len(shape):
            continue
        parts = list(made.inputs)
        known = [
            at
            for at, (part, size) in enumerate(zip(parts, shape, strict=True))
            if _is_open(part) and isinstance(size, int)
        ]
        if not known:
            continue
        for at in known:
            parts[at] = build.const(np.array([shape[at]], np.int64))
        build.before, build.scope = node, str(node.name)
        node.replace_input_with(1, build.op("Concat", *parts, name="target", axis=0))
        changed += 1
    return changed


def _is_open(part: ir.Value | None) -> bool:
    """Whether a part of a target is the constant -1."""
    tensor = None if part is None else part.const_value
    return tensor is not None and tensor.size == 1 and int(tensor.numpy().reshape(-1)[0]) == -1
