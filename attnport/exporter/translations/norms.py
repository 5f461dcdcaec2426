"""Group normalisation of numbers far from zero, and RMS norm without weights.

torch's exporter writes ONNX's `GroupNormalization`. ONNX Runtime has no kernel of it and computes ONNX's own formula,
whose variance is a difference of two means that loses all digits there
(https://github.com/microsoft/onnxruntime/issues/24538).

Of an RMS norm without weights, it makes the scale of the whole shape of the input: it is then as large as the input,
and its batch does not follow where rows of padding are left out (`aten_rms_norm` in
torch/onnx/_internal/exporter/_torchlib/ops/nn.py, torch 2.13).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnxscript import opset23

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """The operators of this file."""
    return {torch.ops.aten.group_norm.default: group_norm, torch.ops.aten.rms_norm.default: rms_norm}


def group_norm(
    self: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-05, cudnn_enabled: bool = True
) -> Any:
    """Each group as one channel of an instance normalisation, `[N,G,-1]`; then the weights of the channels `[N,C,...]`.

    Its kernels take the mean off before they square.
    """
    groups = op.Reshape(self, op.Constant(value_ints=[0, num_groups, -1]))
    ones, zeros = (op.CastLike(op.Constant(value_floats=[value] * num_groups), self) for value in (1.0, 0.0))
    result = op.Reshape(op.InstanceNormalization(groups, ones, zeros, epsilon=eps), op.Shape(self))
    by_channel = op.Constant(value_ints=[-1, *[1] * (len(self.shape) - 2)])
    if weight is not None:
        result = op.Mul(result, op.Reshape(weight, by_channel))
    return result if bias is None else op.Add(result, op.Reshape(bias, by_channel))


def rms_norm(self: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """The norm over the last axes; without a weight, its scale is of these axes alone."""
    if weight is None:
        ones = onnx.numpy_helper.from_array(np.ones(list(normalized_shape), np.float32))
        weight = op.CastLike(op.Constant(value=ones), self)
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    newer: Any = opset23
    return newer.RMSNormalization(self, weight, axis=-len(normalized_shape), epsilon=eps)
