"""Reformer's attention against its definition, token by token, and against full attention where it becomes that."""

from __future__ import annotations

import numpy as np
import pytest
from attention_reference import Array, attend, heads, inputs, kept, project_out, run

from attnport.models.lsh_attention import LshAttention, LshConfig, make

CONFIG = LshConfig(buckets=4, chunk=4, rounds=3)


def seen(buckets: Array, keep: Array, chunk: int) -> list[list[int]]:
    """The keys that each token sees in one round of one head; nothing for padding."""
    order = sorted((t for t in range(len(keep)) if keep[t]), key=lambda t: (buckets[t], t))
    found: list[list[int]] = [[] for _ in keep]
    for rank, token in enumerate(order):
        start = rank // chunk * chunk
        near = order[max(0, start - chunk) : start + chunk]
        found[token] = [t for t in near if buckets[t] == buckets[token] and t != token] or [token]
    return found


def reference(module: LshAttention, config: LshConfig, x: object, mask: object) -> Array:
    """The docstring's formulas in loops."""
    q, v = heads(module.query_key, x), heads(module.value, x)  # type: ignore[arg-type]
    keep = np.asarray(mask) != 0
    k = q / np.linalg.norm(q, axis=-1, keepdims=True)
    rotated = np.einsum("bhtd,hrdk->bhrtk", q, module.rotations.double().numpy())
    buckets = np.concatenate([rotated, -rotated], axis=-1).argmax(axis=-1)
    mixed = np.zeros_like(v)
    for b, h in np.ndindex(*q.shape[:2]):
        rounds = [seen(buckets[b, h, r], keep[b], config.chunk) for r in range(config.rounds)]
        for t in np.flatnonzero(keep[b]):
            outputs, totals = [], []
            for keys in (each[t] for each in rounds):
                weights = np.exp(k[b, h, keys] @ q[b, h, t] / 4)
                outputs.append(weights @ v[b, h, keys] / weights.sum())
                totals.append(weights.sum())
            mixed[b, h, t] = np.average(outputs, axis=0, weights=totals)
    return project_out(module.out, mixed)


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5, 8, 13, 30])
def test_a_token_sees_its_bucket_near_it_in_the_sorted_order(seq: int) -> None:
    module, given = make(CONFIG), inputs(2, seq, right=seq // 3)
    np.testing.assert_allclose(run(module, **given), reference(module, CONFIG, *given.values()), atol=1e-12)


def test_equal_tokens_share_a_bucket_and_see_each_other() -> None:
    module, given = make(CONFIG), inputs(1, 6)
    given["x"][:] = given["x"][:, :1]
    got = run(module, **given)
    np.testing.assert_allclose(got, np.broadcast_to(got[:, :1], got.shape), atol=1e-12)


def test_with_chunks_beyond_the_length_and_one_bucket_it_is_full_attention_without_oneself() -> None:
    config = LshConfig(buckets=2, chunk=16, rounds=1)
    module, given = make(config), inputs(2, 11, right=3)
    module.rotations.zero_()  # every entry is equal, and the first is taken
    module = module.double()
    q, v = heads(module.query_key, given["x"]), heads(module.value, given["x"])
    k = q / np.linalg.norm(q, axis=-1, keepdims=True)
    expected = project_out(module.out, attend(q, k, v, kept(given) & ~np.eye(11, dtype=bool)))
    valid = given["attention_mask"].numpy().astype(bool)
    np.testing.assert_allclose(run(module, **given)[valid], expected[valid], atol=1e-12)


def test_more_rounds_find_more_of_full_attention() -> None:
    given, errors = inputs(2, 48), []
    for rounds in (1, 8):
        module = make(LshConfig(rounds=rounds, buckets=4, chunk=16))
        q, v = heads(module.query_key, given["x"]), heads(module.value, given["x"])
        k = q / np.linalg.norm(q, axis=-1, keepdims=True)
        full = project_out(module.out, attend(q, k, v, kept(given) & ~np.eye(48, dtype=bool)))
        errors.append(float(((run(module, **given) - full) ** 2).mean()))
    assert errors[1] < 0.7 * errors[0]
