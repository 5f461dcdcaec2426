"""Copies a large graph for a proof of fusion, with fewer weights: layers share them.

A runtime that compiles a graph makes copies of its weights. Which kernels it takes does not depend on their values, so
that a graph of many layers is proved with the weights of few.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.exporter import storage

if TYPE_CHECKING:
    import onnx_ir as ir

LARGE_BYTES = 1 << 28
"""A graph with fewer bytes of weights is proved as it is."""
_WEIGHTS = "proof.bin"


def light_copy(model: Path, folder: Path) -> Path:
    """Writes a copy of a graph with large weights into an empty folder.

    Args:
        model: An ONNX file with its weights beside it.

    Returns:
        The copy, or the model itself where its weights are not large.

    Raises:
        ArtifactError: as `storage.load`.
    """
    graph = storage.load(model)
    tensors = (value.const_value for value in graph.graph.initializers.values())
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) < LARGE_BYTES:
        return model
    _share_weights(graph)
    copy = folder / model.name
    storage.save_alone(graph, copy, _WEIGHTS)
    return copy


def _share_weights(model: ir.Model) -> None:
    """Lets nodes that read different values take weights of one shape from one tensor.

    Nodes that read the same values, as the projections to q, k and v do, keep weights of their own: with equal ones
    they would compute the same, and be merged.
    """
    kept: dict[tuple[object, ...], ir.Value] = {}
    siblings = Counter[tuple[object, ...]]()
    for node in model.graph:
        others = tuple(id(value) for value in node.inputs if value is not None and value.const_value is None)
        for at, value in enumerate(node.inputs):
            tensor = value.const_value if value is not None else None
            if value is None or tensor is None or not value.is_initializer() or tensor.nbytes <= storage.INLINE_BYTES:
                continue
            kind = node.op_type, at, tensor.dtype, tuple(tensor.shape)
            first = kept.setdefault((kind, siblings[others, kind]), value)
            siblings[others, kind] += 1
            if first is not value:
                node.replace_input_with(at, first)
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del model.graph.initializers[name]
