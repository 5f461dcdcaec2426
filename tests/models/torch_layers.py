"""torch's own transformer layers with the weights of our parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def attention_weights(ours: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """A `ProjectedAttention`'s, under the names of `nn.MultiheadAttention`."""
    parts = (ours.project.query, ours.project.key, ours.project.value)
    return {
        f"{prefix}in_proj_weight": torch.cat([part.weight for part in parts]),
        f"{prefix}in_proj_bias": torch.cat([part.bias for part in parts]),
        f"{prefix}out_proj.weight": ours.out.weight,
        f"{prefix}out_proj.bias": ours.out.bias,
    }


def leaf_weights(**parts: Any) -> dict[str, torch.Tensor]:
    """Weight and bias of norms and projections, under torch's names."""
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}


def encoder_layer(
    attention: Any, norms: list[Any], feed_forward: Any, sizes: dict[str, int], **options: Any
) -> nn.Module:
    """`nn.TransformerEncoderLayer` in float64 and eval mode; every weight is set."""
    layer = nn.TransformerEncoderLayer(sizes["width"], sizes["heads"], sizes["hidden"], batch_first=True, **options)
    weights = attention_weights(attention, "self_attn.") | leaf_weights(
        norm1=norms[0], norm2=norms[1], linear1=feed_forward.up, linear2=feed_forward.down
    )
    layer.load_state_dict(weights, strict=True)
    return layer.double().eval()


def decoder_layer(
    attentions: list[Any], norms: list[Any], feed_forward: Any, sizes: dict[str, int], **options: Any
) -> nn.Module:
    """`nn.TransformerDecoderLayer` in float64 and eval mode; every weight is set."""
    layer = nn.TransformerDecoderLayer(sizes["width"], sizes["heads"], sizes["hidden"], batch_first=True, **options)
    weights = attention_weights(attentions[0], "self_attn.") | attention_weights(attentions[1], "multihead_attn.")
    weights |= leaf_weights(
        norm1=norms[0], norm2=norms[1], norm3=norms[2], linear1=feed_forward.up, linear2=feed_forward.down
    )
    layer.load_state_dict(weights, strict=True)
    return layer.double().eval()


def later(S: int) -> torch.Tensor:
    """True where torch's layers shall hide a key: behind the query."""
    return torch.ones(S, S, dtype=torch.bool).triu(1)
