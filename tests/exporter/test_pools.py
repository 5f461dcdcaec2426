"""Zeros that a module pads before a pool are zeros in ONNX Runtime too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from running import on_openvino, on_ort
from torch import nn
from torch.nn import functional

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all sides": lambda x: functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 3, 2),
    "one axis, at its end": lambda x: functional.max_pool2d(functional.pad(x, (0, 2)), (1, 3)),
    "beside the pool's own": lambda x: functional.max_pool2d(functional.pad(x, (1, 0, 1, 0)), 3, 1, padding=1),
    "a row": lambda x: functional.max_pool1d(functional.pad(x[:, :, 0], (2, 0)), 3, 1),
    "minus infinity": lambda x: functional.max_pool2d(functional.pad(x, (1, 1, 1, 1), value=-torch.inf), 3, 2),
}


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("run_on", [on_ort, on_openvino])
@pytest.mark.parametrize("name", CASES)
def test_the_maximum_at_the_border_is_of_zeros_that_were_padded(name: str, run_on: Callable[..., Any]) -> None:
    module = Called(CASES[name]).eval()
    x = torch.randn(3, 4, 9, 8, generator=torch.Generator().manual_seed(0)) - 4
    expected = module(x).numpy()
    contract = IOContract(
        (TensorSpec("x", "float32", ("batch", 4, 9, 8)),),
        (TensorSpec("y", "float32", ("batch", *expected.shape[1:])),),
        (Dim("batch", 1, 2, 4),),
    )
    np.testing.assert_array_equal(run_on(capture(module, contract).model)({"x": x.numpy()})[0], expected)
