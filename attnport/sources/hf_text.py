"""The inputs, ranges and masks of a transformers text model."""

from __future__ import annotations

from typing import Any

from attnport.dims import Dim, TensorSpec
from attnport.masks.spec import MaskSpec
from attnport.sources.hf_modules import TextModel

TOKENS = ("batch", "seq")
MAX_POSITIONS = 131072


def text_contract(
    config: Any, module: TextModel
) -> tuple[tuple[TensorSpec, ...], tuple[Dim, ...], tuple[MaskSpec, ...]]:
    """The inputs of a text model, the ranges of their dims, and its masks."""
    text = getattr(config, "text_config", config)
    longest = _longest(text)
    inputs = [
        TensorSpec("input_ids", "int64", TOKENS, high=text.vocab_size),
        TensorSpec("attention_mask", "int64", TOKENS, high=2),
    ]
    if module.takes_token_types:
        inputs.append(TensorSpec("token_type_ids", "int64", TOKENS, high=text.type_vocab_size))
    ranges = Dim("batch", 1, 8, 64), Dim("seq", 1, min(128, longest), longest)
    return tuple(inputs), ranges, (MaskSpec(("padding",), "attention_mask"),)


def _longest(config: Any) -> int:
    """The longest sequence for which a text model has positions."""
    longest = int(getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512)
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        longest -= int(config.pad_token_id) + 1  # positions start after that of padding
    return min(longest, MAX_POSITIONS)
