"""T5: an encoder-decoder whose positions are biases of the scores, with RMSNorm and without any shift.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020), version 1.0,
and its code. With f one of self-attention, cross-attention and W2 relu(W1 x), in this order:

    x = x + f(norm(x))                                   norm(x) = w x / sqrt(mean(x^2))
    scores = q k^T + bias[h, i, j]                       not divided by sqrt(D)

The bias is a table's number for the bucket of j - i: one table for all layers of the encoder, one for those of the
decoder, none for cross-attention.

Cost with a feed-forward of 4 E and H D = E: an encoder layer takes B (24 T E^2 + 4 T^2 E) floating-point operations,
a decoder layer B (28 S E^2 + 4 T E^2 + 4 S^2 E + 4 S T E); a stack's bias is H numbers for every pair of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.layers import PreNormDecoderLayer, PreNormLayer, ReluFeedForward, RMSNorm
from attnport.models.blocks.model import build, model_spec, source_target_contract
from attnport.models.blocks.positions import RelativePositions
from attnport.models.blocks.t5_attention import T5Attention, scale_queries


@dataclass(frozen=True)
class T5Config:
    """Sizes: `depth` is D, `layers` those of each stack, `buckets` and `max_distance` those of the relative bias."""

    vocabulary: int = 1000
    width: int = 64
    heads: int = 4
    depth: int = 16
    layers: int = 2
    hidden: int = 256
    buckets: int = 32
    max_distance: int = 128
    norm_eps: float = 1e-6


def attention(config: T5Config) -> T5Attention:
    """An attention of either stack."""
    return T5Attention(config.width, config.heads, config.depth)


def feed_forward(config: T5Config) -> ReluFeedForward:
    """A feed-forward of either stack."""
    return ReluFeedForward(config.width, config.hidden, bias=False)


class T5(nn.Module):
    """Both stacks, without the projection to the vocabulary."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        norm = partial(RMSNorm, config.width, config.norm_eps)
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.encoder_positions = RelativePositions(config.heads, config.buckets, config.max_distance)
        self.encoder = nn.ModuleList(
            PreNormLayer(norm, attention(config), feed_forward(config)) for _ in range(config.layers)
        )
        self.encoder_norm = norm()
        self.decoder_positions = RelativePositions(
            config.heads, config.buckets, config.max_distance, bidirectional=False
        )
        self.decoder = nn.ModuleList(
            PreNormDecoderLayer(norm, attention(config), attention(config), feed_forward(config))
            for _ in range(config.layers)
        )
        self.decoder_norm = norm()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        """Encodes the source and decodes the target.

        Args:
            input_ids: int64 [B, T], the source, below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token of the source and 0 for padding.
            decoder_input_ids: int64 [B, S], the target so far; padding on its right reaches nothing before it.

        Returns:
            The decoder's activations after its last norm, [B, S, E].
        """
        T, S = input_ids.shape[1], decoder_input_ids.shape[1]
        source_B11T = masks.padding(attention_mask)
        memory_BTE = self.tokens(input_ids)
        bias_BHTT = self.encoder_positions(T, T) + masks.additive(source_B11T, memory_BTE.dtype)
        for encoder_layer in self.encoder:
            memory_BTE = encoder_layer(memory_BTE, bias_BHTT)
        memory_BTE = self.encoder_norm(memory_BTE)

        causal_11SS = masks.causal(S, S, device=decoder_input_ids.device)
        x_BSE = self.tokens(decoder_input_ids)
        bias_1HSS = self.decoder_positions(S, S) + masks.additive(causal_11SS, x_BSE.dtype)
        for decoder_layer in self.decoder:
            x_BSE = decoder_layer(x_BSE, memory_BTE, bias_1HSS, source_B11T)
        y_BSE: torch.Tensor = self.decoder_norm(x_BSE)
        return y_BSE


def make(config: T5Config = T5Config(), seed: int = 0) -> T5:
    """A `T5` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return scale_queries(build(lambda: T5(config), seed))


def spec(config: T5Config = T5Config(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a T5 of any size."""
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    io = source_target_contract(names, config.vocabulary, "last_hidden_state", config.width)
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
