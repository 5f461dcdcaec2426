"""OpenVINO on CPU, in exactly the requested precision, with proof of fusion from its compiled model.

For the proof that one layer covers an attention, names are not enough: an ONNX `Attention` becomes a
`ScaledDotProductAttention` whose name OpenVINO makes up, and compilation may split that again and put the parts into a
`Subgraph`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attnport.artifacts import Evidence, IOContract, Ran, Session
from attnport.errors import UnavailableError
from attnport.runtimes.base import (
    Array,
    CheckedSession,
    Opening,
    Runtime,
    broken,
    checked_model,
    physical_cores,
    read_graph,
    refused,
)
from attnport_bundle.runtimes.openvino import PRECISIONS, Stepping, compiled, infer

MARK = "@attnport:"
_WHOLE = "ScaledDotProductAttention"
_LAYERS = ("ScaledDotProductAttention", "Subgraph", "MHA")
# Layers that only change layout, type or single elements between a product and the layer that uses its result.
_LIGHT = ("Eltwise", "Convert", "Reorder", "Reshape", "Transpose", "Broadcast", "Softmax", "Math", "Subgraph")


class OpenVino(Runtime):
    """OpenVINO's CPU plugin."""

    name = "openvino"
    opens = "onnx"
    package = "openvino"
    form = "openvino"
    plans = tuple(PRECISIONS)
    instead = "Use onnx_reference for the numbers of a half-precision form."
    distributions = ("openvino*",)

    def version(self) -> str:
        """Without the build's number."""
        return super().version().split("-")[0]

    def able(self) -> dict[str, Any]:
        """Computes in the precisions that the CPU has instructions for."""
        core = self.module().Core()
        devices = tuple(core.available_devices)
        if "CPU" not in devices:
            raise UnavailableError("this OpenVINO has no CPU plugin.")
        able = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        plans = tuple(plan for plan, word in PRECISIONS.items() if word == "f32" or word.upper() in able)
        return {"devices": devices, "plans": plans}

    def session(self, opening: Opening) -> Session:
        """Opens the form `openvino`, an fp32 graph."""
        path, _ = checked_model(dataclasses.replace(opening, plan="fp32"))
        return _OpenVinoSession(opening, path)

    def evidence(
        self, model: Path, anchors: Mapping[str, tuple[str, ...]], plan: str, io: IOContract | None
    ) -> dict[str, Evidence]:
        """Attentions that one layer of the compiled model covers.

        The product QK^T, the softmax and the product PV of each attention are found in OpenVINO's graph before
        compilation and get names of ours. The layer of the compiled model that lists all three names is the evidence.
        """
        outputs = {node.name: node.output[0] for node in read_graph(model).graph.node if node.output}
        graph = _read(model)
        marked = mark(graph, anchors, outputs)
        products = {op.get_friendly_name() for op in graph.get_ops() if op.get_type_name() in ("MatMul", _WHOLE)}
        return covering_layers(_compiled(model, graph, plan, 1).get_runtime_model(), marked, products)


def _read(path: Path) -> Any:
    import openvino

    try:
        return openvino.Core().read_model(str(path))
    except Exception as err:  # a runtime's own exceptions share no base
        raise broken(path, err) from err


def _compiled(path: Path, graph: Any, plan: str, threads: int | None) -> Any:
    """Compiles for the CPU and checks the precision that is really used. Raises BundleError or RuntimeMissing."""
    import openvino

    return compiled(openvino, graph, plan, threads or physical_cores(), path)


class _OpenVinoSession(CheckedSession):
    def __init__(self, opening: Opening, path: Path) -> None:
        import openvino

        super().__init__(opening.io, Ran("CPU", f"openvino {openvino.__version__.split('-')[0]}", opening.plan))
        graph = _read(path)
        compile_graph = partial(_compiled, path, plan=opening.plan, threads=opening.threads)
        self._compiled = compile_graph(graph)
        self._request = self._compiled.create_infer_request()
        self.new_steps = Stepping(graph, compile_graph, self._guarded)

    @contextmanager
    def _guarded(self, feeds: Mapping[str, Array]) -> Iterator[None]:
        with self._open(), refused("OpenVINO", feeds):
            yield

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused("OpenVINO", feeds):
            return infer(self._request, self._compiled, feeds, tuple(spec.name for spec in self._io.outputs))

    def _free(self) -> None:
        self._request = self._compiled = None
        self.new_steps.close()


