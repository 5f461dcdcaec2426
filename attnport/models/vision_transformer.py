"""The Vision Transformer: an image as a class token and a sequence of patches.

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
from functools import partial

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import TensorSpec
from attnport.models.blocks.layers import FeedForward, PreNormLayer
from attnport.models.blocks.model import BATCH, build, model_spec
from attnport.models.blocks.multi_head import MultiHeadAttention
from attnport.models.blocks.positions import LearnedPositions


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


def layer(config: VisionConfig) -> PreNormLayer:
    """Self-attention and feed-forward."""
    return PreNormLayer(
        partial(nn.LayerNorm, config.width, eps=config.norm_eps),
        MultiHeadAttention(config.width, config.heads),
        FeedForward(config.width, config.hidden),
    )


class VisionTransformer(nn.Module):
    """The encoder with its classifier."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        tokens = (config.image // config.patch) ** 2 + 1
        self.patches = nn.Conv2d(config.channels, config.width, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.randn(config.width))
        self.positions = LearnedPositions(tokens, config.width)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.layers))
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
        for part in self.layers:
            x_BTE = part(x_BTE, None)
        logits_BC: torch.Tensor = self.classifier(self.norm(x_BTE)[:, 0])
        return logits_BC


def make(config: VisionConfig = VisionConfig(), seed: int = 0) -> VisionTransformer:
    """A `VisionTransformer` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: VisionTransformer(config), seed)


def spec(config: VisionConfig = VisionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of a Vision Transformer of any size; the table of positions fixes the image's."""
    io = IOContract(
        inputs=(TensorSpec("pixels", "float32", ("batch", config.channels, config.image, config.image)),),
        outputs=(TensorSpec("logits", "float32", ("batch", config.classes)),),
        dims=(BATCH,),
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
