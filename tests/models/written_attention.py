"""Attention in float64 NumPy, a loop over items, heads and queries: what modules are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def array(tensor: torch.Tensor) -> Array:
    """A tensor's numbers in float64."""
    return np.asarray(tensor.detach().double().numpy())


def linear(layer: torch.nn.Module, x: Array) -> Array:
    """A projection with its bias."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, torch.Tensor)
    found = x @ array(weight).T
    return found + array(bias) if isinstance(bias, torch.Tensor) else found


def heads(x_BTE: Array, count: int) -> Array:
    """[B, T, H D] to [B, H, T, D]."""
    B, T, E = x_BTE.shape
    return x_BTE.reshape(B, T, count, E // count).transpose(0, 2, 1, 3)


def attend(q_BHSD: Array, k_BGTD: Array, v_BGTD: Array, keep: Array | bool = True, bias: Array | float = 0.0) -> Array:
    """[B, S, H D]: each query's mean of the values that `keep`, broadcast to [B, H, S, T], leaves; of none, zero."""
    B, H, S, D = q_BHSD.shape
    G, T = k_BGTD.shape[1:3]
    keep_BHST, bias_BHST = np.broadcast_to(keep, (B, H, S, T)), np.broadcast_to(bias, (B, H, S, T))
    y_BSHD = np.zeros((B, S, H, v_BGTD.shape[-1]))
    for b, h, i in np.ndindex(B, H, S):
        g = h * G // H
        left = np.flatnonzero(keep_BHST[b, h, i])
        if left.size:
            scores = k_BGTD[b, g, left] @ q_BHSD[b, h, i] / np.sqrt(D) + bias_BHST[b, h, i, left]
            weights = np.exp(scores - scores.max())
            y_BSHD[b, i, h] = weights / weights.sum() @ v_BGTD[b, g, left]
    return y_BSHD.reshape(B, S, -1)