def mark(graph: Any, anchors: Mapping[str, tuple[str, ...]], outputs: Mapping[str, str]) -> dict[str, set[str]]:
    """Gives the operators of each attention in OpenVINO's graph a name of ours.

    Args:
        graph: An `openvino.Model`, before compilation.
        anchors: ONNX node names by attention.
        outputs: For each ONNX node, the name of its first output, which OpenVINO keeps on the port that carries it.

    Returns:
        The new names by attention; an attention of which an operator was not found is missing.
    """
    ports = {name: port for op in graph.get_ops() for port in op.outputs() for name in port.get_names()}
    marked: dict[str, set[str]] = {}
    for index, (attention, nodes) in enumerate(anchors.items()):
        starts = [ports.get(outputs.get(node, "")) for node in nodes]
        if any(start is None for start in starts):
            continue
        operators = _one_operator(starts[0]) if len(nodes) == 1 else [_behind(start) for start in starts]
        if None in operators or not operators:
            continue
        marked[attention] = set()
        for part, operator in enumerate(operators):
            # No comma: the compiled model lists original names separated by commas.
            name = f"{index}.{part}{MARK}{operator.get_type_name()}"
            operator.set_friendly_name(name)
            marked[attention].add(name)
    return marked


def _one_operator(output: Any) -> list[Any]:
    """The operators that OpenVINO made of one attention operator: one, or two products and the softmax between them."""
    last = _first(output.get_node(), (_WHOLE, "MatMul"))
    if last is None or last.get_type_name() == _WHOLE:
        return [last]
    softmax = _first(last.input_value(0).get_node(), ("Softmax",))
    product = _first(softmax.input_value(0).get_node(), ("MatMul",)) if softmax else None
    return [product, softmax, last]


def _behind(output: Any) -> Any:
    """The product or softmax that computes an ONNX output; OpenVINO may have put a conversion after it."""
    return _first(output.get_node(), ("MatMul", "Softmax"))


def _first(start: Any, kinds: tuple[str, ...]) -> Any | None:
    """The nearest operator of one of `kinds` at or before `start`."""
    seen, pending = set(), [start]
    while pending:
        operator = pending.pop(0)
        if operator.get_type_name() in kinds:
            return operator
        if operator.get_friendly_name() in seen or operator.get_type_name() in ("Parameter", "Constant"):
            continue
        seen.add(operator.get_friendly_name())
        pending.extend(value.get_node() for value in operator.input_values())
    return None


def covering_layers(
    runtime_model: Any, marked: Mapping[str, set[str]], products: Collection[str]
) -> dict[str, Evidence]:
    """The attention layer that lists all marked operators of an attention, as evidence, by attention.

    Args:
        products: The names of all products and attentions of the graph before compilation.
    """
    evidence: dict[str, Evidence] = {}
    for layer in runtime_model.get_ops():
        kind, originals = _info(layer, "layerType"), _originals(layer)
        if kind not in _LAYERS:
            continue
        for attention, names in marked.items():
            if not names <= originals or (kind == "Subgraph" and not _whole_inside(layer, names, originals, products)):
                continue
            parts = ", ".join(sorted(name.split(MARK)[-1] for name in originals if name))
            evidence[attention] = Evidence(
                kind, f"runtime model: one {kind} ({_info(layer, 'primitiveType')}) made of {parts}"
            )
    return evidence


def _whole_inside(layer: Any, names: set[str], originals: set[str], products: Collection[str]) -> bool:
    """Whether a Subgraph that lists a ScaledDotProductAttention, which OpenVINO split, holds all of it.

    OpenVINO keeps the name at the last product. So the softmax must be among the originals, and none of the layer's
    inputs may come from QK^T as a layer of its own: a product without the name of one that was in the graph before, as
    those have that compute keys or a bias.
    """
    if not any(name.endswith(_WHOLE) for name in names):
        return True
    has_softmax = any(name.startswith("Softmax_") for name in originals)
    return has_softmax and not any(
        _info(source, "layerType") == "MatMul" and _originals(source).isdisjoint(products) for source in _sources(layer)
    )


def _sources(layer: Any) -> Iterator[Any]:
    """The layers that feed `layer`, directly or through light layers."""
    pending, seen = [value.get_node() for value in layer.input_values()], set()
    while pending:
        source = pending.pop()
        if source.get_friendly_name() in seen:
            continue
        seen.add(source.get_friendly_name())
        yield source
        if _info(source, "layerType") in _LIGHT:
            pending.extend(value.get_node() for value in source.input_values())


def _originals(layer: Any) -> set[str]:
    """The names of the operators that a layer was made of."""
    return set(_info(layer, "originalLayersNames").split(","))


def _info(layer: Any, key: str) -> str:
    info = layer.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


RUNTIME = OpenVino()
