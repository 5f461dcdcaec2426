"""Funnel attention against its formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_reference import attend, heads, inputs, kept, project_out, run

from attnport.models.funnel_attention import FunnelConfig, make


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5, 12, 17])
@pytest.mark.parametrize("pool", [2, 3])
def test_pooled_queries_attend_to_all_tokens_and_are_spread_over_their_own(seq: int, pool: int) -> None:
    module, given = make(FunnelConfig(pool=pool)), inputs(2, seq, right=seq // 3)
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
