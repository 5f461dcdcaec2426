"""A decoder that reads retrieved text: causal self-attention, then cross-attention to the retrieved chunks.

Borgeaud et al., "Improving Language Models by Retrieving from Trillions of Tokens" (RETRO, 2022), with the flat memory
of Izacard and Grave, "Leveraging Passage Retrieval with Generative Models" (2021): N retrieved chunks of C encoded
tokens, [B, N, C, E], are one memory of N C keys, in which the keys of missing chunks are hidden. One layer, on the
query stream x [B, S, E]:

    a = x + attention(norm(x), norm(x))                  a token to itself and those before it
    c = a + attention(norm(a), chunks)                   every token to every token of every retrieved chunk
    y = c + W2 gelu(W1 norm(c))

If nothing was retrieved, the cross-attention gives zero, and the layer is that of a plain decoder (up to the bias of a
projection). The order of the chunks has no effect, unless positions are added when they are encoded.

Cost of a layer with a feed-forward of 4 E: B (28 S E^2 + 4 N C E^2 + 4 S^2 E + 4 S N C E) floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.layers import FeedForward, PreNormDecoderLayer
from attnport.models.blocks.model import BATCH, PADDING, build, length, model_spec
from attnport.models.blocks.multi_head import MultiHeadAttention
from attnport.models.blocks.positions import LearnedPositions


@dataclass(frozen=True)
class RetrievalConfig:
    """Sizes: `width` is E of the query stream and of the chunks, `positions` the longest S."""

    vocabulary: int = 1000
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    positions: int = 512
    norm_eps: float = 1e-5


def layer(config: RetrievalConfig) -> PreNormDecoderLayer:
    """Causal self-attention, cross-attention to the chunks and feed-forward."""
    return PreNormDecoderLayer(
        partial(nn.LayerNorm, config.width, eps=config.norm_eps),
        MultiHeadAttention(config.width, config.heads),
        MultiHeadAttention(config.width, config.heads),
        FeedForward(config.width, config.hidden),
    )


class RetrievalTransformer(nn.Module):
    """The decoder, without the retriever and the encoder of the chunks."""

    def __init__(self, config: RetrievalConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = LearnedPositions(config.positions, config.width)
        self.memory_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        chunks: torch.Tensor,
        chunk_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Reads token ids and the chunks that were retrieved for them.

        Args:
            input_ids: int64 [B, S], below the vocabulary's size.
            attention_mask: int64 [B, S], 1 for a real token and 0 for padding.
            chunks: Retrieved chunks, encoded, [B, N, C, E].
            chunk_mask: int64 [B, N], 1 for a chunk that was retrieved and 0 for an empty place.

        Returns:
            The query stream after the last norm, [B, S, E].
        """
        S = input_ids.shape[1]
        allowed_B1SS = masks.combine(masks.causal(S, S, device=input_ids.device), masks.padding(attention_mask))
        keep_BNC = chunk_mask.bool()[:, :, None].expand(-1, -1, chunks.shape[2])
        retrieved_B11T = masks.padding(keep_BNC.flatten(1))
        memory_BTE = self.memory_norm(chunks.flatten(1, 2))
        x_BSE = self.positions(self.tokens(input_ids))
        for part in self.layers:
            x_BSE = part(x_BSE, memory_BTE, allowed_B1SS, retrieved_B11T)
        y_BSE: torch.Tensor = self.norm(x_BSE)
        return y_BSE


def make(config: RetrievalConfig = RetrievalConfig(), seed: int = 0) -> RetrievalTransformer:
    """A decoder in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: RetrievalTransformer(config), seed)


def spec(config: RetrievalConfig = RetrievalConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a decoder of any size."""
    tokens = ("batch", "seq")
    io = IOContract(
        inputs=(
            TensorSpec("input_ids", "int64", tokens, high=config.vocabulary),
            TensorSpec("attention_mask", "int64", tokens, high=2),
            TensorSpec("chunks", "float32", ("batch", "chunks", "length", config.width)),
            TensorSpec("chunk_mask", "int64", ("batch", "chunks"), high=2),
        ),
        outputs=(TensorSpec("last_hidden_state", "float32", (*tokens, config.width)),),
        dims=(BATCH, length(limit=config.positions), Dim("chunks", 1, 4, 16), Dim("length", 1, 16, 32)),
        masks=(PADDING, MaskSpec(kinds=("padding",), input="chunk_mask")),
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
