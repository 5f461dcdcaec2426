"""Experts whose loop is over those that were chosen are exported as a loop over all, and compute the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from representatives import representatives
from running import on_ort
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture

pytest.importorskip("transformers")
Chosen = tuple[torch.Tensor, torch.Tensor]


def made(model: str, name: str, *arguments: int, **values: Any) -> nn.Module:
    """A class of transformers' models, with random weights."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    torch.manual_seed(0)
    experts: nn.Module = getattr(module, name)(SimpleNamespace(**values), *arguments)
    for weight in experts.parameters():
        nn.init.normal_(weight)
    return experts


def one_hot(index: torch.Tensor, weights: torch.Tensor) -> Chosen:
    """The first choice alone, and none for some rows, as where an expert is full."""
    mask = torch.nn.functional.one_hot(index[:, :1], 4) * (weights[:, :1, None] > 0.4)
    return mask, weights[:, :1]


def as_they_are(index: torch.Tensor, weights: torch.Tensor) -> Chosen:
    return index, weights


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Tensor, torch.Tensor], Chosen]]] = {
    "switch_transformers": (
        lambda: made(
            "switch_transformers", "SwitchTransformersExperts",
            num_experts=4, d_model=8, d_ff=6, dropout_rate=0.0, dense_act_fn="relu",
        ),
        one_hot,
    ),
    "nllb_moe": (
        lambda: made(
            "nllb_moe", "NllbMoeExperts", 6,
            num_experts=4, d_model=8, activation_function="relu", activation_dropout=0.0, moe_token_dropout=0.2,
        ),
        as_they_are,
    ),
    "dbrx": (
        lambda: made(
            "dbrx", "DbrxExperts", moe_num_experts=4, hidden_size=8, ffn_hidden_size=6, ffn_act_fn={"name": "silu"}
        ),
        as_they_are,
    ),
    "longcat_flash": (
        lambda: made(
            "longcat_flash", "LongcatFlashExperts",
            n_routed_experts=3, zero_expert_num=1, expert_ffn_hidden_size=6, hidden_size=8, hidden_act="silu",
        ),
        as_they_are,
    ),
}  # fmt: skip


class Routed(nn.Module):
    """Rows that choose two experts by their own first numbers."""

    def __init__(self, experts: nn.Module, choice: Callable[[torch.Tensor, torch.Tensor], Chosen]) -> None:
        super().__init__()
        self.experts, self.choice = experts, choice

    def forward(self, x: torch.Tensor) -> Any:
        weights, index = x[:, :4].softmax(-1).topk(2)
        return self.experts(x, *self.choice(index, weights)).view(x.shape)


@pytest.mark.parametrize("name", representatives(CASES, list(CASES)[:1]))
def test_each_row_goes_to_the_experts_that_it_chose(name: str) -> None:
    make, choice = CASES[name]
    module = Routed(make(), choice).eval()
    contract = IOContract(
        (TensorSpec("x", "float32", ("rows", 8)),), (TensorSpec("y", "float32", ("rows", 8)),), (Dim("rows", 1, 5, 64),)
    )
    run = on_ort(capture(module, contract).model)
    for rows in (5, 1, 2, 33):  # of one or two rows, not all experts are chosen
        x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))
        with torch.no_grad():
            expected = module(x).numpy()
        np.testing.assert_allclose(run({"x": x.numpy()})[0], expected, rtol=1e-4, atol=1e-5)


def test_numbers_of_rows_that_are_not_equal_have_names_of_their_own() -> None:
    make, choice = CASES["switch_transformers"]
    contract = IOContract(
        (TensorSpec("x", "float32", ("rows", 8)),), (TensorSpec("y", "float32", ("rows", 8)),), (Dim("rows", 1, 5, 64),)
    )
    graph = capture(Routed(make(), choice).eval(), contract).model.graph
    found = [node.outputs[0] for node in graph if node.op_type == "NonZero"]
    chosen = [value.consumers()[0].outputs[0] for value in found]
    names = [str(value.shape[1]) for value in found if value.shape is not None]
    assert len(found) == len(names) == len(set(names)) == 4
    for at, value in enumerate(chosen):
        assert value.shape is not None
        assert str(value.shape[0]) not in (*names[:at], *names[at + 1 :])
