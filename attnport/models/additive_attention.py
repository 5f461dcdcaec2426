"""Bahdanau's attention: each pair of a decoder state and an encoder state is scored by a small network.

Bahdanau, Cho, Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate" (2015), appendix A.1.2.
With decoder states s [B, S, E] and annotations h [B, T, E] of the source:

    score[i, j] = va . tanh(Wa s_i + Ua h_j)
    alpha = softmax(score + mask),   c = alpha h

A score is not a product of a query and a key, because of the tanh, and no attention kernel computes it. The hidden
vectors of all pairs, [B, S, T, A], are in memory at once. A state whose source is all padding gets the context zero.

Cost: 2 B (S + T) E A + 4 B S T A + 2 B S T E floating-point operations, of which B S T A are a tanh.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.dims import TensorSpec
from attnport.models.blocks.model import alignment_contract, build, model_spec


@dataclass(frozen=True)
class AdditiveConfig:
    """Sizes: `width` is E, `hidden` is A, the size of the network that scores."""

    width: int = 64
    hidden: int = 32


class AdditiveAttention(nn.Module):
    """Soft alignment of decoder states with the source, and the context that follows from it."""

    def __init__(self, config: AdditiveConfig) -> None:
        super().__init__()
        self.states = nn.Linear(config.width, config.hidden)
        self.annotations = nn.Linear(config.width, config.hidden, bias=False)
        self.score = nn.Linear(config.hidden, 1, bias=False)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Aligns decoder states with annotations.

        Args:
            x: Decoder states, [B, S, E].
            memory: Annotations, [B, T, E].
            memory_mask: int64 [B, T], 1 for a real word and 0 for padding, which may be anywhere.

        Returns:
            The contexts [B, S, E] and the weights [B, S, T].
        """
        hidden_BSTA = torch.tanh(self.states(x)[:, :, None] + self.annotations(memory)[:, None])
        hidden_B1T = memory_mask[:, None] == 0
        score_BST = self.score(hidden_BSTA).squeeze(-1).masked_fill(hidden_B1T, -torch.inf)
        weights_BST = score_BST.softmax(dim=-1).masked_fill(hidden_B1T, 0.0)  # a softmax without keys is NaN
        return weights_BST @ memory, weights_BST


def make(config: AdditiveConfig = AdditiveConfig(), seed: int = 0) -> AdditiveAttention:
    """An `AdditiveAttention` in float32 and eval mode with random weights; the same seed gives the same weights."""
    return build(lambda: AdditiveAttention(config), seed)


def spec(config: AdditiveConfig = AdditiveConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an attention of any size."""
    outputs = (
        TensorSpec("context", "float32", ("batch", "seq", config.width)),
        TensorSpec("weights", "float32", ("batch", "seq", "mem")),
    )
    io = alignment_contract(config.width, outputs, positions="none")
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
