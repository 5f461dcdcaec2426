"""Listening while speaking: a stream that is heard and a stream that is spoken, coordinated by cross-attention.

Nguyen et al., "Generative Spoken Dialogue Language Modeling" (dGSLM, 2022): two towers on one clock, each with causal
self-attention over its own past and causal cross-attention to the other's; with the heard stream of Ma et al.,
"Language Model Can Listen While Speaking" (2024): frames of an audio encoder beside the tokens that the model itself
has said. One layer, for the stream x and the other one z, both [B, T, E]; the streams have weights of their own:

    a = x + attention(norm(x), norm(x))                  what this stream did until now
    c = a + attention(norm(a), norm(z))                  what the other stream did until now
    y = c + W2 gelu(W1 norm(c))

Both streams read the layer before, so that a layer's two halves can run side by side. Step t of `spoken` is what was
said last, and nothing of step t + 1 reaches step t of either stream: it can start, or stop, while it is spoken to.

Cost of a layer with a feed-forward of 4 E: 2 B (32 T E^2 + 8 T^2 E) floating-point operations for the two streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.masks import torch_builders as masks
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.feed_forward import FeedForward
from attnport.models.blocks.multi_head import MultiHeadAttention
from attnport.models.blocks.positions import LearnedPositions
from attnport.models.blocks.weights import build


@dataclass(frozen=True)
class DualStreamConfig:
    """Sizes: `features` of a heard frame, `vocabulary` of the spoken tokens, `positions` the longest T."""

    features: int = 32
    vocabulary: int = 500
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    positions: int = 512
    norm_eps: float = 1e-5


class StreamLayer(nn.Module):
    """One stream's half of a layer: attention to itself, to the other stream, and feed-forward (pre-norm)."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = MultiHeadAttention(config.width, config.heads)
        self.cross_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.other_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.cross_attention = MultiHeadAttention(config.width, config.heads)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config.width, config.hidden)

    def forward(self, x_BTE: torch.Tensor, other_BTE: torch.Tensor, allowed_B1TT: torch.Tensor) -> torch.Tensor:
        """Maps this stream, [B, T, E], to [B, T, E]; `allowed_B1TT` holds for both attentions: one clock."""
        normed_BTE = self.attention_norm(x_BTE)
        x_BTE = x_BTE + self.attention(normed_BTE, normed_BTE, allowed_B1TT)
        x_BTE = x_BTE + self.cross_attention(self.cross_norm(x_BTE), self.other_norm(other_BTE), allowed_B1TT)
        y_BTE: torch.Tensor = x_BTE + self.feed_forward(self.feed_forward_norm(x_BTE))
        return y_BTE


class Layer(nn.Module):
    """Both streams' halves; each reads the other as it was before the layer."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.heard = StreamLayer(config)
        self.spoken = StreamLayer(config)

    def forward(
        self, heard_BTE: torch.Tensor, spoken_BTE: torch.Tensor, allowed_B1TT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps both streams to both streams."""
        return self.heard(heard_BTE, spoken_BTE, allowed_B1TT), self.spoken(spoken_BTE, heard_BTE, allowed_B1TT)


class DualStreamTransformer(nn.Module):
    """Both streams from their inputs to the scores of what to say next, and the heard stream's activations."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.frames = nn.Linear(config.features, config.width)
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = LearnedPositions(config.positions, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.heard_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.spoken_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary)

    def forward(
        self, heard: torch.Tensor, spoken: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Listens and speaks.

        Args:
            heard: Frames of the input stream, [B, T, F].
            spoken: int64 [B, T], the token of the output stream that was said before each step.
            attention_mask: int64 [B, T], 1 for a real step and 0 for padding; the streams share one clock.

        Returns:
            The scores of the next token to say, [B, T, V], and the heard stream's activations, [B, T, E].
        """
        T = spoken.shape[1]
        allowed_B1TT = masks.combine(masks.causal(T, T, device=spoken.device), masks.padding(attention_mask))
        heard_BTE, spoken_BTE = self.positions(self.frames(heard)), self.positions(self.tokens(spoken))
        for layer in self.layers:
            heard_BTE, spoken_BTE = layer(heard_BTE, spoken_BTE, allowed_B1TT)
        return self.head(self.spoken_norm(spoken_BTE)), self.heard_norm(heard_BTE)


def make(config: DualStreamConfig = DualStreamConfig(), seed: int = 0) -> DualStreamTransformer:
    """A model in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: DualStreamTransformer(config), seed)


def spec(config: DualStreamConfig = DualStreamConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a model of any size."""
    steps = ("batch", "seq")
    return ModelSpec(
        name="dual_stream_transformer",
        source=Source(text="dual_stream_transformer"),
        io=IOContract(
            inputs=(
                TensorSpec("heard", "float32", (*steps, config.features)),
                TensorSpec("spoken", "int64", steps, high=config.vocabulary),
                TensorSpec("attention_mask", "int64", steps, high=2),
            ),
            outputs=(
                TensorSpec("next_spoken", "float32", (*steps, config.vocabulary)),
                TensorSpec("heard_state", "float32", (*steps, config.width)),
            ),
            dims=(Dim("batch", 1, 8, 32), Dim("seq", 1, min(128, config.positions), config.positions)),
            masks=(MaskSpec(kinds=("padding",), input="attention_mask"),),
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
