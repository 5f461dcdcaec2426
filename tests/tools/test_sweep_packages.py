"""The sweep over modules of other packages: the sizes that a module takes, and what a contract leaves out of them."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from test_sweep_hf import load
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    return load("sweep_packages")


class Patches(nn.Module):
    """Patches of 4 with a table of positions, and rows of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.zeros(16, 8))

    def forward(self, image: torch.Tensor, mask: torch.Tensor | None = None, x: torch.Tensor | None = None) -> object:
        found = self.patches(image).flatten(2).mT + self.places
        return found if x is None or mask is None else (found, x * mask[..., None])


def published(sweep: ModuleType) -> object:
    inputs = ("float32[batch,3,side,side]", "mask=bool[batch,seq]:padding", "x=float32[batch,seq,8]")
    return sweep.Published("own", Patches, {}, inputs, {"batch": 2, "side": 16, "seq": 6})


def test_the_dims_that_a_module_takes_are_found_by_running_it(sweep: ModuleType) -> None:
    made = sweep.Made(published(sweep))
    assert made.fixed == {"side": 16}  # 17 runs as well, and what is more than whole patches is cut off
    assert len(made.sizes) == sweep.SETS + 1
    assert len({sizes["seq"] for sizes in made.sizes}) > 3
    assert {sizes["side"] for sizes in made.sizes} == {16}
    assert float(made.module.places.detach().abs().max()) > 0


def test_an_example_is_given_by_position_as_far_as_that_goes(sweep: ModuleType) -> None:
    args, kwargs = sweep.Made(published(sweep)).arguments()
    assert [list(each.shape) for each in args] == [[2, 3, 16, 16], [2, 6], [2, 6, 8]]
    assert not kwargs
    assert args[1][0].tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("notes", "said"), [(["fixed: axis 1 of x at 6"], False), (["axis 0 of x"], True)])
def test_a_size_that_the_contract_leaves_out_without_a_note_is_seen(
    sweep: ModuleType, notes: list[str], said: bool
) -> None:
    made = sweep.Made(sweep.Published("own", nn.Identity, {}, ("float32[batch,seq,8]",), {"batch": 2, "seq": 6}))
    spec = TensorSpec("x", "float32", ("batch", 6, 8))
    io = IOContract((spec,), (TensorSpec("output", "float32", ("batch", 6, 8)),), (Dim("batch", 1, 8, 64),), ())
    found, taken = sweep.limits(io, made, ["x"], notes)
    assert found
    assert {tuple(values["x"].shape)[1] for values in taken} == {6}
    assert any("without a note" in each for each in found) == said
