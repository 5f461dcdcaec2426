"""RMS norm without weights, whose scale torch's exporter makes of the whole shape of the input.

The scale is then as large as the input, and its batch does not follow where rows of padding are left out
(`aten_rms_norm` in torch/onnx/_internal/exporter/_torchlib/ops/nn.py, torch 2.13).
"""

from __future__ import annotations

from typing import Any

from attnport.exporter.translations import Translation


def table() -> dict[Any, Translation]:
    """The operator."""
    import torch

    return {torch.ops.aten.rms_norm.default: rms_norm}


def rms_norm(self: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """The norm over the last axes; without a weight, its scale is of these axes alone."""
    import numpy as np
    import onnx
    import torch
    from onnxscript import opset23

    op: Any = opset23
    if weight is None:
        ones = onnx.numpy_helper.from_array(np.ones(list(normalized_shape), np.float32))
        weight = op.CastLike(op.Constant(value=ones), self)
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    return op.RMSNormalization(self, weight, axis=-len(normalized_shape), epsilon=eps)
