"""Reformer's attention: tokens are hashed, sorted by bucket, and attend within chunks of the sorted order.

Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer" (2020), section 2. Queries and keys are shared: a key is
its query at length 1. In each of R rounds, with random rotations Z_r [D, K / 2] for K buckets:

    bucket_r(i) = argmax over the K entries of (q_i Z_r, -q_i Z_r)
    sort by (bucket, position), cut into chunks of W; a query sees its bucket's keys in its chunk and the one before
    o_r = softmax(q_i k_j / sqrt(D)) v_j over these, z_r = logsumexp of the same scores
    y_i = Wo sum_r softmax_r(z_r) o_r

A token sees itself only if it sees no other. Padding is sorted after all buckets and is never seen, and the first chunk
has no chunk before it (in the authors' code it has the last one), so that padding on the right changes no token's keys.
The attention is not causal, since the borders of the chunks depend on every token.

Cost: 6 B T E^2 + R (8 B T W E + B T K E) floating-point operations and 2 R B H T W scores, and R sorts; full attention
takes 8 B T E^2 + 4 B T^2 E and B H T^2.

The buckets are discontinuous: a query near the border between two may fall into the other one at another precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.models.blocks.chunks import cut, join, with_neighbours
from attnport.models.blocks.model import build, merge_heads, model_spec, sequence_contract, split_heads


@dataclass(frozen=True)
class LshConfig:
    """`width` is E, `heads` is H, `buckets` is K (even), `chunk` is W, `rounds` is R."""

    width: int = 64
    heads: int = 4
    buckets: int = 8
    chunk: int = 16
    rounds: int = 2


class LshAttention(nn.Module):
    """Multi-head self-attention within buckets of similar queries."""

    rotations: torch.Tensor  # [H, R, D, K / 2]

    def __init__(self, config: LshConfig) -> None:
        super().__init__()
        self.heads, self.buckets, self.chunk = config.heads, config.buckets, config.chunk
        self.query_key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        shape = (config.heads, config.rounds, config.width // config.heads, config.buckets // 2)
        self.register_buffer("rotations", torch.randn(shape))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Attends from every token to those of its buckets near it in the sorted order.

        Shapes: in R rounds, C chunks of W queries, each with U = 2 W keys.

        Args:
            x: [B, T, E].
            attention_mask: [B, T], 0 for padding; a row of padding only gives zero.
        """
        q_BHTD, v_BHTD = (split_heads(project(x), self.heads) for project in (self.query_key, self.value))
        k_BHTD = nn.functional.normalize(q_BHTD, dim=-1)
        bucket_BHRT = self.bucket(q_BHTD, attention_mask.bool())
        T = x.shape[1]
        order_BHRT = (bucket_BHRT * T + torch.arange(T, device=x.device)).argsort(dim=-1)
        q_BHRCWD = cut(in_order(q_BHTD, order_BHRT), self.chunk)
        k_BHRCUD, v_BHRCUD = (
            with_neighbours(cut(in_order(y_BHTD, order_BHRT), self.chunk), 1, 0) for y_BHTD in (k_BHTD, v_BHTD)
        )
        allowed_BHRCWU = self.allowed(bucket_BHRT.gather(-1, order_BHRT))
        scores_BHRCWU = q_BHRCWD @ k_BHRCUD.mT * q_BHTD.shape[-1] ** -0.5
        scores_BHRCWU = scores_BHRCWU.masked_fill(~allowed_BHRCWU, -torch.inf)
        mixed_BHRCWD = scores_BHRCWU.softmax(dim=-1) @ v_BHRCUD
        weight_BHRCW1 = scores_BHRCWU.logsumexp(dim=-1, keepdim=True)

        place_BHRT1 = order_BHRT.argsort(dim=-1)[..., None]
        mixed_BHRTD = join(mixed_BHRCWD, T)
        mixed_BHRTD = mixed_BHRTD.gather(-2, place_BHRT1.expand_as(mixed_BHRTD))
        weight_BHRT1 = join(weight_BHRCW1, T).gather(-2, place_BHRT1)
        mixed_BHTD = (weight_BHRT1.softmax(dim=2) * mixed_BHRTD).sum(dim=2)
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD) * attention_mask[..., None].to(x.dtype))
        return y_BTE

    def bucket(self, q_BHTD: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """The bucket of each token in each round, [B, H, R, T]; K for padding, after all others."""
        rotated_BHRTK = q_BHTD[:, :, None] @ self.rotations
        found_BHRT = torch.cat([rotated_BHRTK, -rotated_BHRTK], dim=-1).argmax(dim=-1)
        return found_BHRT.masked_fill(~keep_BT[:, None, None], self.buckets)

    def allowed(self, sorted_BHRT: torch.Tensor) -> torch.Tensor:
        """Which keys of its chunk and the one before each query sees, [B, H, R, C, W, U], by the sorted buckets."""
        # Buckets count from 1 here: 0 is the filling of the last chunk, and of the missing chunk before the first.
        bucket_BHRCW1 = cut(sorted_BHRT[..., None] + 1, self.chunk)
        bucket_BHRC1U = with_neighbours(bucket_BHRCW1, 1, 0).mT
        seen_BHRC1U = (bucket_BHRC1U > 0) & (bucket_BHRC1U <= self.buckets)
        same_BHRCWU = (bucket_BHRCW1 == bucket_BHRC1U) & seen_BHRC1U
        at_W, at_U = (torch.arange(count * self.chunk, device=sorted_BHRT.device) for count in (1, 2))
        self_WU = at_U - self.chunk == at_W[:, None]
        others_BHRCWU = same_BHRCWU & ~self_WU
        return others_BHRCWU | (self_WU & ~others_BHRCWU.any(dim=-1, keepdim=True))


def in_order(x_BHTD: torch.Tensor, order_BHRT: torch.Tensor) -> torch.Tensor:
    """The vectors in the order of every round, [B, H, R, T, D]."""
    shape = (*order_BHRT.shape, x_BHTD.shape[-1])
    return x_BHTD[:, :, None].expand(shape).gather(-2, order_BHRT[..., None].expand(shape))


def make(config: LshConfig = LshConfig(), seed: int = 0) -> LshAttention:
    """An `LshAttention` in float32 and eval mode with random weights; a seed gives the same weights and rotations."""
    return build(lambda: LshAttention(config), seed)


def spec(config: LshConfig = LshConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a layer of any size."""
    return model_spec(__name__, sequence_contract(config.width), lambda: make(config, seed))


SPEC = spec()
