"""Attentions to some of the tokens, against their definitions written out in NumPy and against transformers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from attention_reference import Array, attend, distances, heads, inputs, kept, project_out, query_key_value, run

from attnport.models.base import build
from attnport.models.sparse_attention import (
    BigBirdAttention,
    FunnelAttention,
    LongformerAttention,
    LshAttention,
    SlidingWindowAttention,
    StridedSparseAttention,
)

LENGTHS = [1, 2, 3, 4, 6, 7, 8, 9, 23]


@pytest.mark.parametrize("seq", LENGTHS)
@pytest.mark.parametrize("window", [1, 3, 30])
def test_a_sliding_window_is_masked_attention(seq: int, window: int) -> None:
    module, given = build(lambda: SlidingWindowAttention(window=window)), inputs(2, seq, right=seq // 3)
    allowed = (abs(distances(seq)) <= window) & kept(given)
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), allowed))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


def test_a_token_past_the_window_changes_nothing_and_one_at_its_edge_does() -> None:
    module, given = build(lambda: SlidingWindowAttention(window=3)), inputs(1, 12)
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
    module, given = build(lambda: LongformerAttention(window=2)), inputs(2, seq, right=seq // 3)
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

    module, given = build(lambda: LongformerAttention(window=4)), inputs(2, 24, right=5)
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


BIGBIRD = partial(BigBirdAttention, block=3, global_blocks=1, random_blocks=2, positions=90)


@pytest.mark.parametrize("seq", [*LENGTHS, 90])
def test_bigbird_is_attention_under_its_pattern_of_blocks(seq: int) -> None:
    module, given = build(BIGBIRD), inputs(2, seq, right=seq // 3)
    allowed = np.kron(module.pattern.numpy(), np.ones((3, 3), dtype=bool))[:seq, :seq] & kept(given)
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), allowed))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


def test_bigbirds_pattern_has_a_window_global_blocks_and_random_blocks_and_no_more() -> None:
    pattern = build(BIGBIRD).pattern.numpy()
    at = np.arange(30)
    fixed = (abs(at[:, None] - at) <= 1) | (at[:, None] == 0) | (at == 0)
    assert pattern[fixed].all()
    drawn = pattern & ~fixed
    assert (drawn[8:].sum(axis=1) == 2).all()
    assert all(row.nonzero()[0].max(initial=0) < 2 * max(index, 1) for index, row in enumerate(drawn))


def test_another_seed_draws_another_pattern() -> None:
    first, same, other = (build(BIGBIRD, seed).pattern for seed in (0, 0, 1))
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
    module, given = build(lambda: StridedSparseAttention(stride=stride)), inputs(2, seq, right=seq // 3)
    allowed = strided_pattern(seq, stride) & kept(given)
    expected = project_out(module.out, attend(*query_key_value(module.project, given["x"]), allowed))
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-12)


LSH = {"buckets": 4, "chunk": 4, "rounds": 3}


def lsh_keys(buckets: Array, keep: Array, chunk: int) -> list[list[int]]:
    """The keys that each token sees in one round of one head; nothing for padding."""
    order = sorted((t for t in range(len(keep)) if keep[t]), key=lambda t: (buckets[t], t))
    found: list[list[int]] = [[] for _ in keep]
    for rank, token in enumerate(order):
        start = rank // chunk * chunk
        near = order[max(0, start - chunk) : start + chunk]
        found[token] = [t for t in near if buckets[t] == buckets[token] and t != token] or [token]
    return found


def lsh_reference(module: LshAttention, x: object, mask: object) -> Array:
    """The docstring's formulas in loops."""
    q, v = heads(module.query_key, x), heads(module.value, x)  # type: ignore[arg-type]
    keep = np.asarray(mask) != 0
    k = q / np.linalg.norm(q, axis=-1, keepdims=True)
    rotated = np.einsum("bhtd,hrdk->bhrtk", q, module.rotations.double().numpy())
    buckets = np.concatenate([rotated, -rotated], axis=-1).argmax(axis=-1)
    mixed = np.zeros_like(v)
    for b, h in np.ndindex(*q.shape[:2]):
        rounds = [lsh_keys(buckets[b, h, r], keep[b], LSH["chunk"]) for r in range(LSH["rounds"])]
        for t in np.flatnonzero(keep[b]):
            outputs, totals = [], []
            for keys in (each[t] for each in rounds):
                weights = np.exp(k[b, h, keys] @ q[b, h, t] / 4)
                outputs.append(weights @ v[b, h, keys] / weights.sum())
                totals.append(weights.sum())
            mixed[b, h, t] = np.average(outputs, axis=0, weights=totals)
    return project_out(module.out, mixed)


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5, 8, 13, 30])
def test_in_lsh_attention_a_token_sees_its_bucket_near_it_in_the_sorted_order(seq: int) -> None:
    module, given = build(lambda: LshAttention(**LSH)), inputs(2, seq, right=seq // 3)
    np.testing.assert_allclose(run(module, **given), lsh_reference(module, *given.values()), atol=1e-12)


def test_equal_tokens_share_a_bucket_and_see_each_other() -> None:
    module, given = build(lambda: LshAttention(**LSH)), inputs(1, 6)
    given["x"][:] = given["x"][:, :1]
    got = run(module, **given)
    np.testing.assert_allclose(got, np.broadcast_to(got[:, :1], got.shape), atol=1e-12)


def test_lsh_attention_in_one_chunk_and_one_bucket_is_full_attention_without_oneself() -> None:
    module, given = build(lambda: LshAttention(buckets=2, chunk=16, rounds=1)), inputs(2, 11, right=3)
    module.rotations.zero_()  # every entry is equal, and the first is taken
    module = module.double()
    q, v = heads(module.query_key, given["x"]), heads(module.value, given["x"])
    k = q / np.linalg.norm(q, axis=-1, keepdims=True)
    expected = project_out(module.out, attend(q, k, v, kept(given) & ~np.eye(11, dtype=bool)))
    valid = given["attention_mask"].numpy().astype(bool)
    np.testing.assert_allclose(run(module, **given)[valid], expected[valid], atol=1e-12)


def test_more_rounds_of_lsh_attention_find_more_of_full_attention() -> None:
    given, errors = inputs(2, 48), []
    for rounds in (1, 8):
        module = build(partial(LshAttention, rounds=rounds, buckets=4, chunk=16))
        q, v = heads(module.query_key, given["x"]), heads(module.value, given["x"])
        k = q / np.linalg.norm(q, axis=-1, keepdims=True)
        full = project_out(module.out, attend(q, k, v, kept(given) & ~np.eye(48, dtype=bool)))
        errors.append(float(((run(module, **given) - full) ** 2).mean()))
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5, 12, 17])
@pytest.mark.parametrize("pool", [2, 3])
def test_pooled_queries_attend_to_all_tokens_and_are_spread_over_their_own(seq: int, pool: int) -> None:
    module, given = build(lambda: FunnelAttention(pool=pool)), inputs(2, seq, right=seq // 3)
    x, keep = given["x"].numpy(), given["attention_mask"].numpy()
    pooled = np.zeros((2, -(-seq // pool), 64))
    for b, s in np.ndindex(*pooled.shape[:2]):
        tokens = [t for t in range(s * pool, min(seq, (s + 1) * pool)) if keep[b, t]]
        pooled[b, s] = x[b, tokens].mean(axis=0) if tokens else 0.0
    q = heads(module.project.query, torch.from_numpy(pooled))
    k, v = heads(module.project.key, given["x"]), heads(module.project.value, given["x"])
    h = pooled + project_out(module.out, attend(q, k, v, kept(given)))
    h = (h - h.mean(axis=-1, keepdims=True)) / np.sqrt(h.var(axis=-1, keepdims=True) + module.norm.eps)
    expected = x + np.repeat(h, pool, axis=1)[:, :seq]
    np.testing.assert_allclose(run(module, **given), expected, atol=1e-11)
