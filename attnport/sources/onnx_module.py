"""A file of ONNX as a PyTorch module: each node is computed as its operator says, in the type that the module has.

So a file that anybody made has the same references as a module: itself in float64, in each precision, and with weights
moved by one rounding. Operators are in `operators`, and those of ONNX Runtime in `contrib`; of one that is not there,
ONNX's reference evaluator computes the node.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnport.contrib import SCHEMAS, evaluate
from attnport.errors import SpecError
from attnport.onnx_graph import CONTRIB, ir
from attnport.sources import operators
from attnport.sources.operators.base import OPERATORS, Call
from attnport.sources.operators.control import CONTROL

for _found in pkgutil.iter_modules(operators.__path__):
    importlib.import_module(f"{operators.__name__}.{_found.name}")

_CONTAINERS = ("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceAt", "SequenceErase",
               "SequenceLength", "SplitToSequence", "ConcatFromSequence")  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A node: its operator, the values that it reads and makes, and those that nobody reads after it."""

    kind: str
    domain: str
    opset: int
    attributes: Mapping[str, Any]
    graphs: Mapping[str, Plan]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    freed: tuple[str, ...]
    name: str
    proto: bytes


@dataclass(frozen=True)
class Plan:
    """A graph: its steps in order, its inputs and its outputs; names are those of the graph."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]


class OnnxModule(nn.Module):
    """Computes a graph of ONNX; takes its inputs by name, and returns its outputs by name.

    Initializers with a floating type are parameters, other constants buffers.

    Args:
        model: As `onnx_file.read` gives it: without functions of its own, and without types of 16 bits.
        inputs: By keyword of the forward, the name of a graph's input.
        outputs: By name of the result, the name of a graph's output.
    """

    def __init__(self, model: ir.Model, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        super().__init__()
        self._inputs, self._outputs = dict(inputs), dict(outputs)
        self._held: dict[str, str] = {}  # by name in the graph, that in the module
        self._constants: dict[str, Tensor] = {}
        # What the two floating types of a graph are in the module as it is cast.
        self.register_parameter("/type", nn.Parameter(torch.empty(0), requires_grad=False))
        self.register_parameter("/double", nn.Parameter(torch.empty(0, dtype=torch.float64), requires_grad=False))
        self._doubles = {str(value.name) for value in model.graph.inputs if value.dtype == ir.DataType.DOUBLE}
        self._plan = self._planned(model.graph, dict(model.opset_imports), set(outputs.values()))

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Outputs by name.

        Raises:
            RuntimeError: a node cannot be computed; the message names it.
        """
        values: dict[str, Any] = {self._inputs[name]: tensor for name, tensor in tensors.items()}
        for name in self._doubles & set(values):
            values[name] = values[name].to(getattr(self, "/double").dtype)
        self._run(self._plan, values)
        return {name: self._value(inside, values) for name, inside in self._outputs.items()}

    def _planned(self, graph: ir.Graph, opsets: Mapping[str, int], kept: set[str]) -> Plan:
        for value in graph.initializers.values():
            if value.const_value is not None:
                self._hold(str(value.name), value.const_value)
        steps: list[Step] = []
        last: dict[str, int] = {}
        for node in graph:
            if node.op_type == "Constant" and node.domain == "":
                self._hold(str(node.outputs[0].name), _constant(node), constant=True)
                continue
            graphs, attributes = {}, {}
            for name, attribute in node.attributes.items():
                if attribute.type.name == "GRAPH":
                    inner = attribute.as_graph()
                    graphs[name] = self._planned(inner, opsets, {str(out.name) for out in inner.outputs})
                else:
                    attributes[name] = _plain(attribute)
            read = [str(value.name) if value is not None else "" for value in node.inputs]
            for name in (*read, *(name for inner in graphs.values() for name in _reads(inner))):
                last[name] = len(steps)
            domain = "" if node.domain == "ai.onnx" else node.domain
            steps.append(
                Step(
                    node.op_type, domain, opsets.get(domain, 1), attributes, graphs, tuple(read),
                    tuple(str(value.name or "") for value in node.outputs), (), str(node.name),
                    b"" if graphs else _serialized(node),
                )
            )  # fmt: skip
        held = set(self._held) | kept
        freed: dict[int, list[str]] = {}
        made = {name for step in steps for name in step.outputs}
        for name, at in last.items():
            if name in made and name not in held:
                freed.setdefault(at, []).append(name)
        return Plan(
            tuple(str(value.name) for value in graph.inputs),
            tuple(str(value.name) for value in graph.outputs),
            tuple(replace(step, freed=tuple(freed.get(at, ()))) for at, step in enumerate(steps)),
        )

    def _hold(self, name: str, tensor: Any, constant: bool = False) -> None:
        array = tensor.numpy()
        if array.dtype.kind in "OUS":
            raise SpecError(f"constant {name} of the graph holds texts, which PyTorch has no tensors of.",
                            hint="Leave text to what runs before the model.")  # fmt: skip
        held = torch.from_numpy(array.copy())
        own = "/" + name.replace(".", "/")
        while own in self._parameters or own in self._buffers:
            own += "_"
        self._held[name] = own
        if held.dtype == torch.float32 and (constant or held.numel() == 1):
            # A cast of the module to half precision would make a large number infinite. Its bits are for the digest.
            self._constants[name] = held
            self.register_buffer(own, held.view(torch.int32))
        elif held.is_floating_point():
            self.register_parameter(own, nn.Parameter(held, requires_grad=False))
        else:
            self.register_buffer(own, held)

    def _run(self, plan: Plan, values: dict[str, Any]) -> None:
        like: Tensor = getattr(self, "/type")
        for step in plan.steps:
            call = Call(step.kind, step.attributes, step.opset, len(step.outputs), like.dtype, like.device)
            read = [self._value(name, values) for name in step.inputs]
            while read and read[-1] is None:
                read.pop()
            try:
                found = self._computed(step, call, read, values)
            except Exception as err:  # what PyTorch raises does not say where in the graph it was
                raise RuntimeError(f"node {step.name} ({step.kind}): {type(err).__name__}: {err}") from err
            results = found if isinstance(found, tuple | list) and step.kind not in _CONTAINERS else (found,)
            values.update((name, result) for name, result in zip(step.outputs, results, strict=False) if name)
            for name in step.freed:
                values.pop(name, None)

    def _value(self, name: str, values: Mapping[str, Any]) -> Any:
        if not name:
            return None
        if name in values:
            return values[name]
        if name in self._constants:
            return _in_range(self._constants[name], getattr(self, "/type"))
        return getattr(self, self._held[name])

    def _computed(self, step: Step, call: Call, read: list[Any], values: dict[str, Any]) -> Any:
        if step.graphs and step.kind in CONTROL:
            runs = {name: self._inner(plan, values) for name, plan in step.graphs.items()}
            return CONTROL[step.kind](call, runs, *read)
        if step.domain == CONTRIB and step.kind in SCHEMAS:
            return evaluate(step.kind, read, call.attributes)
        if step.domain or step.kind not in OPERATORS:
            return _by_reference(step, call, read)
        try:
            return OPERATORS[step.kind](call, *read)
        except NotImplementedError:
            return _by_reference(step, call, read)

    def _inner(self, plan: Plan, values: Mapping[str, Any]) -> Callable[[Sequence[Any]], list[Any]]:
        def run(given: Sequence[Any]) -> list[Any]:
            inside = {**values, **dict(zip(plan.inputs, given, strict=True))}
            self._run(plan, inside)
            return [self._value(name, inside) for name in plan.outputs]

        return run


