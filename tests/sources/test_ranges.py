"""Ranges of dims that nobody declared: as far as the module runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from attnport.budget import Budget, Cost
from attnport.dims import Dim
from attnport.errors import SpecError
from attnport.folder.given import Given
from attnport.sources.ranges import bound_dims, found_ranges

Sizes = Mapping[str, int]


def found(runs: Callable[[Sizes], bool], *names: str, **declared: Dim) -> list[str]:
    return [str(dim) for dim in found_ranges(names, declared, runs)[0]]


@pytest.mark.parametrize(
    ("runs", "seq"),
    [
        (lambda sizes: True, "seq=1:128:512"),
        (lambda sizes: sizes["seq"] <= 77, "seq=1:77:77"),
        (lambda sizes: sizes["seq"] >= 8, "seq=8:128:512"),
        (lambda sizes: 16 <= sizes["seq"] <= 300, "seq=16:128:300"),
        (lambda sizes: False, "seq=1:128:512"),
    ],
)
def test_a_range_is_what_the_module_runs_at(runs: Callable[[Sizes], bool], seq: str) -> None:
    assert found(runs, "batch", "seq") == ["batch=1:8:64", seq]


@pytest.mark.parametrize("size", [2, 128, 224])
def test_a_single_size_is_no_range(size: int) -> None:
    with pytest.raises(SpecError, match=f"dim 'seq' is frozen in the module: it runs at seq={size} and at no other"):
        found(lambda sizes: sizes["seq"] == size, "seq")


def test_a_batch_may_be_limited_too() -> None:
    assert found(lambda sizes: sizes["batch"] <= 4, "batch", "seq") == ["batch=1:4:4", "seq=1:128:512"]


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(24, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool1d((x + self.places[: x.shape[1]]).mT, 4, 1)


@pytest.mark.parametrize("range_and_size", [("4:12:25", 25), ("1:12:24", 1)])
def test_a_declared_range_beyond_what_the_module_takes_is_refused_with_what_it_takes(
    range_and_size: tuple[str, int],
) -> None:
    wanted, size = range_and_size
    given = Given(Table(), inputs=("x=float32[batch,seq,4]",), dims=(f"seq={wanted}",))
    with pytest.raises(
        SpecError, match=rf"dim seq={wanted}: the module does not run at seq={size}: .*test_ranges.py, line"
    ) as caught:
        given.spec()
    assert "dims=['seq=4:12:24']" in caught.value.hint


def test_a_declared_range_stays_and_its_usual_size_is_tried() -> None:
    heights = Dim("height", 8, 24, 4096)
    assert found(lambda sizes: sizes["height"] % 8 == 0, "height", "seq", height=heights) == [
        "height=8:24:4096",
        "seq=1:128:512",
    ]


def test_lengths_that_share_a_table_are_halved_together() -> None:
    def runs(sizes: Sizes) -> bool:
        rows, columns = sizes["height"] / 8, sizes["width"] / 8
        return rows.is_integer() and columns.is_integer() and rows * columns <= 16

    assert found(runs, "height", "width") == ["height=8:32:32:8", "width=8:32:32:8"]
    assert not found_ranges(["height", "width"], {}, runs)[1]


def test_lengths_that_are_too_small_together_are_doubled_together() -> None:
    def runs(sizes: Sizes) -> bool:  # a norm over the pixels of what strides of 32 leave
        high, wide = sizes["height"] / 32, sizes["width"] / 32
        return high.is_integer() and wide.is_integer() and high * wide > 1

    found, _ = found_ranges(["height", "width"], {}, runs, start={"height": 64, "width": 64})
    assert [str(dim) for dim in found] == ["height=64:128:512:32", "width=64:128:512:32"]


def test_a_limit_is_no_declaration() -> None:
    limits = {"height": Dim("height", 1, 32, 32)}
    for limit in (limits, {"height": Dim("height", 8, 32, 32)}):
        dims, _ = found_ranges(["height"], {}, lambda sizes: sizes["height"] % 8 == 0, None, {"height": 16}, limit)
        assert [str(dim) for dim in dims] == ["height=8:32:32:8"]


def test_multiples_are_found_where_the_first_size_is_the_least() -> None:
    limits = {"seq": Dim("seq", 16, 64, 64)}
    dims, _ = found_ranges(["seq"], {}, lambda sizes: sizes["seq"] % 8 == 0, None, {"seq": 16}, limits)
    assert [str(dim) for dim in dims] == ["seq=16:64:64:8"]


def test_dims_are_changed_one_at_a_time() -> None:
    seen: list[Sizes] = []

    def runs(sizes: Sizes) -> bool:
        seen.append(sizes)
        return True

    found(runs, "batch", "seq")
    assert [dict(sizes) for sizes in seen] == [
        {"batch": 2, "seq": 16},
        {"batch": 2, "seq": 128},
        {"batch": 1, "seq": 128},
        {"batch": 64, "seq": 128},
        {"batch": 2, "seq": 1},
        {"batch": 2, "seq": 512},
    ]


@pytest.mark.parametrize(
    ("runs", "seq"),
    [
        (lambda size: size % 4 == 0, "seq=4:128:512:4"),
        (lambda size: size % 14 == 0, "seq=14:140:504:14"),
        (lambda size: size % 48 == 0 and size >= 96, "seq=96:144:480:48"),
        (lambda size: size % 32 == 0 and size <= 128, "seq=32:128:128:32"),
        (lambda size: size % 16 == 0 and 0 < size <= 384, "seq=16:128:384:16"),
        (lambda size: size % 15 == 0, "seq=15:135:510:15"),
        (lambda size: -(-size // 4) % 4 == 0, "seq=16:128:512:16"),  # windows of what strides round up
        (lambda size: size // 4 % 4 == 0 and size >= 16, "seq=16:128:512:16"),  # and of what they cut off
        (lambda size: size // 8 % 16 == 0 and size >= 128, "seq=128:128:512:128"),  # as large as the first size tried
    ],
)
def test_multiples_of_a_number_are_found(runs: Callable[[int], bool], seq: str) -> None:
    assert found(lambda sizes: runs(sizes["seq"]), "batch", "seq") == ["batch=1:8:64", seq]


@pytest.mark.parametrize(
    ("runs", "step"),
    [
        (lambda sizes: sizes["high"] * sizes["wide"] % 4 == 0, 2),
        (lambda sizes: sizes["high"] * sizes["wide"] >= 16, 1),
    ],
)
def test_steps_are_found_of_dims_that_go_together_so(runs: Callable[[Sizes], bool], step: int) -> None:
    found, _ = found_ranges(["high", "wide"], {}, runs, start={"high": 8, "wide": 8})
    assert [dim.step for dim in found] == [step, step]
    assert all(dim.takes(dim.opt) and dim.takes(dim.max) for dim in found)


def test_steps_of_two_dims_are_found_apart() -> None:
    def runs(sizes: Sizes) -> bool:
        return sizes["height"] % 8 == 0 and sizes["width"] % 4 == 0

    assert found(runs, "height", "width") == ["height=8:128:512:8", "width=4:128:512:4"]


def bound(runs: Callable[[Sizes], bool]) -> tuple[str, str] | None:
    return bound_dims(["batch", "seq", "other"], runs)


@pytest.mark.parametrize(
    ("runs", "rule"),
    [
        (lambda sizes: sizes["seq"] == sizes["other"], ("other", "seq")),
        (lambda sizes: sizes["other"] == 2 * sizes["seq"], ("other", "2*seq")),
        (lambda sizes: sizes["seq"] == 2 * sizes["other"], ("seq", "2*other")),
        (lambda sizes: sizes["other"] == sizes["batch"] + sizes["seq"], ("other", "batch+seq")),
        (lambda sizes: sizes["seq"] % 16 == 0 and sizes["seq"] == sizes["other"], ("other", "seq")),
        (lambda sizes: sizes["seq"] * sizes["other"] % 4 == 0 and sizes["seq"] < 32, None),  # more would take long
        (lambda sizes: sizes["seq"] == 128, None),
        (lambda sizes: sizes["seq"] == 5, None),
        (lambda sizes: sizes["seq"] == 7, None),
        (lambda sizes: False, None),
        (lambda sizes: True, None),
    ],
)
def test_a_dim_that_follows_from_others_is_found(runs: Callable[[Sizes], bool], rule: tuple[str, str] | None) -> None:
    assert bound(runs) == rule


class Pretended(Budget):
    """The costs of attention over all positions, on a machine that has room for the scores of 4096."""

    def cost(self, sizes: Sizes) -> Cost:
        positions = math.prod(size for name, size in sizes.items() if name != "batch")
        return Cost(0.0, float(sizes.get("batch", 1) * positions**2))

    def fits(self, sizes: Sizes) -> bool:
        return self.cost(sizes).bytes <= 2 * 4096**2


def test_ranges_end_where_the_largest_sizes_together_fit_and_say_so() -> None:
    seen: list[Sizes] = []
    dims, notes = found_ranges(
        ["batch", "height", "width"], {}, lambda sizes: bool(seen.append(sizes)) or True, Pretended()
    )
    assert [str(dim) for dim in dims] == ["batch=1:8:64", "height=1:32:64", "width=1:32:64"]
    assert all(Pretended().fits(sizes) for sizes in seen)
    assert "height up to 64, width up to 64" in notes[0]
    assert "dims=['height=1:32:512', 'width=1:32:512']" in notes[0]


def test_a_sequence_has_the_usual_range_and_no_note() -> None:
    dims, notes = found_ranges(["batch", "seq"], {}, lambda sizes: True, Pretended())
    assert [str(dim) for dim in dims] == ["batch=1:8:64", "seq=1:128:512"]
    assert notes == ()


def test_a_range_that_ends_in_the_module_has_no_note() -> None:
    dims, notes = found_ranges(
        ["height", "width"], {}, lambda sizes: max(sizes["height"], sizes["width"]) <= 40, Pretended()
    )
    assert [str(dim) for dim in dims] == ["height=1:40:40", "width=1:40:40"]
    assert notes == ()
