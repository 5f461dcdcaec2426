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

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import torch_builders as masks
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.norms import RMSNorm
from attnport.models.blocks.relative import RelativePositions
from attnport.models.blocks.relu_feed_forward import ReluFeedForward
from attnport.models.blocks.t5_attention import T5Attention, scale_queries
from attnport.models.blocks.weights import build


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


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each behind its norm."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = T5Attention(config.width, config.heads, config.depth)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_eps)
        self.feed_forward = ReluFeedForward(config.width, config.hidden, bias=False)

    def forward(self, x_BTE: torch.Tensor, bias_BHTT: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]; `bias_BHTT` is -inf for padding."""
        normed_BTE = self.attention_norm(x_BTE)
        x_BTE = x_BTE + self.attention(normed_BTE, normed_BTE, bias_BHTT)
        y_BTE: torch.Tensor = x_BTE + self.feed_forward(self.feed_forward_norm(x_BTE))
        return y_BTE


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoded source and feed-forward, each behind its norm."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = T5Attention(config.width, config.heads, config.depth)
        self.cross_norm = RMSNorm(config.width, config.norm_eps)
        self.cross_attention = T5Attention(config.width, config.heads, config.depth)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_eps)
        self.feed_forward = ReluFeedForward(config.width, config.hidden, bias=False)

    def forward(
        self, x_BSE: torch.Tensor, memory_BTE: torch.Tensor, bias_1HSS: torch.Tensor, source_B11T: torch.Tensor
    ) -> torch.Tensor:
        """Maps [B, S, E] to [B, S, E]; `bias_1HSS` is -inf for later tokens."""
        normed_BSE = self.attention_norm(x_BSE)
        x_BSE = x_BSE + self.attention(normed_BSE, normed_BSE, bias_1HSS)
        x_BSE = x_BSE + self.cross_attention(self.cross_norm(x_BSE), memory_BTE, source_B11T)
        y_BSE: torch.Tensor = x_BSE + self.feed_forward(self.feed_forward_norm(x_BSE))
        return y_BSE


class T5(nn.Module):
    """Both stacks, without the projection to the vocabulary."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.encoder_positions = RelativePositions(config.heads, config.buckets, config.max_distance)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.encoder_norm = RMSNorm(config.width, config.norm_eps)
        self.decoder_positions = RelativePositions(
            config.heads, config.buckets, config.max_distance, bidirectional=False
        )
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.decoder_norm = RMSNorm(config.width, config.norm_eps)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        """Encodes the source and decodes the target.

        Args:
            input_ids: int64 [B, T], the source, below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token of the source and 0 for padding.
            decoder_input_ids: int64 [B, S], the target so far; padding on its right reaches nothing before it.

        Returns:
            The decoder's activations behind its last norm, [B, S, E].
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
    source = ("batch", "seq")
    return ModelSpec(
        name="t5",
        source=Source(text="t5"),
        io=IOContract(
            inputs=(
                TensorSpec("input_ids", "int64", source, high=config.vocabulary),
                TensorSpec("attention_mask", "int64", source, high=2),
                TensorSpec("decoder_input_ids", "int64", ("batch", "target"), high=config.vocabulary),
            ),
            outputs=(TensorSpec("last_hidden_state", "float32", ("batch", "target", config.width)),),
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, 128, 512), Dim("target", 1, 128, 512)),
            masks=(MaskSpec(kinds=("padding",), input="attention_mask"),),
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
