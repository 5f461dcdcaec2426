"""A squeeze of one axis, which in torch does nothing where that axis has another size than 1.

torch.onnx writes ONNX's Squeeze for every size, which fails at any other than 1.
"""

from __future__ import annotations

from typing import Any

from attnport.exporter.translations import Translation, opset


def table() -> dict[Any, Translation]:
    """The operators of this file."""
    import torch

    return {torch.ops.aten.squeeze.dim: _squeeze}


def _squeeze(x: Any, dim: int) -> Any:
    """The trace has decided it: an axis that was 1 is the number 1, and of a symbol the trace requires that it is not.

    Only a symbol or another number leaves the tensor as it is; where nothing is known of the shape, the axis goes.
    """
    op = opset()
    if x.shape is not None and (len(x.shape) == 0 or x.shape[dim] != 1):
        return op.Identity(x)
    return op.Squeeze(x, op.Constant(value_ints=[dim]))
