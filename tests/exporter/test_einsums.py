"""An Einsum of several operands is written with two at a time, which every runtime takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from running import on_openvino, on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture
from attnport.exporter.naming import all_nodes

EQUATIONS = {
    "...de,...nd,...n->...ne": ((2, 3, 4, 5), (2, 3, 6, 4), (2, 3, 6)),  # Performer
    "bnhd,bhdv,bnh->bnhv": ((2, 6, 3, 4), (2, 3, 4, 5), (2, 6, 3)),  # LoFTR of kornia
    "...id,...jd->...ij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "...i,...->...i": ((2, 3, 4), (2, 3)),
    "...i,...i->...": ((2, 3, 4), (3, 4)),  # of fewer leading axes
    "bi,bj,bk->ijk": ((2, 3), (2, 4), (2, 5)),
    "bij,jk,kl,bl->bi": ((2, 3, 4), (4, 5), (5, 6), (2, 6)),
}


class Summed(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: Any = None, d: Any = None) -> torch.Tensor:
        return torch.einsum(self.equation, *(each for each in (a, b, c, d) if each is not None)) + 0


@pytest.mark.parametrize("run_on", [on_ort, on_openvino])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_operands_are_taken_two_at_a_time(equation: str, run_on: Callable[..., Any]) -> None:
    shapes = EQUATIONS[equation]
    generator = torch.Generator().manual_seed(0)
    feeds = dict(zip("abcd", (torch.randn(shape, generator=generator) for shape in shapes), strict=False))
    expected = torch.einsum(equation, *feeds.values()).numpy()
    contract = IOContract(
        tuple(TensorSpec(name, "float32", tuple(feed.shape)) for name, feed in feeds.items()),
        (TensorSpec("y", "float32", expected.shape),),
        (Dim("batch", 1, 2, 4),),
    )
    model = capture(Summed(equation).eval(), contract).model
    assert all(len(node.inputs) < 3 for node in all_nodes(model) if node.op_type == "Einsum")
    found = run_on(model)({name: feed.numpy() for name, feed in feeds.items()})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
