"""Pooling and normalisation, against sentence-transformers' own formulas written out in float64 numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_folders import add_pooling

from attnport.errors import SpecError
from attnport.sources.pooling import Pooling, read_pooling

KEEP = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])


def by_hand(mode: str, normalise: bool, hidden: Any, keep: Any) -> Any:
    """What sentence-transformers' Pooling.forward and Normalize.forward compute."""
    mask = keep[:, :, None].astype(np.float64)
    if mode == "cls":
        pooled = hidden[:, 0]
    elif mode == "max":
        pooled = np.where(mask == 0, -1e9, hidden).max(1)
    else:
        pooled = (hidden * mask).sum(1) / np.clip(mask.sum(1), 1e-9, None)
    return pooled / np.clip(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12, None) if normalise else pooled


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_pooling_is_the_formula_of_sentence_transformers(mode: str, normalise: bool) -> None:
    hidden = np.random.default_rng(0).normal(size=(4, 5, 6))
    got = Pooling(mode, normalise=normalise)(torch.from_numpy(hidden), torch.from_numpy(KEEP)).numpy()
    np.testing.assert_allclose(got, by_hand(mode, normalise, hidden, KEEP), rtol=1e-12, atol=1e-14)
    others = {name for name in ("mean", "cls", "max") if name != mode}
    assert all(np.abs(got - by_hand(other, normalise, hidden, KEEP)).max() > 0.1 for other in others)


@pytest.mark.parametrize("mode", ["mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_row_without_tokens_gives_zero(mode: str, dtype: torch.dtype) -> None:
    hidden = torch.full((2, 3, 4), 300.0, dtype=dtype)
    keep = torch.tensor([[0, 0, 0], [1, 1, 0]])
    for normalise in (True, False):
        got = Pooling(mode, normalise=normalise)(hidden, keep)
        assert not got[0].any()
        assert torch.isfinite(got).all()
        assert got[1].all()


def test_what_stands_in_padding_does_not_count() -> None:
    hidden, keep = torch.ones(1, 3, 2), torch.tensor([[1, 1, 0]])
    hidden[0, 2] = float("inf")
    for mode in ("mean", "max"):
        assert torch.equal(Pooling(mode, normalise=False)(hidden, keep), torch.ones(1, 2))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_the_folder_says_mode_and_normalisation(mode: str, normalise: bool, tmp_path: Path) -> None:
    found = read_pooling(add_pooling(tmp_path, mode, normalise=normalise))
    assert found is not None
    assert (found.mode, found.normalise) == (mode, normalise)


def test_a_folder_of_transformers_alone_has_none(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Transformer"}]))
    assert read_pooling(tmp_path) is None


def test_the_newer_spelling_is_read(tmp_path: Path) -> None:
    add_pooling(tmp_path, "mean", normalise=False)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    found = read_pooling(tmp_path)
    assert found is not None
    assert found.mode == "max"


@pytest.mark.parametrize("mode", ["lasttoken", "weightedmean", "mean_sqrt_len", "none"])
def test_a_mode_that_is_not_ours_is_refused(mode: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="expected one of mean, cls, max"):
        read_pooling(add_pooling(tmp_path, mode, normalise=False))


def test_two_modes_at_once_are_refused(tmp_path: Path) -> None:
    add_pooling(tmp_path, "mean", normalise=False)
    (tmp_path / "1_Pooling" / "config.json").write_text(
        '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}'
    )
    with pytest.raises(SpecError, match="got pooling cls, mean"):
        read_pooling(tmp_path)


def test_a_module_that_would_be_left_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="module Dense is not supported"):
        read_pooling(add_pooling(tmp_path, "mean", normalise=True, further=("Dense",)))


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ("{", "cannot be read"),
        ("{}", "not a list of modules"),
        ("[1]", "not a list of modules"),
        ("[]", "got modules none"),
        ('[{"type": "a.Pooling"}, {"type": "a.Transformer"}]', "got modules Pooling, Transformer"),
        ('[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "../other"}]', "outside the folder"),
        ('[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "nowhere"}]', "cannot be read"),
    ],
)
def test_a_damaged_description_is_told(modules: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(SpecError, match=told):
        read_pooling(tmp_path)
