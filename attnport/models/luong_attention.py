"""Luong's attentions: a decoder state attends to the whole source, or to a window of it.

Luong, Pham, Manning, "Effective Approaches to Attention-based Neural Machine Translation" (2015), section 3, with the
"general" score. With decoder states h [B, S, E] and encoder states e [B, T, E]:

    global     a = softmax(h W e^T + mask)
    local-m    the same over the 2 R + 1 source positions around t: alignment is taken to be monotonic
    local-p    over those around p = length sigmoid(vp . tanh(Wp h)), and then a exp(-(j - p)^2 / (2 sigma^2))
    state      tanh(Wc [a e; h])

with sigma = R / 2. Scores are not scaled, and there is one head. In local-p the Gaussian multiplies the weights after
the softmax, so that rows do not sum to one. A row with no key (padding only, or a target position far after the end of
the source) has the context zero.

Cost: 2 B S E^2 + 4 B S T E + 4 B S E^2 floating-point operations each, local ones written over all T with a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.dims import TensorSpec
from attnport.masks import MaskSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.model import SOURCE_PADDING, alignment_contract, build, model_spec


@dataclass(frozen=True)
class LuongConfig:
    """Sizes: `width` is E, `radius` is R, how far a local attention looks to either side (the paper's D, 10)."""

    width: int = 64
    radius: int = 10


class GlobalAttention(nn.Module):
    """Attends to all that a mask allows, with the general score."""

    def __init__(self, config: LuongConfig) -> None:
        super().__init__()
        self.score = nn.Linear(config.width, config.width, bias=False)
        self.state = nn.Linear(2 * config.width, config.width, bias=False)

    def forward(self, h_BSE: torch.Tensor, e_BTE: torch.Tensor, allowed_B1ST: torch.Tensor) -> torch.Tensor:
        """Gives the attentional states [B, S, E]."""
        q_B1SE, e_B1TE = self.score(h_BSE)[:, None], e_BTE[:, None]
        context_B1SE = nn.functional.scaled_dot_product_attention(
            q_B1SE, e_B1TE, e_B1TE, attn_mask=allowed_B1ST, scale=1.0
        )
        return torch.tanh(self.state(torch.cat([context_B1SE.squeeze(1), h_BSE], dim=-1)))


class PredictiveAttention(nn.Module):
    """Predicts where to look, and attends to a window around it (local-p)."""

    def __init__(self, config: LuongConfig) -> None:
        super().__init__()
        self.radius = config.radius
        self.score = nn.Linear(config.width, config.width, bias=False)
        self.state = nn.Linear(2 * config.width, config.width, bias=False)
        self.position = nn.Linear(config.width, config.width, bias=False)
        self.position_score = nn.Linear(config.width, 1, bias=False)

    def forward(self, h_BSE: torch.Tensor, e_BTE: torch.Tensor, keep_BT: torch.Tensor) -> torch.Tensor:
        """Gives the attentional states [B, S, E]."""
        share_BS1 = torch.sigmoid(self.position_score(torch.tanh(self.position(h_BSE))))
        center_BS1 = keep_BT.sum(dim=1)[:, None, None] * share_BS1
        distance_BST = torch.arange(e_BTE.shape[1], device=e_BTE.device) - center_BS1
        allowed_BST = (distance_BST.abs() <= self.radius) & keep_BT[:, None]

        score_BST = self.score(h_BSE) @ e_BTE.transpose(1, 2)
        weights_BST = score_BST.masked_fill(~allowed_BST, -torch.inf).softmax(dim=-1).masked_fill(~allowed_BST, 0.0)
        near_BST = torch.exp(-distance_BST.square() / (2 * (self.radius / 2) ** 2))
        context_BSE = (weights_BST * near_BST) @ e_BTE
        return torch.tanh(self.state(torch.cat([context_BSE, h_BSE], dim=-1)))


class LuongAttention(nn.Module):
    """The three attentions side by side, each with its own weights."""

    def __init__(self, config: LuongConfig) -> None:
        super().__init__()
        self.radius = config.radius
        self.all = GlobalAttention(config)
        self.monotonic = GlobalAttention(config)
        self.predictive = PredictiveAttention(config)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Attends from decoder states to the source.

        Args:
            x: Decoder states, [B, S, E].
            memory: Encoder states, [B, T, E].
            memory_mask: int64 [B, T], 1 for a real word and 0 for padding.

        Returns:
            The attentional states of global, local-m and local-p attention, each [B, S, E].
        """
        keep_B11T = masks.padding(memory_mask)
        window_11ST = masks.window(x.shape[1], memory.shape[1], self.radius, device=x.device)
        return (
            self.all(x, memory, keep_B11T),
            self.monotonic(x, memory, masks.combine(keep_B11T, window_11ST)),
            self.predictive(x, memory, keep_B11T[:, 0, 0]),
        )


def make(config: LuongConfig = LuongConfig(), seed: int = 0) -> LuongAttention:
    """A `LuongAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: LuongAttention(config), seed)


def spec(config: LuongConfig = LuongConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of the attentions of any size."""
    outputs = tuple(
        TensorSpec(name, "float32", ("batch", "seq", config.width))
        for name in ("global_state", "monotonic_state", "predictive_state")
    )
    masks = (SOURCE_PADDING, MaskSpec(("window",), window=config.radius))
    io = alignment_contract(config.width, outputs, masks=masks)
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
