"""A graph that was made elsewhere, in place of one that is captured from a module: named, prepared and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnport.artifacts import IOContract
from attnport.errors import ExportError
from attnport.exporter.capture import OPSET, Capture
from attnport.exporter.counting import count_in_graph
from attnport.exporter.naming import all_values, name_outputs, note_empty, strip
from attnport.exporter.output_sizes import unknown_sizes
from attnport.exporter.passes.foreign import prepare

if TYPE_CHECKING:
    import onnx_ir as ir


def imported(model: ir.Model, inputs: Mapping[str, str], outputs: Mapping[str, str], contract: IOContract) -> Capture:
    """The graph with the contract's names and dims, at the opset of exports, with what recognition needs.

    Args:
        model: Without functions of its own; it is changed.
        inputs: By name of a graph's input, the contract's name.
        outputs: By the contract's name, the name of a graph's output; the contract may have fewer.

    Raises:
        ExportError: the graph has no form at that opset, or nothing tells the size of an output.
    """
    import onnx_ir as ir

    if unknown := unknown_sizes(contract.outputs):
        raise ExportError(
            f"the size of {unknown} is no expression of the inputs' dims.",
            hint="It may depend on values of the inputs; choose other outputs.",
        )
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
    import onnx_ir as ir

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
