"""The inputs, ranges and masks of a transformers text model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from attnport.dims import Dim, TensorSpec
from attnport.masks import MaskSpec
from attnport.sources.declare import narrow_dims
from attnport.sources.hf_attends import see, windows
from attnport.sources.hf_modules import TextModel
from attnport.sources.hf_tokenizer import TokenizerOf
from attnport.sources.parsing import parse_dims

TOKENS = ("batch", "seq")
MAX_POSITIONS = 131072
_LIMITS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "max_seq_length",
    "seq_length",
    "context_length",
    "n_ctx",
)
"""What configs call the longest sequence."""
_CODE_POINTS = 0x110000
"""The ids of a model without a vocabulary, which reads letters: CANINE."""
_UNLIMITED = 512
"""The longest sequence by default where nothing limits it: relative positions, or ALiBi."""


def text_contract(
    config: Any, module: TextModel, tokenizer: TokenizerOf, declared: Sequence[str]
) -> tuple[tuple[TensorSpec, ...], tuple[Dim, ...], tuple[MaskSpec, ...]]:
    """The inputs of a text model, the ranges of their dims, and its masks.

    Type ids are an input where the model's tokenizer makes them, and the model takes them; else the model runs with its
    own default.

    Args:
        config: The model's config.
        module: The model.
        tokenizer: The tokenizer beside its weights.
        declared: `--dim` declarations.

    Raises:
        UsageError: a declared dim is unknown, or beyond the model's limit.
    """
    text = getattr(config, "text_config", config)
    vocab = getattr(text, "vocab_size", None) or _words(module.model) or _CODE_POINTS
    seen = see(module.named, vocab, getattr(text, "pad_token_id", None))
    longest = _longest(text, seen.positions)
    inputs = [
        TensorSpec("input_ids", "int64", TOKENS, high=vocab),
        TensorSpec("attention_mask", "int64", TOKENS, high=2),
    ]
    masks = [MaskSpec(("padding",), "attention_mask")]  # of the input alone; a bundle makes it from lengths
    types = _types(text, module, tokenizer)
    if types:
        inputs.append(TensorSpec("token_type_ids", "int64", TOKENS, high=types))
    if module.pools_some:
        inputs.append(TensorSpec("pooled_mask", "int64", TOKENS, high=2))
        masks.append(MaskSpec(("padding",), "pooled_mask"))
    most = longest or MAX_POSITIONS
    ranges = narrow_dims((Dim("batch", 1, 8, 64), Dim("seq", 1, min(128, most), most)), declared)
    if longest is None and "seq" not in parse_dims(declared):
        ranges = (ranges[0], Dim("seq", 1, 128, _UNLIMITED))
    masks += [MaskSpec(("causal",))] if seen.causal else []
    return tuple(inputs), ranges, (*masks, *windows(seen, ranges[1].max))


def _words(model: Any) -> int:
    """The rows of a model's table of words, for one whose config has no vocabulary itself; 0 if there is no table."""
    try:
        return int(getattr(model.get_input_embeddings(), "num_embeddings", 0))
    except (NotImplementedError, AttributeError):
        return 0


def _types(config: Any, module: TextModel, tokenizer: TokenizerOf) -> int:
    """The number of token types, 0 where they are no input."""
    types = getattr(config, "type_vocab_size", None)
    takes = "token_type_ids" in inspect.signature(module.model.forward).parameters
    if not takes or types == 0 or "token_type_ids" not in tokenizer.makes:
        return 0
    # XLNet's types have no table; a tokenizer that makes them makes two. Of a tokenizer that is not there, only what
    # the config says is believed.
    return int(types or (2 if tokenizer.known else 0))


def _longest(config: Any, table: int | None) -> int | None:
    """The longest sequence of a model: what its config says, less where its table of positions has fewer to use.

    Positions of RoBERTa and the like start behind that of padding, so that the table has more rows than positions.
    """
    named = [getattr(config, name, None) for name in _LIMITS]
    said = next((each for each in named if isinstance(each, int) and not isinstance(each, bool) and each > 1), None)
    known = [each for each in (said, table) if each is not None]
    return min(*known, MAX_POSITIONS) if known else None
