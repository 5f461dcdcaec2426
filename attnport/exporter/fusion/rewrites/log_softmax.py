"""Rewrites `exp(log_softmax(x))` as a softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.builder import Builder

if TYPE_CHECKING:
    import onnx_ir as ir


def apply(model: ir.Model) -> int:
    """Replaces each `exp(log_softmax(x))`; returns how many were replaced."""
    build = Builder(model)
    replaced = 0
    for node in [node for node in model.graph if node.op_type == "Exp" and node.domain == ""]:
        log = node.inputs[0].producer() if node.inputs[0] is not None else None
        if log is None or log.op_type != "LogSoftmax" or log.domain != "":
            continue
        build.before, build.scope = node, log.name or ""
        axis = log.attributes["axis"].as_int() if "axis" in log.attributes else -1
        build.replace(node.outputs[0], build.op("Softmax", log.inputs[0], name="softmax", axis=axis))
        replaced += 1
    return replaced
