"""A module of complex numbers in every precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import RUNTIME

E = 16
X, Y = (TensorSpec(name, "float32", ("batch", "seq", E)) for name in "xy")
IO = IOContract((X,), (Y,), (Dim("batch", 1, 2, 8), Dim("seq", 1, 8, 64)))
FEEDS = {"x": np.random.default_rng(0).standard_normal((3, 6, E), np.float32)}


def run(module: nn.Module, *, plan: str = "fp32", float64: bool = False) -> np.ndarray:
    spec = ModelSpec("m", Source("m"), IO, module.eval)
    return RUNTIME.open(Opening(IO, spec=spec, threads=1, contract=True, plan=plan, float64=float64)).run(FEEDS)["y"]


class Turns(nn.Module):
    """Turns pairs of numbers by complex ones: a buffer, and some made in the type that the module names."""

    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.linspace(0, 3, E // 2)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        factor = torch.full((1,), 0.1j, dtype=torch.complex64) * (x[..., :1] / 3).to(torch.complex64)
        return torch.view_as_real(z * self.turns * factor).flatten(2).type_as(x)


def turned() -> np.ndarray:
    x, turns = FEEDS["x"].astype(np.float64), Turns().turns.numpy().astype(np.complex128)
    z = (x[..., ::2] + 1j * x[..., 1::2]) * turns * 0.1j * x[..., :1] / 3
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def test_complex_numbers_are_those_of_float64_in_the_reference() -> None:
    y = run(Turns(), float64=True)
    assert y.dtype == np.float64
    assert np.abs(y - turned()).max() < 1e-14


@pytest.mark.parametrize(("plan", "eps"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_complex_weights_keep_both_parts_in_half_precision(plan: str, eps: float) -> None:
    y = run(Turns(), plan=plan).astype(np.float64)
    assert np.abs(y - turned()).max() < 8 * eps * np.abs(turned()).max()
