"""Tensors of known values: constants that decide sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import attnport
from attnport.errors import SpecError, UsageError
from attnport.known import Computing, known
from attnport.sources.parsing import parse_leaf
from attnport.sources.structure import Constant, Leaf

GRID = [[1, 4, 4], [2, 2, 4]]
SIZES = known([2, 3])


class Patches(nn.Module):
    """Patches of several pictures, one after the other: places by rows and columns, and a softmax in each picture."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 8)
        self.register_buffer("frequencies", torch.tensor([1.0, 0.5, 0.25, 0.125]))

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        """`[patches,6]` and pictures of `[times,rows,columns]` to `[patches,8]`."""
        places = []
        for times, rows, columns in grid:
            row = torch.arange(rows).unsqueeze(1).expand(-1, columns).flatten()
            column = torch.arange(columns).unsqueeze(0).expand(rows, -1).flatten()
            places.append(torch.stack([row, column], -1).repeat(times, 1))
        angles = torch.outer(torch.arange(grid[:, 1:].max()), self.frequencies)
        hidden = self.project(x) + angles[torch.cat(places)].flatten(1)
        ends = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0)
        ends = nn.functional.pad(ends, (1, 0))
        return torch.cat([part.softmax(0) for part in torch.split(hidden, (ends[1:] - ends[:-1]).tolist())])


def test_a_grid_of_known_values_decides_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Patches()
    inputs = {"x": "float32[32,6]", "grid": str(GRID)}
    artifact = attnport.export(module, tmp_path / "out", inputs=inputs)
    assert [spec.name for spec in artifact.manifest.io.inputs] == ["x"]
    x = torch.randn(32, 6)
    with torch.no_grad():
        expected = module(x, torch.tensor(GRID)).numpy()
    got = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx").run(None, {"x": x.numpy()})[0]
    assert np.abs(got - expected).max() < 1e-5


def test_known_tensors_are_computed_and_others_traced() -> None:
    x = torch.randn(3, 1)
    program = torch.export.export(_Three(), (x,))
    assert torch.equal(program.module()(x), _Three()(x))


class _Three(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x[:2] * 3`, of which both numbers are known."""
        with Computing():
            first, second = SIZES
            return x[:first] * second


@pytest.mark.parametrize("value", ["[[1, 2], [3]]", '["a"]'])
def test_lists_that_are_no_tensor_are_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no tensor"):
        attnport.export(Patches(), tmp_path / "out", inputs={"x": "float32[32,6]", "grid": value})


def test_dims_without_a_type_are_no_constant(tmp_path: Path) -> None:
    assert parse_leaf("grid=[[1,4,4]]") == Leaf(("grid",), Constant([[1, 4, 4]]))
    with pytest.raises(UsageError, match="cannot be read"):
        attnport.export(Patches(), tmp_path / "out", inputs={"x": "[batch,6]", "grid": "[[1,4,4]]"})
