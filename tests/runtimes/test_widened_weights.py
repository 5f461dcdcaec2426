"""The float64 reference widens each weight where it is used, and gives what a module cast to float64 gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from representatives import representatives
from torch import Tensor, nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.cases.inputs import cases
from attnport.dims import Dim, TensorSpec
from attnport.models import base as models
from attnport.runtimes import _torch_modes, base, torch_eager
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import cast

QUICK = ("bert_encoder", "gpt_decoder", "linformer_attention", "memory_token_attention", "vision_transformer", "t5")
T, Y = TensorSpec("t", "float32", (4, 4)), TensorSpec("y", "float32", ("batch", 4))
Outputs = list[dict[str, np.ndarray[Any, Any]]]


class Written(nn.Module):
    """Keeps its input in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """The input by way of the buffer."""
        self.last.copy_(x[0])
        return x + self.last


class Recurrent(nn.Module):
    """An LSTM, whose Python code compares the types of its weights and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Its outputs."""
        return self.lstm(x[None])[0][0]


class Moved(nn.Module):
    """Moves its layer to where its input is, as experts come back from memory that they wait in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """What the layer gives."""
        moved: Tensor = self.layer.to(x.device)(x)
        return moved


class Table(nn.Module):
    """Gives back a part of a weight, and rows of it that are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Four rows as they are, and as many as the input has by index."""
        rows = torch.arange(x.shape[0]) % 8
        return self.table[:4], nn.functional.embedding(rows, self.table) + x


def of_module(module: nn.Module, *outputs: TensorSpec) -> ModelSpec:
    io = IOContract((TensorSpec("x", "float32", ("batch", 4)),), outputs, (Dim("batch", 1, 2, 8),))
    return ModelSpec("m", Source("m"), io, module.eval)


def both(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[Outputs, Outputs, int]:
    """What the reference gives, what a cast module gives, and how often the reference cast its module as a whole."""
    casts: list[nn.Module] = []

    def counted(module: nn.Module, dtype: torch.dtype) -> nn.Module:
        casts.append(module)
        return cast(module, dtype)

    def run(opening: Opening) -> Outputs:
        with contextlib.closing(base.get("torch_eager").open(opening)) as session:
            return [dict(session.run(case.feeds)) for case in list(cases(spec.io))[:3]]

    monkeypatch.setattr(torch_eager, "cast", counted)
    got = run(Opening(spec.io, spec=spec, float64=True))
    wide = replace(spec, make=lambda: cast(spec.make(), torch.float64))
    return got, run(Opening(spec.io, spec=wide, float64=True)), len(casts)


def same(got: Mapping[str, np.ndarray[Any, Any]], expected: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    return all(
        got[name].dtype == array.dtype and np.array_equal(got[name], array, equal_nan=array.dtype.kind == "f")
        for name, array in expected.items()
    )


@pytest.mark.parametrize("name", representatives(models.names(), QUICK))
def test_each_model_gives_what_its_cast_gives_without_a_copy_of_its_weights(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, expected, casts = both(models.get(name), monkeypatch)
    assert all(map(same, got, expected))
    assert casts == 0


@pytest.mark.parametrize(
    ("make", "outputs", "casts"), [(Written, [Y], 1), (Recurrent, [Y], 1), (Moved, [Y], 1), (Table, [T, Y], 0)]
)
def test_a_module_that_cannot_be_widened_is_cast_once(
    make: Callable[[], nn.Module], outputs: list[TensorSpec], casts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module = make()
    got, expected, counted = both(of_module(module, *outputs), monkeypatch)
    assert all(map(same, got, expected))
    assert counted == casts
    assert all(weight.dtype == torch.float32 for weight in module.parameters())
    assert got[0]["y"].dtype == np.float64


@pytest.mark.parametrize("bias", [True, False])
def test_a_large_weight_is_widened_block_by_block(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    monkeypatch.setattr(_torch_modes, "_BLOCK_BYTES", 1000)
    layer, x = nn.Linear(64, 70, bias=bias), torch.randn(2, 3, 64, dtype=torch.float64)
    with _torch_modes.active(*_torch_modes.modes_for("fp32", float64=True, widens=True)):
        got = layer(x)
    torch.testing.assert_close(got, layer.double()(x).detach(), rtol=1e-13, atol=1e-13)
