"""Masks compared in int32 give what int64 gives, for numbers that int32 does not hold too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from running import on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture
from attnport.exporter.targets import base

T = 6
HEADS = ("batch", 2, T, 16)


class Hidden(nn.Module):
    """Attention whose allowed keys are `keep(number)`."""

    def __init__(self, keep: Callable[[Any], Any]) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, q: Any, number: Any) -> Any:
        scores = (q @ q.transpose(-1, -2)).masked_fill(~self.keep(number), -math.inf)
        return torch.nan_to_num(scores.softmax(-1) @ q)


def _documents(number: Any) -> Any:
    return (number[:, :, None] == number[:, None, :])[:, None]


def _lengths(number: Any) -> Any:
    return (torch.arange(T) < number[:, None])[:, None, None, :]


def _prefix(number: Any) -> Any:
    i, j = torch.arange(T)[:, None], torch.arange(T)
    return (j <= i) | (j < number[:, None, None])[:, None]


def _earlier(number: Any) -> Any:
    return (number[:, None, :] <= number[:, :, None])[:, None]


BIG = 2**32
CASES = {
    "documents": (_documents, [[0, 0, BIG, BIG, 1, BIG + 1], [-1, BIG - 1, 5, 5 - BIG, 5, -1]]),
    "documents_at_the_ends": (
        _documents,
        [[2**63 - 1, -(2**63), -1, 0, 2**63 - 1, 2**31], [2**31, -(2**31), 0, 1, 1, 2]],
    ),
    "lengths": (_lengths, [2**40, -(2**40)]),
    "prefix": (_prefix, [2**62, 2]),
    "events": (_earlier, [[2**40, 2**41, 0, 2**40 + 1, 1, 2], [3, 2, 1, 2**33, 2**34, 2**35]]),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_beyond_int32_are_compared_as_in_torch(name: str) -> None:
    keep, rows = CASES[name]
    q = np.random.default_rng(0).standard_normal((2, 2, T, 16)).astype(np.float32)
    feeds = {"q": q, "number": np.array(rows, np.int64)}
    low = lowered(keep)
    got = on_ort(low)(feeds)[0]
    expected = Hidden(keep)(torch.from_numpy(q), torch.from_numpy(feeds["number"])).numpy()
    assert np.abs(got - expected).max() < 1e-5


@pytest.mark.parametrize("keep", [_documents, _lengths, _prefix], ids=lambda keep: keep.__name__.strip("_"))
def test_comparisons_are_in_int32(keep: Callable[[Any], Any]) -> None:
    types = {
        value.dtype
        for node in lowered(keep).graph
        if node.op_type in ("Equal", "Less", "LessOrEqual") and "mask/" in str(node.name)
        for value in node.inputs
        if value is not None
    }
    assert types <= {ir.DataType.INT32, ir.DataType.BOOL}
    assert ir.DataType.INT32 in types


def lowered(keep: Callable[[Any], Any]) -> ir.Model:
    number = TensorSpec("number", "int64", ("batch",) if keep in (_lengths, _prefix) else ("batch", T))
    io = IOContract(
        (TensorSpec("q", "float32", HEADS), number),
        (TensorSpec("y", "float32", HEADS),),
        (Dim("batch", 1, 2, 4),),
    )
    found = capture(Hidden(keep).eval(), io)
    result = base.get("tensorrt").lower(found.model, found.attentions, plan="fp32")
    assert list(result.forms) == [attention.name for attention in found.attentions], result.notes
    return result.model
