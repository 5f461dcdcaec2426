"""Keeps ONNX Runtime from taking zeros that are padded for the padding of a `MaxPool`, which is minus infinity.

It does so where a `Pad` names the padding of all axes (https://github.com/microsoft/onnxruntime/pull/18136), so that a
window of negative numbers at the border has another maximum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.exporter.naming import all_nodes

if TYPE_CHECKING:
    import onnx_ir as ir


def name_padded_axes(model: ir.Model) -> int:
    """Has each constant `Pad` before a `MaxPool` name the axes that it pads, in place; returns how many do so now."""
    import numpy as np
    import onnx_ir as ir

    changed = 0
    for pool in list(all_nodes(model)):
        pad = pool.inputs[0].producer() if pool.op_type == "MaxPool" and pool.inputs[0] is not None else None
        if pad is None or pad.op_type != "Pad" or pad.graph is None:
            continue
        if len(pad.inputs) > 3 and pad.inputs[3] is not None:
            continue
        known = ir.convenience.get_const_tensor(pad.inputs[1]) if pad.inputs[1] is not None else None
        if known is None:
            continue
        begin_end = known.numpy().reshape(2, -1)
        axes = np.flatnonzero(begin_end.any(axis=0))
        wanted = {"pads": begin_end[:, axes].reshape(-1), "axes": axes.astype(np.int64)}
        constants = [ir.node("Constant", [], {"value": ir.tensor(array)}) for array in wanted.values()]
        pad.graph.insert_before(pad, constants)
        pad.resize_inputs(4)
        pad.replace_input_with(1, constants[0].outputs[0])
        pad.replace_input_with(3, constants[1].outputs[0])
        changed += 1
    return changed
