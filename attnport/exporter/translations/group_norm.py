"""Group normalisation of numbers far from zero.

torch's exporter writes ONNX's `GroupNormalization`. ONNX Runtime has no kernel of it and computes ONNX's own formula,
whose variance is a difference of two means that loses all digits there
(https://github.com/microsoft/onnxruntime/issues/24538).
"""

from __future__ import annotations

from typing import Any

from attnport.exporter.translations import Translation


def table() -> dict[Any, Translation]:
    """The operator."""
    import torch

    return {torch.ops.aten.group_norm.default: group_norm}


def group_norm(
    self: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-05, cudnn_enabled: bool = True
) -> Any:
    """Each group as one channel of an instance normalisation, `[N,G,-1]`; then the weights of the channels `[N,C,...]`.

    Its kernels take the mean off before they square.
    """
    from onnxscript import opset18

    op: Any = opset18  # its types know no constants
    groups = op.Reshape(self, op.Constant(value_ints=[0, num_groups, -1]))
    ones, zeros = (op.CastLike(op.Constant(value_floats=[value] * num_groups), self) for value in (1.0, 0.0))
    result = op.Reshape(op.InstanceNormalization(groups, ones, zeros, epsilon=eps), op.Shape(self))
    by_channel = op.Constant(value_ints=[-1, *[1] * (len(self.shape) - 2)])
    if weight is not None:
        result = op.Mul(result, op.Reshape(weight, by_channel))
    return result if bias is None else op.Add(result, op.Reshape(bias, by_channel))
