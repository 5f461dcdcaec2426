"""The Transformer: an encoder of the source, and a decoder of the target that reads it by cross-attention.

Vaswani et al., "Attention Is All You Need" (2017); with `norm_first`, the order of Xiong et al., "On Layer
Normalization in the Transformer Architecture" (2020). With f one of self-attention, cross-attention and
W2 relu(W1 x), in this order:

    x = norm(x + f(x))                                   post-norm, as in 2017
    x = x + f(norm(x))                                   pre-norm; one more norm after each stack

Embeddings are multiplied by sqrt(E), get sinusoidal positions, and are the output projection too (section 3.4). The
decoder's self-attention is causal; padding of the source is hidden from encoder and decoder.

Cost with a feed-forward of 4 E: an encoder layer takes B (24 T E^2 + 4 T^2 E) floating-point operations, a decoder
layer B (28 S E^2 + 4 T E^2 + 4 S^2 E + 4 S T E), the scores 2 B S E V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.layers import ReluFeedForward
from attnport.models.blocks.model import build, model_spec, source_target_contract
from attnport.models.blocks.multi_head import MultiHeadAttention
from attnport.models.blocks.positions import SinusoidalPositions


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes: `width` is E, `layers` those of each stack; `norm_first`: norms are before each part, not after it."""

    vocabulary: int = 1000
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    norm_first: bool = False
    norm_eps: float = 1e-5


class Residual(nn.Module):
    """`norm(x + f(x))`, or `x + f(norm(x))`, of a part f."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, x_BSE: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E]."""
        if self.norm_first:
            return x_BSE + part(self.norm(x_BSE))
        y_BSE: torch.Tensor = self.norm(x_BSE + part(x_BSE))
        return y_BSE


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config.width, config.heads)
        self.attention_residual = Residual(config)
        self.feed_forward = ReluFeedForward(config.width, config.hidden)
        self.feed_forward_residual = Residual(config)

    def forward(self, x_BTE: torch.Tensor, source_B11T: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; `source_B11T` is True for the source's real tokens."""
        x_BTE = self.attention_residual(x_BTE, lambda h_BTE: self.attention(h_BTE, h_BTE, source_B11T))
        y_BTE: torch.Tensor = self.feed_forward_residual(x_BTE, self.feed_forward)
        return y_BTE


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoded source, and feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config.width, config.heads)
        self.attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config.width, config.heads)
        self.cross_residual = Residual(config)
        self.feed_forward = ReluFeedForward(config.width, config.hidden)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, causal_11SS: torch.Tensor, source_B11T: torch.Tensor
    ) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E], reading the encoded source `memory_BTE`."""
        x_BSE = self.attention_residual(x_BSE, lambda h_BSE: self.attention(h_BSE, h_BSE, causal_11SS))
        x_BSE = self.cross_residual(x_BSE, lambda h_BSE: self.cross_attention(h_BSE, memory_BTE, source_B11T))
        y_BSE: torch.Tensor = self.feed_forward_residual(x_BSE, self.feed_forward)
        return y_BSE


class Transformer(nn.Module):
    """Encoder, decoder and the scores of the next token."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.scale: float = config.width**0.5
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        # Multiplied by sqrt(E) these have variance 1, and so do the scores, which use the same weights.
        nn.init.normal_(self.tokens.weight, std=config.width**-0.5)
        self.positions = SinusoidalPositions(config.width)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        last = (lambda: nn.LayerNorm(config.width, eps=config.norm_eps)) if config.norm_first else nn.Identity
        self.encoder_norm, self.decoder_norm = last(), last()

    def forward(self, source_ids: torch.Tensor, source_mask: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
        """Scores each next token of the target.

        Args:
            source_ids: int64 [B, T], below the vocabulary's size.
            source_mask: int64 [B, T], 1 for a real token of the source and 0 for padding.
            target_ids: int64 [B, S], the target so far; padding on its right reaches nothing before it.

        Returns:
            Scores before the softmax, [B, S, V].
        """
        source_B11T = masks.padding(source_mask)
        memory_BTE = self.positions(self.tokens(source_ids) * self.scale)
        for encoder_layer in self.encoder:
            memory_BTE = encoder_layer(memory_BTE, source_B11T)
        memory_BTE = self.encoder_norm(memory_BTE)

        S = target_ids.shape[1]
        causal_11SS = masks.causal(S, S, device=target_ids.device)
        x_BSE = self.positions(self.tokens(target_ids) * self.scale)
        for decoder_layer in self.decoder:
            x_BSE = decoder_layer(x_BSE, memory_BTE, causal_11SS, source_B11T)
        return nn.functional.linear(self.decoder_norm(x_BSE), self.tokens.weight)


def make(config: TransformerConfig = TransformerConfig(), seed: int = 0) -> Transformer:
    """A `Transformer` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: Transformer(config), seed)


def spec(config: TransformerConfig = TransformerConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a Transformer of any size."""
    names = ("source_ids", "source_mask", "target_ids")
    io = source_target_contract(names, config.vocabulary, "logits", config.vocabulary)
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
