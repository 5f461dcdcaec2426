"""LSTM, GRU and RNN are exported as operators, right at lengths and batches that were not traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from running import on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture
from attnport.exporter.translations.recurrent import kept_whole
from attnport.patches import patched

DIMS = (Dim("batch", 1, 2, 4), Dim("seq", 1, 5, 200))
X = (TensorSpec("x", "float32", ("batch", "seq", 4)),)


class Recurrent(nn.Module):
    """A recurrence, what comes behind it, and its last states."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = not options.get("batch_first", True)
        self.inner = kind(4, 6, **{"batch_first": True, **options})
        self.after = nn.Linear(6 * (1 + self.inner.bidirectional), 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, last = self.inner(x.transpose(0, 1) if self.first else x)
        found = self.after(y.transpose(0, 1) if self.first else y)
        states = last if isinstance(last, tuple) else (last,)
        return (found.reshape(x.shape[0], x.shape[1], 3), *(state.transpose(0, 1) for state in states))


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 3, "bidirectional": True}, {"bias": False, "batch_first": False}]
)
@pytest.mark.parametrize(
    ("kind", "own"), [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"})]
)
def test_a_recurrence_is_an_operator(kind: type[nn.RNNBase], own: dict[str, str], options: dict[str, Any]) -> None:
    module = Recurrent(kind, **own, **options).eval()
    count = module.inner.num_layers * (1 + module.inner.bidirectional)
    states = tuple(TensorSpec(name, "float32", ("batch", count, 6)) for name in ("h", "c")[: 1 + (kind is nn.LSTM)])
    contract = IOContract(X, (TensorSpec("y", "float32", ("batch", "seq", 3)), *states), DIMS)
    model = capture(module, contract).model
    found = [node for node in model.graph if node.op_type == kind.__name__]
    assert len(found) == module.inner.num_layers
    run = on_ort(model)
    for batch, length in ((2, 5), (1, 1), (3, 70)):
        x = torch.randn(batch, length, 4, generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = module(x)
        for got, wanted in zip(run({"x": x.numpy()}), expected, strict=True):
            np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projection_is_left_to_torch() -> None:
    module, x = nn.LSTM(4, 6, proj_size=2, batch_first=True), torch.randn(2, 5, 4)
    with torch.no_grad(), patched(kept_whole):
        assert module(x)[0].shape == (2, 5, 2)


def test_torchs_functions_are_as_before_after_a_trace() -> None:
    before = torch._VF.lstm
    with patched(kept_whole):
        assert torch._VF.lstm is not before
    assert torch._VF.lstm is before
