"""Switch Transformer: T5's encoder in which a router sends every token to one of several feed-forward experts.

Fedus, Zoph, Shazeer, "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient Sparsity"
(2022). For a token x, after the norm, with N experts f_n:

    p = softmax(Wr x)                                    [N]
    y = p[m] f_m(x)                                      m = argmax p

Every second layer has experts, as in the paper (section 2.4); the others have one feed-forward. Here every expert runs
on every token, and the outputs that were not chosen are replaced by zero. The sizes then depend only on the sizes of
the inputs, as a graph for any batch and sequence requires, and no expert has a capacity beyond which tokens are
dropped. The experts cost N times as much as needed.

A token whose two best experts are nearly equal may go to the other one in another precision, which visibly changes its
output. The model itself is discontinuous there, and a checkpoint with such tokens can fail a comparison in half
precision. The probabilities choose and scale, but enter no matrix product: they are not an attention.

Cost of a layer with experts of 4 E: B (8 T E^2 + 4 T^2 E + 16 N T E^2 + 2 N T E) floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from attnport.artifacts import ModelSpec
from attnport.masks import torch_builders as masks
from attnport.models.blocks.layers import PreNormLayer, ReluFeedForward, RMSNorm
from attnport.models.blocks.model import build, model_spec, token_contract
from attnport.models.blocks.positions import RelativePositions
from attnport.models.blocks.t5_attention import T5Attention, scale_queries


@dataclass(frozen=True)
class SwitchConfig:
    """Sizes: `experts` is N, `every` the distance of layers with experts, `depth` is D; the rest as in T5."""

    vocabulary: int = 1000
    width: int = 64
    heads: int = 4
    depth: int = 16
    layers: int = 2
    hidden: int = 128
    experts: int = 4
    every: int = 2
    buckets: int = 32
    max_distance: int = 128
    norm_eps: float = 1e-6


class SwitchFeedForward(nn.Module):
    """A router and its experts: each token's output is that of its best expert, times the router's probability.

    Args:
        width: Model dim E.
        hidden: Size between an expert's projections.
        experts: N.
    """

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(ReluFeedForward(width, hidden, bias=False) for _ in range(experts))

    def forward(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, E] to [B, T, E], each token by itself."""
        gate_BT1, chosen_BT1 = self.router(x_BTE).softmax(-1).max(dim=-1, keepdim=True)
        found_BTE = torch.zeros_like(x_BTE)
        for number, expert in enumerate(self.experts):
            found_BTE = torch.where(chosen_BT1 == number, expert(x_BTE), found_BTE)
        y_BTE: torch.Tensor = gate_BT1 * found_BTE
        return y_BTE


def layer(config: SwitchConfig, sparse: bool) -> PreNormLayer:
    """Self-attention and feed-forward, of experts or of one."""
    feed_forward = (
        SwitchFeedForward(config.width, config.hidden, config.experts)
        if sparse
        else ReluFeedForward(config.width, config.hidden, bias=False)
    )
    attention = T5Attention(config.width, config.heads, config.depth)
    return PreNormLayer(partial(RMSNorm, config.width, config.norm_eps), attention, feed_forward)


class SwitchTransformer(nn.Module):
    """The encoder."""

    def __init__(self, config: SwitchConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = RelativePositions(config.heads, config.buckets, config.max_distance)
        self.layers = nn.ModuleList(
            layer(config, sparse=number % config.every == config.every - 1) for number in range(config.layers)
        )
        self.norm = RMSNorm(config.width, config.norm_eps)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Encodes token ids.

        Args:
            input_ids: int64 [B, T], below the vocabulary's size.
            attention_mask: int64 [B, T], 1 for a real token and 0 for padding.

        Returns:
            The activations after the last norm, [B, T, E].
        """
        T = input_ids.shape[1]
        x_BTE = self.tokens(input_ids)
        bias_BHTT = self.positions(T, T) + masks.additive(masks.padding(attention_mask), x_BTE.dtype)
        for part in self.layers:
            x_BTE = part(x_BTE, bias_BHTT)
        y_BTE: torch.Tensor = self.norm(x_BTE)
        return y_BTE


def lean_towards_experts(module: SwitchTransformer, lean: float) -> SwitchTransformer:
    """Adds to the embedding of token id i `lean` times the router's row of expert i mod N, in place; returns `module`.

    Trained routers recognise most tokens by their embedding. With random ones, one token in a thousand is so close to a
    tie that a half-precision rounding decides, and a comparison of two precisions says nothing about the graph.
    """
    ids_V = torch.arange(module.tokens.num_embeddings)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, SwitchFeedForward):
                rows_NE = part.router.weight
                module.tokens.weight.add_(lean * rows_NE[ids_V % len(rows_NE)])
    return module


def make(config: SwitchConfig = SwitchConfig(), seed: int = 0) -> SwitchTransformer:
    """A `SwitchTransformer` in float32 and eval mode with random weights; the same seed gives the same weights.

    The router prefers the expert that a token's embedding leans towards, so that few tokens are near a tie.
    """
    return lean_towards_experts(scale_queries(build(lambda: SwitchTransformer(config), seed)), lean=10.0)


def spec(config: SwitchConfig = SwitchConfig(), seed: int = 0) -> ModelSpec:
    """The ModelSpec of an encoder of any size."""
    io = token_contract({"input_ids": config.vocabulary, "attention_mask": 2}, config.width)
    return model_spec(__name__, io, lambda: make(config, seed))


SPEC = spec()
