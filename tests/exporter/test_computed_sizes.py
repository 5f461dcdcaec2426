"""Sizes that a module computes from numbers and from its buffers are known while it is traced."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from running import on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import ExportError
from attnport.exporter.capture import capture

CONTRACT = IOContract(
    (TensorSpec("x", "float32", ("batch", 2, 30)),),
    (TensorSpec("y", "float32", ("batch", 2, 9)),),
    (Dim("batch", 1, 2, 4),),
)


class PadsByBuffers(nn.Module):
    """A convolution that computes its padding from buffers, as those of EnCodec and Mimi."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(2, 2, 7, stride=4)
        self.register_buffer("kernel", torch.tensor(7))
        self.register_buffer("stride", torch.tensor(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-1]
        count = torch.ceil((length - self.kernel) / self.stride + 1).to(torch.int64)
        extra = count * self.stride + self.kernel - length
        if extra >= length:
            x = nn.functional.pad(x, (0, extra))
        return self.conv(nn.functional.pad(x, (int(self.kernel - self.stride), extra)))


class CutsByTable(nn.Module):
    """Rows of several levels, whose sides are in a tensor, as the places of SAM 3's levels are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sides = torch.tensor([(3, 3), (3, 7)])
        levels = x.split(sides.prod(1).tolist(), dim=-1)
        return nn.functional.scaled_dot_product_attention(levels[0], levels[0], levels[0])


@pytest.mark.parametrize("kind", [PadsByBuffers, CutsByTable])
def test_a_size_that_follows_from_numbers_is_a_number(kind: type[nn.Module]) -> None:
    module = kind().eval()
    buffers = dict(module.named_buffers())
    forward = module.forward
    run = on_ort(capture(module, CONTRACT).model)
    assert module.forward == forward, "the module is as before"
    assert all(one is buffers[name] for name, one in module.named_buffers())
    assert len(list(module.named_buffers())) == len(buffers)
    for batch in (1, 3):
        x = torch.randn(batch, 2, 30, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            expected = module(x).numpy()
        np.testing.assert_allclose(run({"x": x.numpy()})[0], expected, rtol=1e-4, atol=1e-5)


class CutsByValues(nn.Module):
    """Rows whose number is in the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., : int(x[0, 0, 0])]


def test_a_size_in_an_input_is_refused_still() -> None:
    with pytest.raises(ExportError, match=r"test_computed_sizes\.py"):
        capture(CutsByValues().eval(), CONTRACT)
