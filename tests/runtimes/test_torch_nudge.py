"""Weights and inputs moved by one rounding: to a neighbour, on either side, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec
from attnport.runtimes._torch_modes import SumsInOrder, active
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import RUNTIME, Draw, nudge_parameters, nudged

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_each_number_becomes_a_neighbour_of_its_own(dtype: torch.dtype) -> None:
    given = (torch.randn(40, 30, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    moved = nudged(given, Draw(1))
    assert moved.dtype == dtype
    assert (moved != given).all()
    assert 0.4 < (moved > given).double().mean() < 0.6
    between = (given.double() + moved.double()) / 2  # no number of the type lies between the two
    assert torch.isin(torch.stack([given.double(), moved.double()]), between.to(dtype).double()).any(0).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_and_what_is_not_finite_stay(dtype: torch.dtype) -> None:
    given = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, torch.finfo(dtype).max], dtype=dtype)
    for seed in range(8):
        moved = nudged(given, Draw(seed))
        assert torch.equal(moved[:4], given[:4])
        assert moved[4].isnan()
        assert moved[5].isfinite()


def test_a_seed_is_one_draw_whatever_the_strides() -> None:
    given = torch.randn(7, 5)
    assert torch.equal(nudged(given, Draw(3)), nudged(given, Draw(3)))
    assert not torch.equal(nudged(given, Draw(3)), nudged(given, Draw(4)))
    turned = nudged(given.t().contiguous().t(), Draw(3))
    assert torch.equal(turned, nudged(given, Draw(3)))


def test_every_weight_is_moved_and_no_counter() -> None:
    module = nn.BatchNorm1d(4)
    module.weight.data.fill_(1.5)
    module.extra = nn.Parameter(torch.arange(3), requires_grad=False)
    nudge_parameters(module, Draw(0))
    assert (module.weight != 1.5).all()
    assert torch.equal(module.extra, torch.arange(3))


def test_what_is_not_dense_stays() -> None:
    class Packed(torch.Tensor):
        """As of a library that keeps weights in its own way."""

    for given in (torch.eye(3).to_sparse(), torch.ones(3).as_subclass(Packed)):
        assert nudged(given, Draw(0)) is given


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: torch.Tensor, bias: torch.Tensor, shown: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * self.weight).where(shown, 0.0), bias + 0.0, x + 0.0


def test_eager_moves_weights_and_inputs_but_no_mask_no_flag_and_not_the_maker_s_module() -> None:
    batch = (Dim("B", 1, 2, 4),)
    io = IOContract(
        tuple(
            TensorSpec(name, dtype, ("B", 4))
            for name, dtype in (("x", "float32"), ("bias", "float32"), ("shown", "bool"))
        ),
        tuple(TensorSpec(name, "float32", ("B", 4)) for name in ("y", "z", "same")),
        batch,
        (MaskSpec(("bias",), "bias"),),
    )
    made = Added()
    spec = ModelSpec("added", Source("added"), io, lambda: made)
    feeds = {"x": np.array([[5.0, 1.0, 0.3, 0.7]] * 2, np.float32), "bias": np.full((2, 4), -1e9, np.float32)}
    feeds["shown"] = np.ones((2, 4), np.bool_)
    found = RUNTIME.open(Opening(io, spec=spec, nudged=1)).run(feeds)
    other = RUNTIME.open(Opening(io, spec=spec, nudged=2)).run(feeds)
    given = RUNTIME.open(Opening(io, spec=spec)).run(feeds)
    assert (found["y"] != given["y"]).any()
    assert np.abs(found["y"] / given["y"] - 1).max() <= 4 * 2.0**-23
    assert (found["y"] != other["y"]).any()
    assert (found["same"][:, :2] == feeds["x"][:, :2]).all()  # whole numbers: flags, maybe
    assert (found["same"][:, 2:] != feeds["x"][:, 2:]).all()
    assert (found["z"] == feeds["bias"]).all()
    assert (made.weight == 3.0).all()


class Pooled(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.mean(1), x.sum(dim=1, keepdim=True), x.mean(-1)


def test_a_further_run_adds_up_rows_one_after_the_other_as_other_runtimes_do() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(1, 1, (2, 512, 16)).astype(np.float32))
    with active(SumsInOrder()):
        found = Pooled()(x)
    for got, plain, exact in zip(found, Pooled()(x), Pooled()(x.double()), strict=True):
        torch.testing.assert_close(got, plain)
        in_order = got.shape[-1] == 16
        assert ((got - exact).abs().max() > 2 * (plain - exact).abs().max()) == in_order
