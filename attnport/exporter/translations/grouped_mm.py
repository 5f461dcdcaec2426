"""Products of sorted rows with one matrix for each group, which transformers 5 computes experts with.

`aten._grouped_mm` has no ONNX form (https://github.com/microsoft/onnxscript/issues/2795); on
CPUs transformers calls an operator of its own instead, which no exporter knows.
"""

from __future__ import annotations

from typing import Any

import torch

from attnport.exporter.translations import Translation, op


def table() -> dict[Any, Translation]:
    """torch's operator, and that of transformers if it is there."""
    found: dict[Any, Translation] = {}
    for library, name in (("aten", "_grouped_mm"), ("transformers", "grouped_mm_fallback")):
        packet = getattr(getattr(torch.ops, library), name, None)
        if packet is not None:
            found[packet.default] = grouped_mm
    return found


def grouped_mm(mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Rows `[M,K]`, sorted by group, each times its group's matrix of `[G,K,N]`: `[M,N]`.

    A group's rows end at its element of `offs`; torch leaves rows behind the last end undefined, and here they belong
    to the last group. Gathering a matrix for each row instead would take `M*K*N` numbers.
    """
    groups = mat_b.shape[0]
    if not isinstance(groups, int) or len(mat_a.shape) != 2 or offs is None or out_dtype is not None:
        raise ValueError(f"grouped_mm of {mat_a.shape} and {mat_b.shape} is not supported; expected [M,K], [G,K,N].")
    first = op.Constant(value_ints=[0])
    one = op.Constant(value_int=1)
    rows = op.Squeeze(op.Shape(mat_a, start=0, end=1), first)
    begin = op.Constant(value_int=0)
    parts = []
    for group in range(groups):
        at = op.Constant(value_int=group)
        end = rows if group == groups - 1 else op.Cast(op.Gather(offs, at, axis=0), to=7)
        part = op.MatMul(op.Gather(mat_a, op.Range(begin, end, one), axis=0), op.Gather(mat_b, at, axis=0))
        parts.append(part if bias is None else op.Add(part, op.Gather(bias, at, axis=0)))
        begin = end
    return op.Concat(*parts, axis=0)
