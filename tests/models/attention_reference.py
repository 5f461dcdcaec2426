"""Attention in NumPy and float64, written out by itself, and inputs for layers that map `x` and a mask to `y`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]


def inputs(batch: int, seq: int, width: int = 64, *, right: int = 0, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random x in float64, and a mask that hides the last `right` tokens of item 0 and the third of the last item."""
    generator = torch.Generator().manual_seed(1000 * seed + 10 * seq + batch)
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[0, seq - right :] = 0
    if batch > 1 and seq > 3:
        mask[-1, 2] = 0
    return {"x": torch.randn(batch, seq, width, generator=generator, dtype=torch.float64), "attention_mask": mask}


def run(module: nn.Module, **given: torch.Tensor) -> Array:
    """What the module gives, in float64."""
    with torch.no_grad():
        found: torch.Tensor = module.double()(**given)
    return found.numpy()


def heads(projection: nn.Module, x: torch.Tensor, count: int = 4) -> Array:
    """A projection of x as [B, H, T, D], by its weight and bias."""
    weight, bias = projection.weight, projection.bias
    y = np.einsum("bte,fe->btf", x.numpy(), weight.detach().double().numpy())  # type: ignore[operator]
    if bias is not None:
        y = y + bias.detach().double().numpy()  # type: ignore[operator]
    return np.asarray(y.reshape(*y.shape[:2], count, -1).transpose(0, 2, 1, 3))


def query_key_value(project: nn.Module, x: torch.Tensor) -> tuple[Array, Array, Array]:
    """q, k and v of `blocks.query_key_value`."""
    q, k, v = (heads(getattr(project, name), x) for name in ("query", "key", "value"))
    return q, k, v


def attend(q: Array, k: Array, v: Array, allowed: Array | bool, bias: Array | float = 0.0, scale: float = 0.0) -> Array:
    """Softmax attention over the allowed keys; a row with none gives zero. A scale of 0 is 1 / sqrt(D).

    Of k and v there may be fewer heads than of q, each for as many neighbouring heads of q.
    """
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = np.einsum("bhsd,bhtd->bhst", q, k) * (scale or q.shape[-1] ** -0.5) + bias
    allowed = np.broadcast_to(np.asarray(allowed), scores.shape)
    weights = np.where(allowed, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("bhst,bhtd->bhsd", weights / np.where(total > 0, total, 1.0), v))


def project_out(out: nn.Module, mixed: Array) -> Array:
    """Heads merged, and the output projection."""
    merged = torch.from_numpy(mixed.transpose(0, 2, 1, 3).reshape(mixed.shape[0], mixed.shape[2], -1).copy())
    with torch.no_grad():
        found: torch.Tensor = out.double()(merged)
    return np.asarray(found)


def kept(given: dict[str, torch.Tensor]) -> Array:
    """The padding mask over keys, bool [B, 1, 1, T]."""
    return given["attention_mask"].numpy()[:, None, None, :] != 0


def distances(seq: int) -> Array:
    """Query position minus key position, [T, T]."""
    return np.asarray(np.arange(seq)[:, None] - np.arange(seq))
