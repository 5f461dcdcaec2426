"""Makes a graph that was exported elsewhere as plain as one of ours: shapes known, constants folded, nodes named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.errors import ExportError, first_line
from attnport.exporter.naming import SCOPES
from attnport.exporter.passes.cleanup import inline_functions
from attnport.exporter.passes.indexing import index_by_grid
from attnport.exporter.passes.rotary import write_out as write_out_rotary
from attnport.exporter.passes.sizes import settle_sizes

if TYPE_CHECKING:
    import onnx_ir as ir

ROUNDS = 4
"""Each round folds what the sizes of the round before made constant (a scale that is the root of a size)."""


def prepare(model: ir.Model, opset: int = 23) -> ir.Model:
    """The same graph at `opset`, with what recognition needs: shapes, static head counts, one name a size, scopes.

    Exporters that trace at one size write head counts and scales as arithmetic on shapes, and leave no shapes behind.

    Raises:
        ExportError: an operator has no form at that opset.
    """
    import onnx_ir.passes.common as passes
    from onnxscript import optimizer

    inline_functions(model)
    model = _raised(model, opset)
    _name_nodes(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for _ in range(ROUNDS):
        made = settle_sizes(model)
        optimizer.optimize_ir(model, num_iterations=1, onnx_shape_inference=False)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        if not made:
            break
    if index_by_grid(model) + write_out_rotary(model):
        settle_sizes(model)
    return model


def _raised(model: ir.Model, opset: int) -> ir.Model:
    """The graph at a newer opset; a newer graph stays."""
    import onnx
    import onnx_ir as ir

    if model.graph.opset_imports[""] >= opset:
        return model
    scopes = {node.name: node.metadata_props[SCOPES] for node in model.graph if SCOPES in node.metadata_props}
    try:
        proto = onnx.version_converter.convert_version(ir.to_proto(model), opset)
    except RuntimeError as err:
        raise ExportError(
            f"the graph, of opset {model.graph.opset_imports['']}, has no form at opset {opset}: {first_line(err)}",
            hint="Export it again at a newer opset.",
        ) from err
    raised = ir.from_proto(proto)
    for node in raised.graph:
        if node.name in scopes:
            node.metadata_props[SCOPES] = scopes[node.name]
    return raised


def _name_nodes(model: ir.Model) -> None:
    """Gives every node a name of its own, and a module path where its name is one: `/layer.0/attention/Softmax`."""
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
