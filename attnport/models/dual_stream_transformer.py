"""Listening while speaking: a stream that is heard and a stream that is spoken, coordinated by cross-attention.

Nguyen et al., "Generative Spoken Dialogue Language Modeling" (dGSLM, 2022): two towers on one clock, each with causal
self-attention over its own past and causal cross-attention to the other's; with the heard stream of Ma et al.,
"Language Model Can Listen While Speaking" (2024): frames of an audio encoder beside the tokens that the model itself
has said. One layer, for the stream x and the other one z, both [B, T, E]; the streams have weights of their own:

    a = x + attention(norm(x), norm(x))                  what this stream did until now
    c = a + attention(norm(a), norm(z))                  what the other stream did until now
    y = c + W2 gelu(W1 norm(c))

Both streams read the previous layer, so that a layer's two halves can run in parallel. Step t of `spoken` is the token
that was said last, and nothing of step t + 1 reaches step t of either stream: the model can start or stop speaking
while it is spoken to.

Cost of a layer with a feed-forward of 4 E: 2 B (32 T E^2 + 8 T^2 E) floating-point operations for the two streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import TensorSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.layers import FeedForward, PreNormDecoderLayer
from attnport.models.blocks.model import BATCH, PADDING, build, length, model_spec
from attnport.models.blocks.multi_head import MultiHeadAttention
from attnport.models.blocks.positions import LearnedPositions


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


class Layer(nn.Module):
    """The halves of both streams; each reads the other stream as it was before the layer."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, config.width, eps=config.norm_eps)
        self.heard, self.spoken = (
            PreNormDecoderLayer(
                norm,
                MultiHeadAttention(config.width, config.heads),
                MultiHeadAttention(config.width, config.heads),
                FeedForward(config.width, config.hidden),
            )
            for _ in range(2)
        )
        # The norm of each stream for the attention of the other.
        self.heard_norm, self.spoken_norm = norm(), norm()

    def forward(
        self, heard_BTE: torch.Tensor, spoken_BTE: torch.Tensor, allowed_B1TT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps both streams, [B, T, E], to new ones; `allowed_B1TT` is the mask of all four attentions."""
        read_heard_BTE, read_spoken_BTE = self.heard_norm(heard_BTE), self.spoken_norm(spoken_BTE)
        return (
            self.heard(heard_BTE, read_spoken_BTE, allowed_B1TT, allowed_B1TT),
            self.spoken(spoken_BTE, read_heard_BTE, allowed_B1TT, allowed_B1TT),
        )


class DualStreamTransformer(nn.Module):
    """Maps the inputs of both streams to the scores of the next token to say, and the heard stream's activations."""

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
    io = IOContract(
        inputs=(
            TensorSpec("heard", "float32", (*steps, config.features)),
            TensorSpec("spoken", "int64", steps, high=config.vocabulary),
            TensorSpec("attention_mask", "int64", steps, high=2),
        ),
        outputs=(
            TensorSpec("next_spoken", "float32", (*steps, config.vocabulary)),
            TensorSpec("heard_state", "float32", (*steps, config.width)),
        ),
        dims=(BATCH, length(limit=config.positions)),
        masks=(PADDING,),
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
