"""Transformer-XL's attention: a memory of the previous segment, and positions relative to the query.

Dai, Yang, Yang, Carbonell, Le, Salakhutdinov, "Transformer-XL: Attentive Language Models beyond a Fixed-Length
Context" (2019), section 3. Queries are the S tokens of a segment x, keys and values the M tokens of the memory and then
these S; T = M + S. Query i is at the position of key i + M, and with R[d] the sinusoidal vector of distance d,

    score[i, j] = (q_i + u) . k_j + (q_i + v) . Wr R[i + M - j]        for j <= i + M
    y = Wo softmax(score / sqrt(D)) value

u and v are learned, one per head: the weight of a key's content, and of its distance, for every query. The products
with R are computed for all distances at once, [S, T], and each row is then shifted by its query's position: the
"relative shift" of appendix B.

Cost: 4 B S E^2 + 4 B T E^2 + 2 T E^2 + 6 B S T E floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import BATCH, build, model_spec, split_heads
from attnport.models.blocks.multi_head import ProjectedAttention
from attnport.models.blocks.positions import SinusoidalPositions


@dataclass(frozen=True)
class RecurrentMemoryConfig:
    """Sizes: `width` is E, `heads` is H; D = E / H."""

    width: int = 64
    heads: int = 4


class RecurrentMemoryAttention(ProjectedAttention):
    """Multi-head causal attention over a segment and the memory before it, with relative positions."""

    def __init__(self, config: RecurrentMemoryConfig) -> None:
        super().__init__(config.width, config.heads, bias=False)
        self.heads, depth = config.heads, config.width // config.heads
        self.scale = depth**-0.5
        self.distance = nn.Linear(config.width, config.width, bias=False)
        self.sinusoidal = SinusoidalPositions(config.width)
        self.content_bias = nn.Parameter(torch.randn(config.heads, 1, depth))
        self.position_bias = nn.Parameter(torch.randn(config.heads, 1, depth))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Attends from each token to those before it, in its segment and in the memory.

        Args:
            x: The segment, [B, S, E].
            memory: The activations of the previous segment at this layer, [B, M, E].

        Returns:
            [B, S, E].
        """
        context_BTE = torch.cat([memory, x], dim=1)
        q_BHSD, k_BHTD, v_BHTD = self.project(x, context_BTE)
        S, T = q_BHSD.shape[2], k_BHTD.shape[2]

        nearest_first_1TE = self.sinusoidal(torch.zeros_like(context_BTE[:1]))
        r_1HTD = split_heads(self.distance(nearest_first_1TE.flip(1)), self.heads)
        position_BHST = relative_shift((q_BHSD + self.position_bias) @ r_1HTD.transpose(-1, -2)) * self.scale
        allowed_11ST = masks.causal(S, T, "lower_right", x.device)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(
            q_BHSD + self.content_bias,
            k_BHTD,
            v_BHTD,
            attn_mask=position_BHST.masked_fill(~allowed_11ST, -torch.inf),
            scale=self.scale,
        )
        return self.merge(mixed_BHSD)


def relative_shift(x_BHST: torch.Tensor) -> torch.Tensor:
    """Moves row i to the left by S - 1 - i; what comes in on the right belongs to keys after the query.

    Column c of the argument has distance T - 1 - c. A column of zeros is put before the rows, and the numbers are then
    read as rows that are shorter by one: every row begins one number later than the row above it.
    """
    B, H, S, T = x_BHST.shape
    padded = nn.functional.pad(x_BHST, (1, 0)).reshape(B, H, T + 1, S)
    return padded[:, :, 1:].reshape(B, H, S, T)


def make(config: RecurrentMemoryConfig = RecurrentMemoryConfig(), seed: int = 0) -> RecurrentMemoryAttention:
    """A `RecurrentMemoryAttention` in float32 and eval mode, with random weights; a seed gives the same ones."""
    return build(lambda: RecurrentMemoryAttention(config), seed)


def spec(config: RecurrentMemoryConfig = RecurrentMemoryConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    x = ("batch", "seq", config.width)
    io = IOContract(
        inputs=(TensorSpec("x", "float32", x), TensorSpec("memory", "float32", ("batch", "mem", config.width))),
        outputs=(TensorSpec("y", "float32", x),),
        dims=(BATCH, Dim("seq", 1, 64, 256), Dim("mem", 1, 64, 256)),
        masks=(MaskSpec(("causal",), alignment="lower_right"),),
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
