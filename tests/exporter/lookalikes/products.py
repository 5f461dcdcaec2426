"""Softmaxes and products that are not those of attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from spellings.case import MASK, PADDED, X, contract, scores
from torch import nn

from lookalikes.case import GATED, PAIRS, LookAlike, hides, refused, uncounted


def _over_queries(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).softmax(dim=2) @ v


def _over_heads(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).softmax(dim=1) @ v


def _used_transposed(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).softmax(-1).transpose(-1, -2) @ v


def _from_the_left(q: Any, k: Any, v: Any) -> Any:
    return (v.transpose(-1, -2) @ scores(q, k).softmax(-1)).transpose(-1, -2)


def _squared(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).softmax(-1).square() @ v


def _root(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).softmax(-1).sqrt() @ v


def _logarithms(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).log_softmax(-1) @ v


def _cumulative(q: Any, k: Any, v: Any) -> Any:
    return scores(q, k).softmax(-1).cumsum(-1) @ v


def _gated_by_keys(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    return (scores(q, k).softmax(-1) * hidden[:, None, None, :]) @ v


def _gated_by_pairs(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return (scores(q, k).softmax(-1) * bias) @ v


def _another_mask_after(q: Any, k: Any, v: Any, mask: Any, hidden: Any) -> Any:
    """The second mask takes probability away without giving it to the rest."""
    attn = scores(q, k).masked_fill(hides(mask), -math.inf).softmax(-1)
    return attn.masked_fill(hidden[:, None, None, :] > 0.5, 0.0) @ v


def _only_after(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = scores(q, k).softmax(-1)
    return torch.where(hides(mask), 0.0, attn) @ v


def _renormalised(q: Any, k: Any, v: Any, mask: Any) -> Any:
    attn = scores(q, k).softmax(-1) * mask[:, None, None, :]
    return (attn / attn.sum(-1, keepdim=True)) @ v


def _two_values(q: Any, k: Any, v: Any) -> Any:
    attn = scores(q, k).softmax(-1)
    return attn @ v + attn @ torch.relu(k)


def _identity_added(q: Any, k: Any, v: Any) -> Any:
    """Half of each token's attention is for itself."""
    attn = scores(q, k).softmax(-1)
    return (attn + torch.eye(q.shape[2], dtype=q.dtype)) @ v


def _dropout_awake(q: Any, k: Any, v: Any) -> Any:
    return nn.functional.dropout(scores(q, k).softmax(-1), 0.5, training=True) @ v


def _of_scaled_features(q: Any, k: Any, v: Any) -> Any:
    """Linear attention: `q (k^T v)`, both with a softmax of their own."""
    return (q.softmax(-1) * 0.35) @ (k.softmax(-2).transpose(-1, -2) @ v)


_AFTER = "after the softmax"
CASES: dict[str, LookAlike] = {
    "softmax_over_queries": refused(_over_queries, "axis"),
    "softmax_over_heads": refused(_over_heads, "axis"),
    "used_transposed": refused(_used_transposed, "softmax|queries and keys"),
    "product_from_the_left": refused(_from_the_left, "softmax|queries and keys"),
    "squared": refused(_squared, _AFTER),
    "root": refused(_root, _AFTER),
    "logarithms": uncounted(_logarithms),
    "cumulative": refused(_cumulative, _AFTER),
    "gated_by_keys": refused(_gated_by_keys, _AFTER, GATED),
    "gated_by_pairs": refused(_gated_by_pairs, _AFTER, PAIRS),
    "another_mask_after": refused(
        _another_mask_after, "zero that no mask before it hides", contract(X, MASK, *GATED.inputs[1:])
    ),
    "a_mask_only_after": refused(_only_after, "zero that no mask before it hides", PADDED),
    "renormalised": refused(_renormalised, _AFTER, PADDED),
    "two_values": refused(_two_values, "several products"),
    "of_scaled_features": refused(_of_scaled_features, ("softmax is of features", "product")),
    "identity_added": refused(_identity_added, _AFTER),
    "dropout_awake": refused(_dropout_awake, "Dropout", random=True),
}
