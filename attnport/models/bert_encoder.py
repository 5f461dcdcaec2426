"""BERT's encoder: token, position and segment embeddings, then post-norm layers of self-attention and feed-forward.

Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019), after Vaswani et al., "Attention Is All You Need" (2017). One layer, on x [B, T, E]:

    a = x + Wo softmax(q k^T / sqrt(D) + mask) v        q, k, v = x split into H heads of D = E / H
    y = norm(a_n + W2 gelu(W1 a_n))                      a_n = norm(a)

Cost of a layer with a feed-forward of 4 E: 24 B T E^2 + 4 B T^2 E floating-point operations; attention as one kernel
keeps the T x T scores out of memory.

The default is small and has random weights: it is for trying and testing. `make(BertConfig(...))` has any other size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.models.blocks.layers import FeedForward
from attnport.models.blocks.model import build, model_spec, token_contract
from attnport.models.blocks.multi_head import MultiHeadAttention
from attnport.models.blocks.positions import LearnedPositions


@dataclass(frozen=True)
class BertConfig:
    """Sizes: `width` is E, `heads` is H, `positions` the longest T, `segments` how many token types there are."""

    vocabulary: int = 1000
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    positions: int = 512
    segments: int = 2
    norm_eps: float = 1e-12


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input and normalised afterwards (post-norm)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config.width, config.heads)
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config.width, config.hidden)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, x_BTE: torch.Tensor, allowed_B11T: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        x_BTE = self.attention_norm(x_BTE + self.attention(x_BTE, x_BTE, allowed_B11T))
        y_BTE: torch.Tensor = self.feed_forward_norm(x_BTE + self.feed_forward(x_BTE))
        return y_BTE


class BertEncoder(nn.Module):
    """The whole encoder, without BERT's pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.positions = LearnedPositions(config.positions, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Encodes token ids.

        Args:
            input_ids: int64 [B, T], below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding, on either side or inside.
            token_type_ids: int64 [B, T], the segment of each token.

        Returns:
            The last layer's activations, [B, T, E].
        """
        allowed_B11T = attention_mask[:, None, None, :].bool()
        x_BTE: torch.Tensor = self.norm(self.positions(self.tokens(input_ids) + self.segments(token_type_ids)))
        for layer in self.layers:
            x_BTE = layer(x_BTE, allowed_B11T)
        return x_BTE


def make(config: BertConfig = BertConfig(), seed: int = 0) -> BertEncoder:
    """A `BertEncoder` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: BertEncoder(config), seed)


def spec(config: BertConfig = BertConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an encoder of any size."""
    inputs = {"input_ids": config.vocabulary, "attention_mask": 2, "token_type_ids": config.segments}
    io = token_contract(inputs, config.width, limit=config.positions)
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
