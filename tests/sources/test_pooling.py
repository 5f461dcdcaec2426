"""Pooling and normalisation, against sentence-transformers' own formulas written out in float64 numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnport.sources.hf.sentence import MODES, Normalise, Pooling

KEEP = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]])


def by_hand(mode: str, hidden: Any, real: Any, keep: Any) -> Any:
    """What sentence-transformers' Pooling.forward computes."""
    mask, items = keep[:, :, None].astype(np.float64), np.arange(len(keep))
    if mode == "cls":
        return hidden[items, keep.argmax(1)]
    if mode == "lasttoken":
        return hidden[items, keep.shape[1] - 1 - keep[:, ::-1].argmax(1)]
    if mode == "max":
        return np.where(mask == 0, -np.inf, hidden).max(1)
    if mode == "weightedmean":
        mask = mask * (np.arange(1, keep.shape[1] + 1)[None, :] - real.argmax(1)[:, None])[:, :, None]
    count = mask.sum(1)
    return (hidden * mask).sum(1) / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count)


@pytest.mark.parametrize("mode", MODES)
def test_pooling_is_the_formula_of_sentence_transformers(mode: str) -> None:
    hidden = np.random.default_rng(0).normal(size=(5, 5, 6))
    got = Pooling([mode])(torch.from_numpy(hidden), torch.from_numpy(KEEP)).numpy()
    np.testing.assert_allclose(got, by_hand(mode, hidden, KEEP, KEEP), rtol=1e-12, atol=1e-14)
    assert all(np.abs(got - by_hand(other, hidden, KEEP, KEEP)).max() > 0.1 for other in MODES if other != mode)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_a_prompt_may_be_left_out(mode: str) -> None:
    hidden = np.random.default_rng(0).normal(size=(2, 5, 6))
    real, pooled = np.array([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]), np.array([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    got = Pooling([mode])(*map(torch.from_numpy, (hidden, real, pooled))).numpy()
    np.testing.assert_allclose(got, by_hand(mode, hidden, real, real & pooled), rtol=1e-12, atol=1e-14)


def test_several_modes_stand_side_by_side() -> None:
    hidden = np.random.default_rng(0).normal(size=(5, 5, 6))
    got = Pooling(["cls", "mean"])(torch.from_numpy(hidden), torch.from_numpy(KEEP)).numpy()
    expected = np.concatenate([by_hand(mode, hidden, KEEP, KEEP) for mode in ("cls", "mean")], 1)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_vectors_are_of_length_one() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [300.0, 400.0]])
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]])
    torch.testing.assert_close(Normalise()(x), expected)
    torch.testing.assert_close(Normalise()(x.half()), expected.half())  # squares overflow in half precision


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_row_without_tokens_gives_zero(mode: str, dtype: torch.dtype) -> None:
    hidden = torch.full((2, 3, 4), 300.0, dtype=dtype)
    keep = torch.tensor([[0, 0, 0], [1, 1, 0]])
    got = Normalise()(Pooling([mode])(hidden, keep))
    assert not got[0].any()
    assert torch.isfinite(got).all()
    assert got[1].all()


def test_places_that_overflow_half_precision_as_a_sum_are_weighed() -> None:
    hidden = torch.ones(1, 1024, 2, dtype=torch.float16)
    got = Pooling(["weightedmean"])(hidden, torch.ones(1, 1024, dtype=torch.int64))
    torch.testing.assert_close(got, torch.ones(1, 2, dtype=torch.float16), rtol=2e-2, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_in_padding_does_not_count(mode: str) -> None:
    hidden, keep = torch.ones(1, 3, 2), torch.tensor([[1, 1, 0]])
    hidden[0, 2] = float("inf")
    expected = torch.full((1, 2), 2**0.5) if mode == "mean_sqrt_len_tokens" else torch.ones(1, 2)
    torch.testing.assert_close(Pooling([mode])(hidden, keep), expected)
