"""Spellings captured, lowered and run: on ONNX Runtime, on OpenVINO, on the reference evaluator."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from kept import kept
from spellings import ALL
from spellings.case import SIZES, Arrays, Case
from torch import nn

from attnport.artifacts import IOContract, SourceAttention
from attnport.cases.inputs import validity
from attnport.exporter.capture import capture
from attnport.exporter.targets import base
from attnport.exporter.targets.base import Lowered, Lowering
from attnport.masks import MaskSpec

Outputs = list[np.ndarray[Any, Any]]
Run = Callable[[Arrays], Outputs]
ON_ORT = ("onnx", "onnx_18", "ort_cpu")


@dataclass(frozen=True)
class Exported:
    """A module as exported, with the attentions that were counted; each test changes a graph of its own."""

    data: bytes
    attentions: tuple[SourceAttention, ...]
    masks: tuple[MaskSpec, ...]

    @property
    def model(self) -> ir.Model:
        return ir.from_proto(onnx.load_model_from_string(self.data))

    def lowered(self, target: str | Lowering, plan: str = "fp32") -> Lowered:
        lowering = base.get(target) if isinstance(target, str) else target
        return lowering.lower(self.model, self.attentions, masks=self.masks, plan=plan)


def export(module: nn.Module, io: IOContract) -> Exported:
    found = capture(module.eval(), io)
    return Exported(ir.to_proto(found.model).SerializeToString(), found.attentions, io.masks)


@functools.cache
def captured(name: str) -> Exported:
    """The spelling called `name`, as exported, once for this state of the sources."""

    def make() -> tuple[bytes, tuple[SourceAttention, ...]]:
        made = export(ALL[name].module(), ALL[name].io)
        return made.data, made.attentions

    return Exported(*kept(name, make), ALL[name].io.masks)


def lowered(name: str, target: str, plan: str = "fp32") -> Lowered:
    """The spelling called `name`, lowered."""
    return captured(name).lowered(target, plan)


def on_ort(model: ir.Model) -> Run:
    """A session of ONNX Runtime CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    data = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(feeds: Arrays) -> Outputs:
        taken = {value.name for value in session.get_inputs()}
        return list(session.run(None, {name: array for name, array in feeds.items() if name in taken}))

    return run


def on_openvino(model: ir.Model) -> Run:
    """A compiled model of OpenVINO CPU, held to float32."""
    import openvino

    from attnport_bundle.runtimes.openvino import signal_stack_kept

    graph = openvino.Core().read_model(io.BytesIO(ir.to_proto(model).SerializeToString()))
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    with signal_stack_kept():
        compiled = openvino.Core().compile_model(graph, "CPU", settings)

    def run(feeds: Arrays) -> Outputs:
        found = compiled(dict(feeds))
        return [np.array(found[at]) for at in range(len(compiled.outputs))]

    return run


def on_reference(model: ir.Model) -> Run:
    """ONNX's reference evaluator, which computes in the types that the graph declares."""
    from onnx.reference import ReferenceEvaluator

    from attnport.runtimes._reference_ops import contrib_ops, name_outputs, replacements
    from attnport.runtimes.onnx_reference import _expanded

    proto = ir.to_proto(model)
    dtypes = {value.name: value.dtype.numpy() for value in model.graph.inputs if value.dtype is not None}
    if any("16" in str(dtype) for dtype in dtypes.values()):
        proto = _expanded(proto)
    name_outputs(proto)
    evaluator = ReferenceEvaluator(proto, new_ops=[*replacements(23), *contrib_ops()])

    def run(feeds: Arrays) -> Outputs:
        cast = {name: array.astype(dtypes[name]) for name, array in feeds.items()}
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, cast))

    return run


def distance(got: Outputs, expected: Outputs) -> float:
    """The largest difference; infinite where what was got is not finite or has another shape."""
    if [each.shape for each in got] != [each.shape for each in expected]:
        return math.inf
    errors = [np.abs(a.astype(np.float64) - b) for a, b in zip(got, expected, strict=True)]
    return max(float(error.max()) if np.isfinite(error).all() else math.inf for error in errors)


def judged(case: Case, feeds: Arrays, outputs: Outputs) -> Outputs:
    """Outputs with zero in rows of padding, where a form may give anything that is finite."""
    found = []
    for spec, array in zip(case.io.outputs, outputs, strict=True):
        valid = validity(case.io, feeds)[spec.name]
        found.append(np.where(valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim)), array, 0))
    return found


def check_numbers(run: Run, case: Case, *, within: float) -> None:
    """What `run` gives is what the module gives in float64, at every size."""
    for seed, sizes in enumerate(SIZES):
        feeds = case.feeds(sizes, seed=seed)
        outputs = run(feeds)
        assert all(np.isfinite(array).all() for array in outputs)
        got, expected = (judged(case, feeds, each) for each in (outputs, case.reference(feeds)))
        assert distance(got, expected) < within, sizes
