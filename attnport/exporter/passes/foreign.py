"""Prepares a graph from another exporter for recognition: infers shapes, folds constants, names nodes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from attnport.contrib import CONTRIB
from attnport.errors import ExportError, first_line
from attnport.exporter.contrib import expand_all
from attnport.exporter.naming import SCOPES
from attnport.exporter.passes.cleanup import inline_functions
from attnport.exporter.passes.exact_rules import exact_rules
from attnport.exporter.passes.indexing import index_by_grid
from attnport.exporter.passes.opset import to_opset
from attnport.exporter.passes.rotary import write_out as write_out_rotary
from attnport.exporter.passes.sizes import settle_sizes
from attnport.exporter.storage import INLINE_BYTES
from attnport.patches import patched

if TYPE_CHECKING:
    import onnx_ir as ir

NEWEST = 24
"""The newest opset of which a form makes use."""
ROUNDS = 4
"""Each round can fold what the previous round's sizes made constant (a scale that is the root of a size)."""


def prepare(model: ir.Model, opset: int = 23) -> ir.Model:
    """The same graph at `opset`, with what recognition needs: shapes, fixed head counts, module paths, and equal names
    for equal sizes.

    Other exporters write head counts and scales as arithmetic on shapes, and do not record the shapes.

    Raises:
        ExportError: an operator has no form at that opset.
    """
    import onnx_ir.passes.common as passes
    from onnxscript import optimizer

    inline_functions(model)
    for node in model.graph:
        if node.op_type == "SimplifiedLayerNormalization":
            node.domain = CONTRIB  # where ONNX Runtime documents it; in ONNX's own, nothing can convert it
            model.graph.opset_imports.setdefault(CONTRIB, 1)
    model = _raised(model, opset)
    _name_nodes(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    if any(node.domain == CONTRIB for node in model.graph):
        settle_sizes(model)
        expand_all(model)
    for _ in range(ROUNDS):
        constants = settle_sizes(model)
        with patched(exact_rules):
            optimizer.optimize_ir(model, num_iterations=1, onnx_shape_inference=False)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        if not constants:
            break
    if index_by_grid(model) + write_out_rotary(model):
        settle_sizes(model)
    return model


def _raised(model: ir.Model, opset: int) -> ir.Model:
    """The graph raised to `opset`; a graph of that opset or a newer one is returned unchanged.

    Of an opset that is newer than runtimes know, it is lowered if that is possible.
    """
    import onnx
    import onnx_ir as ir

    if model.graph.opset_imports[""] > NEWEST:
        lowered = model.clone()
        with contextlib.suppress(ExportError):
            to_opset(lowered, NEWEST)
            return lowered
    if model.graph.opset_imports[""] >= opset:
        return model
    weights = _set_aside(model)
    scopes = {node.name: node.metadata_props[SCOPES] for node in model.graph if SCOPES in node.metadata_props}
    try:
        proto = onnx.version_converter.convert_version(ir.to_proto(model), opset)
    except RuntimeError as err:
        raise ExportError(
            f"the graph, of opset {model.graph.opset_imports['']}, has no form at opset {opset}: {first_line(err)}",
            hint="Export it again at a newer opset.",
        ) from err
    raised = ir.from_proto(proto)
    raised.metadata_props.update(model.metadata_props)  # the converter drops them
    for node in raised.graph:
        if node.name in scopes:
            node.metadata_props[SCOPES] = scopes[node.name]
    for name, weight in weights.items():
        raised.graph.initializers[name].const_value = weight
    return raised


def _set_aside(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The large weights by name. In the graph they give way to references: the converter reads none of them, and its
    result would not know in which folder their files are."""
    import onnx_ir as ir

    kept: dict[str, ir.TensorProtocol] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and (isinstance(tensor, ir.ExternalTensor) or tensor.nbytes > INLINE_BYTES):
            kept[name] = tensor
            value.const_value = ir.ExternalTensor(
                "aside",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape([int(str(size)) for size in tensor.shape]),
                name=name,
            )
    return kept


def _name_nodes(model: ir.Model) -> None:
    """Gives every node a unique name, and a module path if its name contains one: `/layer.0/attention/Softmax`."""
    taken: set[str] = set()
    for number, node in enumerate(model.graph):
        name = node.name or f"{node.op_type}_{number}"
        while name in taken:
            name = f"{name}_{number}"
        taken.add(name)
        node.name = name
        if name.startswith("/") and SCOPES not in node.metadata_props:
            path = [part for part in name.split("/") if part]
            node.metadata_props[SCOPES] = repr(["", ".".join(path[:-1]), path[-1]] if path[:-1] else ["", path[-1]])
