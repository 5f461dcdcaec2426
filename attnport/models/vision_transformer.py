"""The Vision Transformer: an image as a sequence of patches behind a class token.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (2020). An image of
N = (image / patch)^2 patches becomes T = N + 1 tokens: z = [class; Wp patch_1; ...; Wp patch_N] + positions. Pre-norm
layers, on z [B, T, E]:

    a = z + Wo softmax(q k^T / sqrt(D)) v        q, k, v = projections of norm(z)
    y = a + W2 gelu(W1 norm(a))

and logits = W norm(y[0]). Nothing is masked.

Cost of a layer with a feed-forward of 4 E: 24 B T E^2 + 4 B T^2 E floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.models.blocks.attention_parts import merge_heads, split_heads
from attnport.models.blocks.feed_forward import FeedForward
from attnport.models.blocks.positions import LearnedPositions
from attnport.models.blocks.weights import build


@dataclass(frozen=True)
class VisionConfig:
    """Sizes: `width` is E, `heads` is H; `image` and `patch` are the sides of squares, in pixels."""

    image: int = 32
    patch: int = 8
    channels: int = 3
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    classes: int = 10
    norm_eps: float = 1e-6


class SelfAttention(nn.Module):
    """Multi-head self-attention without a mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        q_BHTD, k_BHTD, v_BHTD = (split_heads(part(x_BTE), self.heads) for part in (self.query, self.key, self.value))
        mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD)
        y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD))
        return y_BTE


class Layer(nn.Module):
    """Attention and feed-forward, each on the norm of its input and added to it (pre-norm)."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention = SelfAttention(config.width, config.heads)
        self.feed_forward_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.feed_forward = FeedForward(config.width, config.hidden)

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E]."""
        x_BTE = x_BTE + self.attention(self.attention_norm(x_BTE))
        y_BTE: torch.Tensor = x_BTE + self.feed_forward(self.feed_forward_norm(x_BTE))
        return y_BTE


class VisionTransformer(nn.Module):
    """The encoder with its classifier."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        tokens = (config.image // config.patch) ** 2 + 1
        self.patches = nn.Conv2d(config.channels, config.width, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.randn(config.width))
        self.positions = LearnedPositions(tokens, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.classifier = nn.Linear(config.width, config.classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classifies images.

        Args:
            pixels: [B, channels, image, image].

        Returns:
            Logits [B, classes].
        """
        patches_BNE = self.patches(pixels).flatten(2).transpose(1, 2)
        class_B1E = self.class_token.expand(patches_BNE.shape[0], 1, -1)
        x_BTE = self.positions(torch.cat([class_B1E, patches_BNE], dim=1))
        for layer in self.layers:
            x_BTE = layer(x_BTE)
        logits_BC: torch.Tensor = self.classifier(self.norm(x_BTE)[:, 0])
        return logits_BC


def make(config: VisionConfig = VisionConfig(), seed: int = 0) -> VisionTransformer:
    """A `VisionTransformer` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: VisionTransformer(config), seed)


def spec(config: VisionConfig = VisionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a Vision Transformer of any size; the table of positions fixes the image's."""
    return ModelSpec(
        name="vision_transformer",
        source=Source(text="vision_transformer"),
        io=IOContract(
            inputs=(TensorSpec("pixels", "float32", ("batch", config.channels, config.image, config.image)),),
            outputs=(TensorSpec("logits", "float32", ("batch", config.classes)),),
            dims=(Dim("batch", 1, 8, 32),),
        ),
        make=lambda: make(config, seed),
    )


SPEC = spec()
