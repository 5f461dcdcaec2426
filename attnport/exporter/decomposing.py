"""Decomposes operators that torch.onnx has no translation for one at a time, without tracing the whole program again.

torch.onnx runs `ExportedProgram.run_decompositions`, which traces the program twice more to replace a few of its nodes:
half of the time of a capture. Where no node changes the tensors of another, these nodes can be traced by themselves.
So operators that change a tensor in place are written as those that give a new one, where nothing else sees the change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import torch
from torch._export.utils import _check_valid_to_preserve, _is_cia_op
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.onnx._internal.exporter import _decomp, _fx_passes
from torch.utils._pytree import tree_leaves

from attnport.patches import Patch

Table = Mapping[Any, Callable[..., Any]]


def write_out(program: torch.export.ExportedProgram) -> int:
    """Replaces operators that change a tensor in place by those that give a new one, where only their result is read
    afterwards: `masked_fill_` by `masked_fill`. Returns how many. torch's own way cannot write some changes of views,
    such as heads that were split and turned, back into the tensor that they are views of. What the new operators give
    may lie otherwise in memory than in the trace, which matters to views alone."""
    graph = program.graph
    at = {node: number for number, node in enumerate(graph.nodes)}
    memory = {node: _memory(node) for node in graph.nodes}
    count = 0
    for node in list(graph.nodes):
        plain = _without_writing(node) if memory[node] else None
        if plain is None:
            continue
        changed: Any = node.args[0]
        shared = [other for other in at if memory[other] & memory[node] and at[other] <= at[node]]
        seen = [user for other in shared if other not in (changed, node) for user in other.users
                if at[user] > at[node] and user.target is not torch.ops.aten.sym_size.int]  # fmt: skip
        if seen or any(other.op != "call_function" for other in shared):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(plain, node.args, node.kwargs)
        new.meta, at[new], memory[new] = dict(node.meta), at[node], memory[node]
        _replace(node, new)
        changed.replace_all_uses_with(new, delete_user_cb=lambda user, last=at[new]: at[user] > last)
        del at[node]
        count += 1
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default) if count else ():
        node.target = torch.ops.aten.reshape.default
    _name_outputs(program)
    return count


def _memory(node: torch.fx.Node) -> set[int]:
    """What holds the tensors that a node gives: the same for a tensor and its views; nothing of sparse ones."""
    tensors = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    return {value.untyped_storage()._cdata for value in tensors if value.layout is torch.strided}


def _without_writing(node: torch.fx.Node) -> Any:
    """The operator that gives what a node changes its first argument to; None if it does something else, or if torch
    has no such operator that gives the same type and sizes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    packet = getattr(getattr(torch.ops, target.namespace), target._opname.removesuffix("_"), None)
    plain = getattr(packet, target._overloadname, None)
    fake = detect_fake_mode([node.meta.get("val")])
    out = any(argument.is_out for argument in target._schema.arguments)
    if plain is None or plain._schema.is_mutable or out or fake is None:
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda taken: taken.meta["val"])
    with contextlib.suppress(Exception), fake:  # torch raises errors of any type
        return plain if _described(plain(*args, **kwargs)) == _described(node.meta["val"]) else None
    return None


def node_by_node() -> tuple[Patch, ...]:
    """Patches with which torch.onnx decomposes a program node by node where that is possible."""
    whole = _fx_passes.decompose_with_registry

    def each(exported_program: torch.export.ExportedProgram, registry: Any) -> torch.export.ExportedProgram:
        translated = set(_decomp.get_onnx_implemented_overloads(registry))
        done = _decompose(exported_program, _decomp.create_onnx_friendly_decomposition_table(translated), translated)
        return exported_program if done else whole(exported_program, registry)

    return (Patch(_fx_passes, "decompose_with_registry", each),)


def _decompose(program: torch.export.ExportedProgram, table: Table, translated: Collection[Any]) -> bool:
    """Decomposes a program in place; False, with the program as it was, where that takes a trace of the whole."""
    graph = program.graph
    written = _decompositions(graph, table, translated)
    if written is None:
        return False
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach_.default:
            _replace(node, node.args[0])
        elif node in written:
            _inline(node, written[node])
    _share_sizes(graph)
    _name_outputs(program)
    return True


def _name_outputs(program: torch.export.ExportedProgram) -> None:
    """Has a program call its outputs by the names that their nodes now have."""
    outputs: Any = program.graph.output_node().args[0]
    for spec, output in zip(program.graph_signature.output_specs, outputs, strict=True):
        if isinstance(output, torch.fx.Node):
            spec.arg.name = output.name


