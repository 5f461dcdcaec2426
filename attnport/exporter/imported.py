"""A graph that was made elsewhere, in place of one that is captured from a module: named, prepared and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import numpy as np
import onnx
from onnxscript import optimizer

from attnport.artifacts import IOContract
from attnport.errors import ExportError, first_line
from attnport.exporter.builder import Builder, inline_functions
from attnport.exporter.capture import OPSET, Capture
from attnport.exporter.contrib import expand_all
from attnport.exporter.counting import count_in_graph
from attnport.exporter.graph.opset import to_opset
from attnport.exporter.graph.size_rules import KnownSizes, Size
from attnport.exporter.graph.sizes import Inference, settle_sizes
from attnport.exporter.naming import SCOPES, all_values, name_outputs, note_empty, strip
from attnport.exporter.patching import exact_rules
from attnport.exporter.portable import write_out_rotary
from attnport.exporter.storage import INLINE_BYTES
from attnport.onnx_graph import CONTRIB, attribute, ir, passes
from attnport.patches import patched

NEWEST = 24
"""The newest opset of which a form makes use."""
ROUNDS = 4
"""Each round can fold what the previous round's sizes made constant (a scale that is the root of a size)."""
_MOVES = ("Unsqueeze", "Squeeze", "Reshape", "Expand", "Cast", "Identity")


def imported(model: ir.Model, inputs: Mapping[str, str], outputs: Mapping[str, str], contract: IOContract) -> Capture:
    """The graph with the contract's names and dims, at the opset of exports, with what recognition needs.

    Args:
        model: Without functions of its own; it is changed.
        inputs: By name of a graph's input, the contract's name.
        outputs: By the contract's name, the name of a graph's output; the contract may have fewer.

    Raises:
        ExportError: the graph has no form at that opset.
    """
    graph = model.graph
    for value in all_values(model):
        if not value.is_graph_input() and value.const_value is None:
            value.shape = None  # its names of sizes are not the contract's
    specs = {spec.name: spec for spec in contract.inputs}
    given = [(value, specs[inputs[str(value.name)]]) for value in graph.inputs if str(value.name) in inputs]
    named = {str(value.name): value for value in graph.outputs}
    wanted = [(_of_its_own(graph, named[outputs[spec.name]]), spec) for spec in contract.outputs]
    graph.inputs[:] = [value for value, _ in given]
    graph.outputs[:] = [value for value, _ in wanted]
    for value, spec in given:
        value.shape = ir.Shape(list(spec.dims))
    _rename(model, {value: spec.name for value, spec in (*given, *wanted)})
    note_empty(model, contract)
    ready = prepare(model, OPSET)
    name_outputs(ready, contract)
    strip(ready)
    return Capture(ready, count_in_graph(ready), contract.outputs)


def _of_its_own(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """An output that a node makes: one that is an input or a weight as well cannot have two names."""
    if value.producer() is not None:
        return value
    node = ir.node("Identity", [value])
    node.outputs[0].name, node.outputs[0].type = f"{value.name}/output", value.type
    graph.append(node)
    return node.outputs[0]


def _rename(model: ir.Model, names: Mapping[ir.Value, str]) -> None:
    """Gives values names; another value that has one of them gets another one."""
    taken = {str(value.name) for value in all_values(model)} | set(names.values())
    for other in [value for value in all_values(model) if value not in names and value.name in names.values()]:
        fresh = f"{other.name}/inner"
        while fresh in taken:
            fresh += "_"
        taken.add(fresh)
        other.name = fresh
    for number, value in enumerate(names):
        value.name = f"{value.name}/{number}"  # out of the way of one that is to have its name
    for value, name in names.items():
        value.name = name


def prepare(model: ir.Model, opset: int = 23) -> ir.Model:
    """The same graph at `opset`, with what recognition needs: shapes, fixed head counts, module paths, and equal names
    for equal sizes.

    Other exporters write head counts and scales as arithmetic on shapes, and do not record the shapes.

    Raises:
        ExportError: an operator has no form at that opset.
    """
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


def index_by_grid(model: ir.Model) -> int:
    """Rewrites every `flat(x)[j + b * T]` over whole axes of x `[B,T]` as `GatherND(x, (b, j))`; returns how many.

    TorchScript's exporter turns `mask[b, j]` into a gather from the flattened mask at `j + b * T`, which no longer
    shows which axis is which.

    Both indices have to count through their axis from its start (`Range`), so that they are within bounds. A reshape of
    a reshape becomes one reshape, so that later code reads one step.
    """
    known = Inference(model)
    known.run()
    _join_reshapes(model, known)
    build, changed = Builder(model), 0
    for node in [node for node in model.graph if node.op_type == "Gather" and node.domain == ""]:
        read = _read(node, known)
        if read is None:
            continue
        source, rows, columns, at = read
        build.before, build.scope = node, node.name or "gather"
        shape = build.op("Shape", at, name="shape", dtype=ir.DataType.INT64)
        last = build.const([-1], np.int64)
        grids = [build.op("Unsqueeze", build.op("Expand", grid, shape), last) for grid in (rows, columns)]
        gathered = build.op("GatherND", source, build.op("Concat", *grids, axis=-1), name="grid")
        rank = len(node.outputs[0].shape) if node.outputs[0].shape is not None else 0
        if at.shape is not None and rank == len(at.shape) + 1:
            gathered = build.op("Unsqueeze", gathered, last, name="column")
        build.replace(node.outputs[0], gathered)
        changed += 1
    return changed


def _read(node: ir.Node, known: KnownSizes) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value] | None:
    """The indexed tensor, its row and column indices, and the index that is their sum."""
    flat, at = node.inputs[:2]
    flattened = flat.producer() if flat is not None else None
    if attribute(node, "axis", 0) or at is None or flattened is None or flattened.op_type not in ("Reshape", "Flatten"):
        return None
    source = flattened.inputs[0]
    sizes, after = (known.sizes.get(value) if value is not None else None for value in (source, flat))
    total = at.producer()
    if source is None or sizes is None or after is None or len(sizes) != 2 or after[1:] not in ((), (1,)):
        return None
    if total is None or total.op_type != "Add":
        return None
    for columns, high in (total.inputs[:2], total.inputs[1::-1]):
        product = high.producer() if high is not None else None
        if columns is None or product is None or product.op_type != "Mul":
            continue
        for rows, width in (product.inputs[:2], product.inputs[1::-1]):
            content = known.contents.get(width) if width is not None else None
            whole = content is not None and content.size == 1 and content.item() == sizes[1]
            if rows is not None and whole and [_counts_to(grid, known) for grid in (rows, columns)] == list(sizes):
                return source, rows, columns, at
    return None


def _counts_to(value: ir.Value, known: KnownSizes) -> Size | None:
    """n if a tensor is `Range(0, n, 1)` along one of its axes, else None."""
    node = value.producer()
    while node is not None and node.op_type in _MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Range":
        return None
    start, limit, delta = (known.content(node, at) for at in range(3))
    if start is None or limit is None or delta is None or start.item() != 0 or delta.item() != 1:
        return None
    return limit.item()


def _join_reshapes(model: ir.Model, known: KnownSizes) -> None:
    """Lets each reshape skip a reshape before it, unless it copies a size of its input."""
    for node in model.graph:
        before = node.inputs[0].producer() if node.op_type == "Reshape" and node.inputs[0] is not None else None
        target = known.content(node, 1)
        if before is not None and before.op_type == "Reshape" and target is not None and 0 not in list(target):
            node.replace_input_with(0, before.inputs[0])
