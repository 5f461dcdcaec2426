"""Sizes are tried as far as there is memory and time, and what was left out is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport import budget
from attnport.artifacts import IOContract
from attnport.cases.inputs import prime_sizes, usual_sizes
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.exporter.capture import traced_sizes
from attnport.verbs.check import check
from attnport.verbs.export import export

PIXELS = """
import torch
from torch import nn
class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.mixed = nn.Conv2d(3, 96, 3, padding=1)
    def forward(self, image):
        q, k, v = self.mixed(image).flatten(2).mT.chunk(3, -1)
        scores = q @ k.mT * 0.25
        return (scores.softmax(-1) @ v).mT.unflatten(2, image.shape[2:])
def factory():
    return Pixels()
"""
IMAGE = "image=float32[batch,3,height,width]"


def write(tmp_path: Path, source: str) -> str:
    path = tmp_path / "model.py"
    path.write_text(source)
    return f"{path}:factory"


def test_attention_over_pixels_is_tried_as_far_as_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, tried = 1_500_000_000, []
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: free)
    run = budget.Budget.measured

    def noted(own: budget.Budget, sizes: Mapping[str, int]) -> Any:
        tried.append(dict(sizes))
        return run(own, sizes)

    monkeypatch.setattr(budget.Budget, "measured", noted)
    told: list[str] = []
    manifest = export(write(tmp_path, PIXELS), tmp_path / "out", inputs=[IMAGE], tell=told.append)
    height, width = manifest.io.dim("height"), manifest.io.dim("width")
    assert (height.max, width.max) in {(32, 32), (64, 64)}
    assert f"height up to {height.max}, width up to {width.max}" in told[0]
    assert "dims=['height=" in told[0]
    assert manifest.notes == tuple(told)
    # The scores of an item, once: two of them are there at a time, in the module and in the graph.
    assert all(4 * sizes["batch"] * (sizes["height"] * sizes["width"]) ** 2 < free / 3 for sizes in tried)
    assert any(sizes["height"] == height.max and sizes["width"] == width.max for sizes in tried)


@pytest.mark.slow
def test_declared_sizes_that_do_not_fit_are_left_out_and_the_smallest_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: 3_000_000_000)
    source, told = write(tmp_path, PIXELS), []
    sides = [f"{side}=1:128:1024" for side in ("height", "width")]
    manifest = export(source, tmp_path / "out", inputs=[IMAGE], dims=["batch=1:2:4", *sides], tell=told.append)
    assert manifest.io.dim("height").max == 1024
    assert not told  # 1024 is tried beside a width of 2
    report = check(tmp_path / "out", runtimes=["torch_eager"])
    left_out = [note for note in report.notes if "was left out" in note]
    assert [note.split(" (")[0] for note in left_out] == ["the case opt sizes", "the case longest"]
    assert "height=1024,width=1024" in left_out[1]
    assert "longest" not in {row.case for row in report.runtimes["torch_eager"].cases}
    assert report.runtimes["torch_eager"].verdict == "PASS"
    large = [f"{side}=512:512:1024" for side in ("height", "width")]
    with pytest.raises(UsageError, match=r"at batch=3, height=512, width=512, .* may take up to .* GB of memory"):
        export(source, tmp_path / "none", inputs=[IMAGE], dims=large)


@pytest.mark.parametrize(
    ("inputs", "dims"),
    [
        ((TensorSpec("x", "float32", ("batch", "seq", 8)),), (Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512))),
        ((TensorSpec("x", "float32", ("batch", 3, "height", "width")),),
         (Dim("batch", 1, 8, 64), Dim("height", 1, 128, 512), Dim("width", 1, 128, 512))),
    ],
)  # fmt: skip
def test_usual_cases_of_a_sequence_and_of_a_picture_have_the_sizes_they_had(
    inputs: tuple[TensorSpec, ...], dims: tuple[Dim, ...]
) -> None:
    io = IOContract(inputs, inputs, dims)
    assert set(usual_sizes(io).values()) == {4, 32}
    assert list(prime_sizes(io).values()) == [3, 37, 41][: len(dims)]
    assert set(traced_sizes(io).values()) <= {63, 511, 510}


def test_a_video_has_fewer_positions_in_usual_cases_and_is_traced_at_sizes_that_fit() -> None:
    video = (TensorSpec("video", "float32", ("batch", "frames", "height", "width", 3)),)
    io = IOContract(video, video, (Dim("batch", 1, 8, 64), *(Dim(name, 1, 128, 512) for name in video[0].dims[1:4])))
    for chosen in (usual_sizes(io), prime_sizes(io)):
        assert chosen["frames"] * chosen["height"] * chosen["width"] <= 2048
        assert min(chosen.values()) > 1
    assert np.prod(video[0].shape(traced_sizes(io))) <= 1 << 28


WRONG_RANK = """
import torch
from torch import nn
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.mixed = nn.Linear(16, 48)
    def forward(self, x, real):
        q, k, v = (part.unflatten(2, (4, 4)).transpose(1, 2) for part in self.mixed(x).chunk(3, -1))
        scores = (q @ k.mT).masked_fill(real[:, None, None, :] == 0, -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(*x.shape)
def factory():
    return Masked()
"""


def test_a_mask_of_the_wrong_rank_does_not_take_the_memory_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: 3_000_000_000)
    monkeypatch.setattr(budget, "_LEAST_LIMIT_BYTES", 1 << 20)
    level = budget._level_bytes()
    inputs = ["x=float32[batch,seq,16]", "real=int64[batch,1,1,seq]"]  # of what is called a mask, other ranks are tried
    with pytest.raises(SpecError, match="is invalid for input of size"):  # the scores are of the square of the batch
        export(write(tmp_path, WRONG_RANK), tmp_path / "out", inputs=inputs)
    assert budget.memory_bytes("VmHWM") - level < 1_500_000_000


def test_a_step_that_takes_more_than_expected_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known, tried = budget.Budget(), []

    @contextlib.contextmanager
    def measured(own: budget.Budget, sizes: Mapping[str, int]) -> Iterator[None]:
        yield
        own._known[budget._key(sizes)] = budget.Cost(0.0, 1e6 if sizes["seq"] == 2 else 1e15)

    def runs(sizes: Mapping[str, int]) -> bool:
        tried.append(sizes["seq"])
        assert len(tried) < 20
        return True

    monkeypatch.setattr(budget.Budget, "measured", measured)
    assert known.reach({"seq": 2}, runs)
    assert known.reach({"seq": 1 << 20}, runs) is None


def test_within_the_limit_of_memory_as_much_may_be_taken_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: 30_000_000_000)
    with budget.limited_memory():
        assert budget._usable_bytes() > 0.9 * budget.SHARE * 30_000_000_000