def _decompositions(
    graph: torch.fx.Graph, table: Table, translated: Collection[Any]
) -> dict[torch.fx.Node, torch.fx.Graph] | None:
    """By node, what it decomposes to; None where nodes cannot be decomposed one by one."""
    found: dict[torch.fx.Node, torch.fx.Graph] = {}
    fake = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return None  # it holds graphs of its own
        if not isinstance(node.target, torch._ops.OpOverload) or node.target is torch.ops.aten.detach_.default:
            continue
        if fake is None or fake.shape_env is None or node.target._schema.is_mutable:
            return None  # other nodes see what it does
        if node.target in table or _is_always_decompose(node.target):
            try:
                # torch's C++ code makes constants of some dynamic sizes, as for `padding="same"` with an even kernel.
                with fake, fake.shape_env.error_on_new_guards():
                    found[node] = _traced(node, table, translated)
            except Exception:  # torch raises errors of any type; those of the whole program are the ones to tell
                return None
    return found


def _is_always_decompose(target: Any) -> bool:
    """Whether torch itself never keeps an operator: one that is written with others and returns a view."""
    return _is_cia_op(target) and not _check_valid_to_preserve(target)


def _traced(node: torch.fx.Node, table: Table, translated: Collection[Any]) -> torch.fx.Graph:
    """What a node decomposes to: a graph with a placeholder for each node that it takes."""
    target = cast("Any", node.target)

    def run(*values: Any) -> Any:
        by_node = dict(zip(node.all_input_nodes, values, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), by_node.__getitem__)
        return target(*args, **kwargs)

    traced = make_fx(run, decomposition_table=dict(table))(*(taken.meta["val"] for taken in node.all_input_nodes))
    graph: torch.fx.Graph = traced.graph
    for made in graph.nodes:
        if made.op == "get_attr":
            raise ValueError("it makes a constant, which is no part of a program's state")
        if isinstance(made.target, torch._ops.OpOverload) and (
            made.target not in translated or made.target._schema.is_mutable
        ):
            raise ValueError("torch.onnx has no translation for it, or it changes a tensor in place")
    result = map_arg(graph.output_node().args[0], lambda made: made.meta["val"])
    if _described(result) != _described(node.meta["val"]):
        raise ValueError("its sizes are found out anew, such as those of nonzero")
    return graph


def _described(values: Any) -> list[Any]:
    """The type and sizes of each tensor."""
    return [(value.dtype, [getattr(getattr(size, "node", None), "expr", size) for size in value.shape])
            if isinstance(value, torch.Tensor) else getattr(getattr(value, "node", None), "expr", value)
            for value in tree_leaves(values)]  # fmt: skip


def _inline(node: torch.fx.Node, written: torch.fx.Graph) -> None:
    """Writes a graph of `_traced` in place of its node."""
    graph, made = node.graph, {}
    taken = iter(node.all_input_nodes)
    about = {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta")}
    with graph.inserting_before(node):
        for each in written.nodes:
            if each.op == "placeholder":
                made[each] = next(taken)
            elif each.op == "output":
                result = map_arg(each.args[0], made.__getitem__)
            else:
                made[each] = graph.node_copy(each, made.__getitem__)
                if each.target is torch.ops.aten.view.default:
                    made[each].target = torch.ops.aten.reshape.default  # see `write_out`
                made[each].meta = {**about, "val": each.meta["val"]}
    if isinstance(result, list | tuple):
        for part in list(node.users):
            at: Any = part.args[1]
            _replace(part, result[at])
        graph.erase_node(node)
    else:
        _replace(node, result)


def _replace(node: torch.fx.Node, by: Any) -> None:
    """Replaces a node, and removes it."""
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _share_sizes(graph: torch.fx.Graph) -> None:
    """Has each size read or computed once, of an input where one has it, as in a trace of the whole."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    of_inputs = {
        size.node.expr: (node, axis, size)
        for node in reversed(placeholders)
        for axis, size in reversed(list(enumerate(getattr(node.meta.get("val"), "shape", ()))))
        if isinstance(size, torch.SymInt)
    }
    shared: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        size = node.meta.get("val")
        if not isinstance(size, torch.SymInt) or node.op != "call_function":
            continue
        expression = size.node.expr
        if expression not in shared and expression in of_inputs:
            source, axis, read = of_inputs[expression]
            with graph.inserting_after(placeholders[-1]):
                shared[expression] = graph.call_function(torch.ops.aten.sym_size.int, (source, axis))
            shared[expression].meta["val"] = read
        same = shared.setdefault(expression, node)
        if same is not node:
            _replace(node, same)
