"""Layers of transformers' decoders with a sliding window, whose caches need not hold what no new token can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MASK, DIM = "window_mask", "kept"
"""The input that says which of the places that such layers keep are real, and the dim of what they keep, beside layers
that keep all."""


@dataclass(frozen=True)
class Windows:
    """Which layers keep the last places alone.

    Attributes:
        layers: By layer, whether it does.
        places: So many places before a new token may be seen.
    """

    layers: tuple[bool, ...]
    places: int

    @property
    def everywhere(self) -> bool:
        """Whether no layer keeps all."""
        return all(self.layers)


def windows_of(model: Any, layers: int) -> Windows | None:
    """The windows by which transformers cuts a model's cache; None if it cuts no layer's.

    Args:
        layers: How many layers have a cache.
    """
    from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

    config = model.config.get_text_config(decoder=True)
    made: Any = DynamicCache(config=model.config)
    sliding = [type(layer) is DynamicSlidingWindowLayer for layer in made.layers]
    # transformers uses the same class for layers that see a chunk, whose places cannot be dropped by their age.
    if len(sliding) != layers or getattr(config, "attention_chunk_size", None) is not None:
        return None
    sizes = {layer.sliding_window for layer, slides in zip(made.layers, sliding, strict=True) if slides}
    places = sizes.pop() - 1 if len(sizes) == 1 else 0
    return Windows(tuple(sliding), places) if places > 0 else None


def two_masks(
    model: Any, layers: Sequence[bool], cache: Any, ids_BS: torch.Tensor, mask_BT: torch.Tensor, near_BK: torch.Tensor
) -> dict[str, Any]:
    """The masks of attentions to all tokens and to a window, as transformers' own models take them.

    Args:
        layers: Which have the window.
        cache: Keys and values by layer.
        mask_BT: Which tokens are real, `[batch, past+seq]`.
        near_BK: Which are among the last places and the new ones, `[batch, kept+seq]`.
    """
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    # Of what stands for the tokens' features, only the sizes and the type are read.
    given = {"config": model.config.get_text_config(decoder=True), "past_key_values": cache,
             "inputs_embeds": cache.layers[0].keys.new_empty((*ids_BS.shape, 0))}  # fmt: skip
    return {
        "full_attention": create_causal_mask(
            attention_mask=mask_BT, layer_idx=layers.index(False), allow_is_causal_skip=False, **given
        ),
        "sliding_attention": create_sliding_window_causal_mask(
            attention_mask=near_BK, layer_idx=layers.index(True), allow_is_causal_skip=False, **given
        ),
    }
