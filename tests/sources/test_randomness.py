"""Modules that give other outputs each time are refused by the name of what draws the numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from attnport.errors import SpecError
from attnport.folder.given import Given

X = ["x=float32[batch,seq,4]"]


class Always(nn.Module):
    """Dropout that eval mode does not turn off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5)


class Drawn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class Some(nn.Module):
    """Looks at 64 rows that are drawn: at all of them where there are fewer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x[:, torch.rand(x.shape[1]).argsort()][:, :64].mean(1, keepdim=True)


class Counts(nn.Module):
    """Keeps something from call to call."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Unused(nn.Module):
    """Draws numbers that reach no output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0 * torch.rand_like(x)


class Layer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.inner(self.linear(x)))


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (Always(), r"output output; random numbers are drawn in inner \(Always\)"),
        (nn.Sequential(nn.ReLU(), Drawn()), r"random numbers are drawn in inner.1 \(Drawn\)"),
        (Some(), r"random numbers are drawn in inner \(Some\)"),
        (Counts(), r"two runs in eval mode differ in output output\.$"),
    ],
)
def test_what_draws_is_named(inner: nn.Module, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        Given(Layer(inner), inputs=X).spec()
    assert "self.training" in caught.value.hint


def test_equal_tokens_do_not_hide_what_is_drawn() -> None:
    module = nn.Sequential(nn.Embedding(9, 4), Some())
    with pytest.raises(SpecError, match=r"random numbers are drawn in 1 \(Some\)"):
        Given(module, inputs=["input=int64[batch,seq]:high=9"]).spec()


@pytest.mark.parametrize("inner", [nn.Dropout(0.5), Unused(), nn.Identity()])
def test_what_is_the_same_each_time_is_taken(inner: nn.Module) -> None:
    assert Given(Layer(inner), inputs=X).spec().io.outputs[0].dims == ("batch", "seq", 4)