def is_known(node: ir.Node) -> bool:
    """Whether PyTorch computes a node here, so that no definition of its operator is needed."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain == CONTRIB:
        return node.op_type in SCHEMAS
    return domain == "" and node.op_type in (*OPERATORS, *CONTROL, "Constant")


def _in_range(tensor: Tensor, like: Tensor) -> Tensor:
    """Numbers in another type, its largest in place of larger ones, as code has it that asks for a type's largest."""
    if like.dtype != torch.float16:
        return tensor.to(like)
    most = torch.finfo(like.dtype).max
    return torch.where(tensor.isinf(), tensor, tensor.clamp(-most, most)).to(like)


def _reads(plan: Plan) -> Iterator[str]:
    """The values that a graph reads, its own among them."""
    for step in plan.steps:
        yield from step.inputs
        for inner in step.graphs.values():
            yield from _reads(inner)
    yield from plan.outputs


def _constant(node: ir.Node) -> Any:
    for name, attribute in node.attributes.items():
        if name == "value":
            return attribute.as_tensor()
        if name in ("value_float", "value_floats", "value_int", "value_ints"):
            kind = ir.DataType.FLOAT if "float" in name else ir.DataType.INT64
            return ir.tensor(attribute.value, dtype=kind)
    raise SpecError(
        f"constant {node.outputs[0].name} of the graph is given as {', '.join(node.attributes) or 'nothing'}, which is "
        "not read here.", hint="Write it as a tensor.",
    )  # fmt: skip


def _plain(attribute: ir.Attr) -> Any:
    kind = attribute.type.name
    if kind == "TENSOR":
        return torch.from_numpy(attribute.as_tensor().numpy().copy())
    return list(attribute.value) if kind.endswith("S") else attribute.value


def _serialized(node: ir.Node) -> bytes:
    data: bytes = ir.to_proto(node).SerializeToString()
    return data


def _by_reference(step: Step, call: Call, read: Sequence[Any]) -> Any:
    """The outputs of a node by ONNX's reference evaluator; raises NotImplementedError where it has no such operator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    node = onnx.NodeProto.FromString(step.proto)
    names = [name for name in step.inputs if name]
    graph = onnx.helper.make_graph(
        [node], "node", [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names)],
        [onnx.ValueInfoProto(name=name) for name in step.outputs if name],
    )  # fmt: skip
    opset = onnx.helper.make_opsetid(step.domain, step.opset)
    model = onnx.helper.make_model(graph, opset_imports=[opset])
    given = [one for one, name in zip(read, step.inputs, strict=False) if name]
    feeds = {name: _array(one) for name, one in zip(names, given, strict=False)}
    found = ReferenceEvaluator(model).run(None, feeds)
    made = iter(found)
    results = [_tensor(next(made), call) if name else None for name in step.outputs]
    return results[0] if step.kind in _CONTAINERS else results


def _array(value: Any) -> Any:
    if isinstance(value, list):
        return [_array(one) for one in value]
    # NumPy knows no bfloat16, and computes little in float16; the result gets its type again.
    return (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).detach().cpu().numpy()


def _tensor(value: Any, call: Call) -> Any:
    import numpy as np

    if isinstance(value, list):
        return [_tensor(one, call) for one in value]
    tensor = torch.from_numpy(np.ascontiguousarray(value).reshape(np.shape(value))).to(call.device)
    return tensor.to(call.dtype) if tensor.is_floating_point() else tensor
