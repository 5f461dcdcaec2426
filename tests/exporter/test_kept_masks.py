"""A mask that a module keeps at its largest length and cuts to the length at hand, as GPTs do."""

from __future__ import annotations

import math
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

LARGEST = 16


class Kept(nn.Module):
    """nanoGPT's attention: the triangle has the size of the longest sequence, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(LARGEST, LARGEST)).view(1, 1, LARGEST, LARGEST))

    def forward(self, x: Any) -> Any:
        length = x.size(2)
        att = (x @ x.transpose(-2, -1)) / math.sqrt(x.size(-1))
        att = att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        return nn.functional.softmax(att, dim=-1) @ x


class Branches(nn.Module):
    """Takes another way at a length that is not the largest."""

    def forward(self, x: Any) -> Any:
        return x * 2 if x.size(2) == 5 else x


def contract() -> IOContract:
    x, y = (TensorSpec(name, "float32", ("batch", 2, "seq", 4)) for name in "xy")
    return IOContract((x,), (y,), (Dim("batch", 1, 2, 4), Dim("seq", 1, 5, LARGEST)))


@pytest.mark.parametrize("length", [1, 7, LARGEST - 1, LARGEST])
def test_it_is_causal_at_every_length_the_largest_too(length: int) -> None:
    module = Kept().eval()
    found = capture(module, contract())
    lowered = base.get("ort_cpu").lower(found.model, found.attentions, plan="fp32")
    assert lowered.masks == {"module": "causal"}
    assert all(tensor.size < LARGEST**2 for tensor in lowered.model.graph.initializers.values()), "the triangle is gone"
    x = np.random.default_rng(length).standard_normal((2, 2, length, 4)).astype(np.float32)
    expected = module(torch.from_numpy(x)).numpy()
    assert np.abs(on_ort(lowered.model)({"x": x})[0] - expected).max() < 1e-5


def test_a_branch_at_another_length_is_a_guard_that_export_tries() -> None:
    assert [dict(guard.sizes) for guard in capture(Branches().eval(), contract()).guards] == [{"seq": 5}]


def test_the_contract_keeps_the_largest_length() -> None:
    dims = capture(Kept().eval(), contract()).model.graph.inputs[0].shape
    assert dims is not None
    assert isinstance(dims[2], ir.SymbolicDim)
