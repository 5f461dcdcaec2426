"""Self-attention from one projection, with a bias of relative positions, an additive mask and, if wanted, its weights.

One product with [Wq Wk Wv] instead of three reads x once (Shoeybi et al., "Megatron-LM", 2019). The bias is that of
Liu et al., "Swin Transformer" (2021), equation 4: a learned number a head and offset, here of one axis and clipped at
L, as Shaw et al. (2018) clip. On x [B, T, E]:

    y = Wo concat_h w_h v_h        [q k v] = x Wqkv
    w_h = softmax(q_h k_h^T / sqrt(D) + b_h[clip(j - i, -L, L)] + m[b, j])

Cost: 8 B T E^2 + 4 B T^2 E floating-point operations. Weights that are returned take B H T^2 numbers of memory. A
kernel for the whole attention never writes them, so they have to be computed separately.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import IOContract, ModelSpec
from attnport.dims import TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import BATCH, build, length, merge_heads, model_spec, split_heads


@dataclass(frozen=True)
class FusedQkvAttentionConfig:
    """Sizes: `width` is E, `heads` is H, `reach` is L; `weights`: the weights are a second output."""

    width: int = 64
    heads: int = 4
    reach: int = 16
    weights: bool = False


class FusedQkvAttention(nn.Module):
    """One projection, attention with a bias and an additive mask, output projection."""

    def __init__(self, config: FusedQkvAttentionConfig) -> None:
        super().__init__()
        self.heads, self.reach, self.weights = config.heads, config.reach, config.weights
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.bias = nn.Embedding(2 * config.reach + 1, config.heads)
        self.out = nn.Linear(config.width, config.width)
        self.scale = (config.width // config.heads) ** -0.5

    def position_bias(self, T: int, device: torch.device) -> torch.Tensor:
        """The bias of each head, query and key, [1, H, T, T]."""
        i_T1, j_1T = masks.positions(T, T, device=device)
        bias_TTH: torch.Tensor = self.bias((j_1T - i_T1).clamp(-self.reach, self.reach) + self.reach)
        return bias_TTH.permute(2, 0, 1)[None]

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attends from every token to those that the mask allows.

        Args:
            x: [B, T, E].
            mask: [B, 1, 1, T], added to the scores: 0 for a real token and -inf for padding.

        Returns:
            [B, T, E]; with `weights`, also the weights, [B, H, T, T]. Rows of an item without any real token are zero.
        """
        q_BHTD, k_BHTD, v_BHTD = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        added_BHTT = self.position_bias(x.shape[1], x.device) + mask
        if not self.weights:
            mixed_BHTD = nn.functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, attn_mask=added_BHTT)
            y_BTE: torch.Tensor = self.out(merge_heads(mixed_BHTD))
            return y_BTE
        scores_BHTT = q_BHTD @ k_BHTD.transpose(-2, -1) * self.scale + added_BHTT
        # A softmax over -inf alone is NaN; a row with no key attends to nothing.
        weights_BHTT = scores_BHTT.softmax(dim=-1).nan_to_num(0.0)
        return self.out(merge_heads(weights_BHTT @ v_BHTD)), weights_BHTT


def make(config: FusedQkvAttentionConfig = FusedQkvAttentionConfig(), seed: int = 0) -> FusedQkvAttention:
    """The module in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: FusedQkvAttention(config), seed)


def spec(config: FusedQkvAttentionConfig = FusedQkvAttentionConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    outputs = [TensorSpec("y", "float32", ("batch", "seq", config.width))]
    if config.weights:
        outputs.append(TensorSpec("weights", "float32", ("batch", config.heads, "seq", "seq")))
    io = IOContract(
        inputs=(
            TensorSpec("x", "float32", ("batch", "seq", config.width)),
            TensorSpec("mask", "float32", ("batch", 1, 1, "seq")),
        ),
        outputs=tuple(outputs),
        dims=(BATCH, length()),
        masks=(MaskSpec(("padding",), "mask", polarity="additive"),),
        positions="none",  # padding on the left changes all positions, but no distance
    )
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
