"""What holds of every attention that maps a padded sequence to one of the same length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_reference import inputs, run

from attnport.artifacts import ModelSpec
from attnport.models.base import get

NAMES = (
    "bigbird_attention",
    "disentangled_attention",
    "funnel_attention",
    "linear_attention",
    "linformer_attention",
    "longformer_attention",
    "lsh_attention",
    "performer_attention",
    "relative_bias_attention",
    "sliding_window_attention",
    "strided_sparse_attention",
)
SPECS: dict[str, ModelSpec] = {name: get(name) for name in NAMES}
SPECS["linear_attention, causal"] = get("linear_attention", causal=True)
each = pytest.mark.parametrize("name", SPECS)


def given_to(spec: ModelSpec, batch: int, seq: int, *, right: int = 0) -> dict[str, torch.Tensor]:
    """Inputs in the contract's order, in float64; where there are marks, the second token is global."""
    made = inputs(batch, seq, right=right)
    if any(item.name == "global_attention_mask" for item in spec.io.inputs):
        made["global_attention_mask"] = torch.zeros(batch, seq, dtype=torch.int64)
        made["global_attention_mask"][:, 1:2] = 1
    return made


@each
@pytest.mark.parametrize("seq", [1, 11, 16, 37])
def test_padding_on_the_right_changes_no_token(name: str, seq: int) -> None:
    spec = SPECS[name]
    alone, beside = given_to(spec, 1, seq), given_to(spec, 1, seq + 19, right=19)
    for key in alone:
        beside[key][:, :seq] = alone[key]
    beside["x"][:, seq:] *= 100.0
    module = spec.make()
    np.testing.assert_allclose(run(module, **beside)[:, :seq], run(module, **alone), atol=1e-11)


@each
def test_a_hidden_token_reaches_no_other_and_a_visible_one_does(name: str) -> None:
    spec = SPECS[name]
    given, module = given_to(spec, 1, 12), spec.make()
    others = [t for t in range(12) if t != 6]
    for shown in (0, 1):
        given["attention_mask"][0, 6] = shown
        before = run(module, **given)
        changed = {**given, "x": given["x"].clone()}
        changed["x"][0, 6] -= 3.0
        after = run(module, **changed)
        moved = abs(after - before)[0, others].max()
        assert moved > 1e-3 if shown else moved < 1e-12


@each
def test_an_item_of_nothing_but_padding_gives_zero_before_the_projection(name: str) -> None:
    spec = SPECS[name]
    given, module = given_to(spec, 2, 7), spec.make()
    given["attention_mask"][0] = 0
    got = run(module, **given)
    assert np.isfinite(got).all()
    bias: torch.Tensor | None = module.out.bias  # type: ignore[assignment, union-attr]
    if name == "funnel_attention":
        with torch.no_grad():
            expected = (given["x"][0] + module.norm(bias)).numpy()  # type: ignore[operator]
    else:
        expected = np.zeros(64) if bias is None else bias.detach().numpy()
    np.testing.assert_allclose(got[0], np.broadcast_to(expected, got[0].shape), atol=1e-12)
