"""Code that published modules are written with, and that torch's trace alone stops at or makes constants of."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attend

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter import capture
from attnport.exporter.patching import quiet

DIMS = (Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512))
IDS = TensorSpec("ids", "int64", ("batch", "seq"), high=9)


class Words(nn.Module):
    """Embedded ids, of which 1 is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class LeavesOutAMask(Words):
    """As fairseq's layers and ESM."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)[:, None]
        padding: torch.Tensor | None = ids.eq(1)
        if not padding.any():
            padding = None
        return attend(x, x, x, attn_mask=None if padding is None else ~padding[:, None, None])


class LeavesOutAFullMask(Words):
    """The same by `all`, whose answer is read as a number."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)[:, None]
        kept = ids != 1
        mask = None if torch.all(kept).item() else kept[:, None, None]
        return attend(x, x, x, attn_mask=mask)


class ChecksValues(Words):
    """A check that raises where some values are wrong."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if torch.isnan(x).any():
            raise ValueError("not a number")
        return attend(x, x, x)


class CausalUnlessOne(Words):
    """As Whisper's decoder."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)[:, None]
        return attend(x, x, x, is_causal=ids.shape[1] > 1)


class RangeOfPositions(Words):
    """As Enformer's positions, which decay over a range that grows with the length."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        rates = 2 ** torch.linspace(1.0, math.log(ids.shape[1]) / math.log(2.0), 8)
        return attend(x * rates, x, x)


class SpacedPositions(Words):
    """As Perceiver's positions."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) * torch.linspace(-1.0, 1.0, steps=ids.shape[1])[:, None]
        return attend(x, x, x)


def program_of(module: nn.Module) -> Any:
    contract = IOContract((IDS,), (), DIMS, ())
    with quiet():
        return capture.trace(module.eval(), contract, {"ids": torch.randint(0, 9, (5, 37))})[0]


@pytest.mark.parametrize(
    "kind", [LeavesOutAMask, LeavesOutAFullMask, ChecksValues, CausalUnlessOne, RangeOfPositions, SpacedPositions]
)
def test_what_decides_is_decided_as_in_general(kind: type[Words]) -> None:
    module = kind()
    program = program_of(module)
    for ids in (torch.full((2, 3), 4), torch.tensor([[2, 3, 1, 1], [5, 2, 3, 1], [8, 8, 8, 8]])):
        torch.testing.assert_close(program.module()(ids=ids), module(ids))


def test_a_way_that_was_chosen_is_told() -> None:
    module = LeavesOutAMask().eval()
    found = capture.capture(
        module, IOContract((IDS,), (TensorSpec("output", "float32", (1,)),), DIMS, ()), observed=True
    )
    assert len(found.decided) == 1
    assert "if not padding.any():" in found.decided[0]
    assert found.decided[0].endswith("where any() is true and all() is false")


class RefusesNaN(Words):
    """As modules that look at what they are given."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if torch.isnan(x).any():
            raise ValueError("NaN")
        return x


def test_the_way_that_does_not_raise_is_taken_and_named() -> None:
    found = capture.capture(
        RefusesNaN().eval(), IOContract((IDS,), (TensorSpec("output", "float32", (1,)),), DIMS, ()), observed=True
    )
    (place,) = found.decided
    assert place.endswith("where any() is false and all() is true")


@pytest.fixture
def einx(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package that computes with axes by name and makes numbers of all sizes, as einx does."""
    made = types.ModuleType("einx")

    def where(description: str, mask: torch.Tensor, x: torch.Tensor, other: float) -> torch.Tensor:
        assert description == "b n, b n d, -> b n d"
        batch, length = map(int, mask.shape)
        return torch.where(mask.reshape(batch, length, 1), x, other)

    where.__module__ = "einx.operations"
    monkeypatch.setattr(made, "where", where, raising=False)
    monkeypatch.setitem(sys.modules, "einx", made)
    return made


class NamedAxes(Words):
    """As every model of x-transformers with a mask."""

    def __init__(self, package: types.ModuleType) -> None:
        super().__init__()
        self.where = [package]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.where[0].where("b n, b n d, -> b n d", ids != 1, self.words(ids), 0.0)
        return attend(x, x, x)


def test_operations_on_named_axes_keep_sizes(einx: types.ModuleType) -> None:
    module = NamedAxes(einx)
    program = program_of(module)
    ids = torch.tensor([[2, 3, 1, 1], [5, 2, 3, 1], [8, 8, 8, 8]])
    torch.testing.assert_close(program.module()(ids=ids), module(ids))
    assert einx.where.__module__ == "einx.operations"  # put back


@pytest.mark.parametrize(
    ("description", "shapes", "expected"),
    [
        ("b n, b n d -> b n d", [(2, 3), (2, 3, 4)], [(2, 3, 1), (2, 3, 4)]),
        ("j, i -> i j", [(3,), (4,)], [(1, 3), (4, 1)]),
        ("b h i j, h", [(2, 3, 4, 4), (3,)], [(2, 3, 4, 4), (1, 3, 1, 1)]),
        ("... d, d", [(2, 3, 4), (4,)], [(2, 3, 4), (1, 1, 4)]),
        ("j, i -> 1 i j", [(3,), (4,)], [(1, 1, 3), (1, 4, 1)]),
        ("b ..., b -> b ...", [(2, 3, 4), (2,)], [(2, 3, 4), (2, 1, 1)]),
    ],
)
def test_values_are_aligned_by_the_names_of_their_axes(description: str, shapes: Any, expected: Any) -> None:
    from attnport.exporter.named_axes import aligned

    values = aligned(description, tuple(torch.randn(shape) for shape in shapes))
    assert values is not None
    assert [tuple(each.shape) for each in values] == expected


@pytest.mark.parametrize("description", ["b (h d), h -> b h d", "b [d], d -> b", "b 1, b -> b", "b d, d -> b"])
def test_other_descriptions_are_left_to_the_package(description: str) -> None:
    from attnport.exporter.named_axes import aligned

    assert aligned(description, (torch.randn(2, 4), torch.randn(4))) is None
