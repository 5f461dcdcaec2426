"""The tensors of a traced module, computed in another precision than that of the trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import named_program
from attnport.masks import MaskSpec
from attnport.runtimes._torch_values import TracedModule

IO = IOContract(
    inputs=(TensorSpec("x", "float32", ("batch", "seq", 16)), TensorSpec("mask", "int64", ("batch", "seq"), high=2)),
    outputs=(TensorSpec("hidden", "float32", ("batch", "seq", 16)),),
    dims=(Dim("batch", 1, 2, 4), Dim("seq", 1, 5, 16)),
    masks=(MaskSpec(("padding",), "mask"),),
)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.attention(x, x, x, key_padding_mask=mask == 0, need_weights=False)[0]
        return hidden


@pytest.mark.parametrize("float64", [False, True])
def test_masked_attention_runs_in_the_precision_that_it_was_not_traced_in(float64: bool) -> None:
    module = Masked().eval()
    x, mask = torch.randn(2, 5, 16), torch.ones(2, 5, dtype=torch.int64)
    mask[1, 3:] = 0
    traced = TracedModule(named_program(module, IO), ["hidden"], "fp32", float64=float64)
    found = traced.run({"x": x.numpy(), "mask": mask.numpy()}, ["hidden"])["hidden"]
    assert found.dtype == (np.float64 if float64 else np.float32)
    np.testing.assert_allclose(found, module(x, mask).detach().numpy(), atol=1e-5)
