"""Attentions with a sparse pattern, against the pattern written out in NumPy and against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_reference import Array, attend, distances, inputs, kept, project_out, query_key_value, run

from attnport.models import bigbird_attention as bigbird
from attnport.models import longformer_attention as longformer
from attnport.models import sliding_window_attention as sliding
from attnport.models import strided_sparse_attention as strided

LENGTHS = [1, 2, 3, 4, 6, 7, 8, 9, 23]


@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("window", [1, 3, 30])
def test_a_sliding_window_is_masked_attention(seq: int, window: int) -> None:
    module, given = sliding.make(sliding.SlidingWindowConfig(window=window)), inputs(2, seq, right=seq // 3)
    allowed = (abs(distances(seq)) <= window) & kept(given)
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), allowed))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


def test_a_token_past_the_window_changes_nothing_and_one_at_its_edge_does() -> None:
    module, given = sliding.make(sliding.SlidingWindowConfig(window=3)), inputs(1, 12)
    before = run(module, **given)
    given["x"][0, 8] += 1.0
    moved = abs(run(module, **given) - before).max(axis=(0, 2)) > 1e-6
    assert moved.tolist() == [5 <= t <= 11 for t in range(12)]


def marks(batch: int, seq: int, *at: int) -> torch.Tensor:
    found = torch.zeros(batch, seq, dtype=torch.int64)
    found[:, [t for t in at if t < seq]] = 1
    return found


@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("at", [(), (0,), (1, 5)])
def test_longformer_is_a_window_with_global_tokens_that_project_by_themselves(seq: int, at: tuple[int, ...]) -> None:
    module, given = longformer.make(longformer.LongformerConfig(window=2)), inputs(2, seq, right=seq // 3)
    marked = marks(2, seq, *at)
    is_global = marked.numpy().astype(bool)
    local = ((abs(distances(seq)) <= 2) | is_global[:, None, None, :]) & kept(given)
    near = attend(*query_key_value(module.project, given["x"]), local)
    every = attend(*query_key_value(module.project_global, given["x"]), kept(given))
    expected = project_out(module.out, np.where(is_global[:, None, :, None], every, near))
    np.testing.assert_allclose(run(module, **given, global_attention_mask=marked), expected, atol=1e-12)


@pytest.mark.parametrize("at", [(), (0,), (3, 17)])
def test_longformer_equals_transformers_on_equal_weights(at: tuple[int, ...]) -> None:
    pytest.importorskip("transformers")
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    module, given = longformer.make(longformer.LongformerConfig(window=4)), inputs(2, 24, right=5)
    theirs = LongformerSelfAttention(  # type: ignore[no-untyped-call]
        LongformerConfig(hidden_size=64, num_attention_heads=4, attention_window=[8], attention_probs_dropout_prob=0.0),
        layer_id=0,
    )
    for name in ("query", "key", "value"):
        getattr(theirs, name).load_state_dict(getattr(module.project, name).state_dict())
        getattr(theirs, f"{name}_global").load_state_dict(getattr(module.project_global, name).state_dict())
    marked = marks(2, 24, *at)
    # -10000 for padding, 10000 for global tokens, 0 for the others.
    code = torch.where(given["attention_mask"] == 0, -10000.0, marked * 10000.0).float()
    with torch.no_grad():
        (mixed,) = theirs.eval()(
            given["x"].float(),
            attention_mask=code,
            is_index_masked=code < 0,
            is_index_global_attn=code > 0,
            is_global_attn=bool(at),
        )
        expected = module.out(mixed).numpy()
        got = module(given["x"].float(), given["attention_mask"], marked).numpy()
    valid = given["attention_mask"].numpy().astype(bool)
    np.testing.assert_allclose(got[valid], expected[valid], atol=2e-5)


BIGBIRD = bigbird.BigBirdConfig(block=3, global_blocks=1, random_blocks=2, positions=90)


@pytest.mark.parametrize("seq", [*LENGTHS, 90])
def test_bigbird_is_attention_under_its_pattern_of_blocks(seq: int) -> None:
    module, given = bigbird.make(BIGBIRD), inputs(2, seq, right=seq // 3)
    allowed = np.kron(module.pattern.numpy(), np.ones((3, 3), dtype=bool))[:seq, :seq] & kept(given)
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), allowed))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


def test_bigbirds_pattern_has_a_window_global_blocks_and_random_blocks_and_no_more() -> None:
    pattern = bigbird.make(BIGBIRD).pattern.numpy()
    at = np.arange(30)
    fixed = (abs(at[:, None] - at) <= 1) | (at[:, None] == 0) | (at == 0)
    assert pattern[fixed].all()
    drawn = pattern & ~fixed
    assert (drawn[8:].sum(axis=1) == 2).all()
    assert all(row.nonzero()[0].max(initial=0) < 2 * max(index, 1) for index, row in enumerate(drawn))


def test_another_seed_draws_another_pattern() -> None:
    first, same, other = (bigbird.make(BIGBIRD, seed).pattern for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def strided_pattern(seq: int, stride: int) -> Array:
    """By the paper's sets: two local heads, two strided ones."""
    local = [[j in range(max(0, i - stride + 1), i + 1) for j in range(seq)] for i in range(seq)]
    jumps = [[j in range(i % stride, i + 1, stride) for j in range(seq)] for i in range(seq)]
    return np.array([local, local, jumps, jumps])


@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("stride", [1, 4])
def test_strided_sparse_attention_has_local_and_strided_heads(seq: int, stride: int) -> None:
    module, given = strided.make(strided.StridedSparseConfig(stride=stride)), inputs(2, seq, right=seq // 3)
    allowed = strided_pattern(seq, stride) & kept(given)
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), allowed))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)
