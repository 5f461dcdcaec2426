"""Encoder-decoders of transformers with their caches, as two models: the encoder gives the keys and values of
cross-attention, once, and the decoder takes them, with a cache of its own, at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import first_line
from attnport.masks import MaskSpec
from attnport.sources.declare import narrow_dims, observe_outputs
from attnport.sources.hf_modules import ENCODER_MASK, Kind, accepted, at_decoder, behind, encoder_output, reads_text
from attnport.sources.hf_past import KEY, VALUE, ends, keys_and_values, other, pairs_of, present, whole_tokens
from attnport.sources.hf_rules import known_tokens, rules_of

if TYPE_CHECKING:
    import torch

ENCODER = "encoder-with-past"
"""What the encoder is called among a model's parts."""
_CROSS_KEY, _CROSS_VALUE = "cross_key_{}", "cross_value_{}"
_WIDTH = "width"
"""The constant that says how many features a token of the encoder has."""
_IDS, _OWN_MASK, _MASK = "decoder_input_ids", "decoder_attention_mask", "attention_mask"


def has_cross(model: Any) -> bool:
    """Whether a model generates text from what its encoder gives, with a cache."""
    generates = bool(getattr(model, "can_generate", lambda: False)())
    needed = {"past_key_values", "encoder_outputs", _IDS}
    return generates and bool(getattr(model.config, "is_encoder_decoder", False)) and needed <= accepted(model)


def encoded(model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Each decoder layer's keys and values of what the encoder gives, `[batch, heads, seq, D]`.

    Where the encoder's own mask is of another length: also `encoder_attention_mask [batch,seq]`, which of these are no
    padding.

    The decoder runs on one token to make them. Nothing else of it is used, so that the exported graph leaves it out.
    """
    import torch

    out = model.get_encoder()(**tensors, **constants, return_dict=True)
    encoded = encoder_output(out.last_hidden_state, getattr(out, _MASK, None))
    ids_B1 = torch.zeros((encoded.last_hidden_state.shape[0], 1), dtype=torch.int64)
    given = {"decoder_input_ids": ids_B1, "use_cache": True}
    given |= {_MASK: tensors[_MASK]} if _MASK in tensors else {}
    seen: dict[str, Any] = {}
    with at_decoder(model, lambda own: seen.update(own) or own) if not reads_text(model) else nullcontext():
        cache = model(encoder_outputs=encoded, **given).past_key_values
    found: dict[str, torch.Tensor] = {}
    if _MASK in tensors and seen.get(ENCODER_MASK) is not None:
        found[ENCODER_MASK] = seen[ENCODER_MASK].to(torch.int64)
    for at, layer in enumerate(cache.cross_attention_cache.layers):
        found |= {_CROSS_KEY.format(at): layer.keys, _CROSS_VALUE.format(at): layer.values}
    return found


def stepped(model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The last token's logits `[batch, vocabulary]`, and each layer's keys and values `[batch, heads, past+seq, D]`.

    Args:
        tensors: `decoder_input_ids [batch,decoder_seq]`, `past_key_0 [batch,heads,past,D]`, ..., `cross_key_0
            [batch,heads,seq,D]`, ..., and where the decoder takes them, the masks of its own tokens,
            `decoder_attention_mask [batch,past+decoder_seq]`, and of the encoder's, `attention_mask [batch,seq]` or
            `encoder_attention_mask [batch,seq]`.
        constants: `width`.
    """
    cross = pairs_of(tensors, _CROSS_KEY, _CROSS_VALUE)
    hidden_BSD = cross[0][0].new_zeros((cross[0][0].shape[0], cross[0][0].shape[2], constants[_WIDTH]))
    cache = _cache(pairs_of(tensors, KEY, VALUE), cross)
    own = {_OWN_MASK: tensors[_OWN_MASK]} if _OWN_MASK in tensors else {}
    out = _decoded(model, hidden_BSD, tensors[_IDS], cache, tensors.get(_MASK, tensors.get(ENCODER_MASK)), **own)
    return {"logits": out.logits[:, -1], **present(cache.self_attention_cache)}


def _decoded(
    model: Any,
    hidden_BSD: torch.Tensor,
    ids_BS: torch.Tensor,
    cache: Any,
    mask_BS: torch.Tensor | None = None,
    **own: torch.Tensor,
) -> Any:
    """The decoder behind what an encoder gave; where the cache has its keys and values, only its sizes are read."""
    given = {"decoder_input_ids": ids_BS, "past_key_values": cache, "use_cache": True, **own}
    return behind(model, encoder_output(hidden_BSD), mask_BS, **given)


def _cache(own: Sequence[tuple[torch.Tensor, torch.Tensor]], cross: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Caches of both attentions, of which that of cross-attention is complete where it holds anything."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    cache: Any = EncoderDecoderCache(keys_and_values(own), DynamicCache())
    # Given in the constructor, its length would be compared with 0, which a graph for every length cannot do.
    cache.cross_attention_cache = keys_and_values(cross)
    cache.is_updated = dict.fromkeys(range(len(cross)), True)
    return cache


def cross_contract(place: str, kind: Kind, plain: IOContract, declared: Sequence[str]) -> IOContract:
    """The contract of a decoder behind its encoder's keys and values; sets the constants of `kind` that it needs.

    Args:
        plain: The contract of the decoder behind the encoder's hidden states, without a cache.
        declared: `--dim` declarations.

    Raises:
        SpecError: the model keeps something else than keys and values of every token.
        UsageError: a declared dim is unknown, or beyond the model's limit.
    """
    model: Any = kind.model
    specs = {spec.name: spec for spec in plain.inputs}
    ids, hidden = specs[_IDS], specs["encoder_hidden_states"]
    if ids.dims != ("batch", "decoder_seq"):
        raise other(place, model, f"it writes {ids}, and not one token after another")
    mask = _MASK if reads_text(model) else ENCODER_MASK
    source = hidden.dims[1]
    kind.constants[_WIDTH] = hidden.dims[2]
    own, cross = _sizes(place, model, source if isinstance(source, int) else 3, int(hidden.dims[2]))
    most = plain.dim("decoder_seq").max
    half = max(1, most // 2)  # every place of the largest cache and pass together has a position
    sizes = [dim for dim in plain.dims if dim.name != "decoder_seq"]
    sizes += [Dim("decoder_seq", 1, 1, half), Dim("past", 0, min(32, half), half)]
    inputs, masks = [ids], [MaskSpec(("causal",), alignment="lower_right")]
    for name, given, length in ((_OWN_MASK, _OWN_MASK, "past+decoder_seq"), (mask, ENCODER_MASK, source)):
        if given in specs:
            inputs.append(TensorSpec(name, "int64", ("batch", length), high=2))
            masks.append(MaskSpec(("padding",), name))
    for names, length, shapes in (((KEY, VALUE), "past", own), ((_CROSS_KEY, _CROSS_VALUE), source, cross)):
        for at, pair in enumerate(shapes):
            for name, (heads, width) in zip(names, pair, strict=True):
                inputs.append(TensorSpec(name.format(at), "float32", ("batch", heads, length, width)))
    dims = narrow_dims(tuple(sizes), declared)
    outputs = observe_outputs(kind.named, inputs, dims, f"hf:{place}")
    vocab = ids.high or 2
    generating = ends(model, vocab), _begins(model, vocab), rules_of(model, vocab)
    return IOContract(tuple(inputs), outputs, dims, tuple(masks), *generating, positions="absolute")


def _begins(model: Any, vocab: int) -> tuple[int, ...]:
    """The tokens that a text begins with, by what the model says of how it generates."""
    how = model.generation_config
    first = getattr(how, "decoder_start_token_id", None)
    if first is None:
        first = getattr(model.config, "decoder_start_token_id", None)
    if first is None:
        first = getattr(how, "bos_token_id", None)
    return known_tokens(first, vocab)


def _sizes(
    place: str, model: Any, source: int, width: int
) -> tuple[list[tuple[tuple[int, int], tuple[int, int]]], list[tuple[tuple[int, int], tuple[int, int]]]]:
    """By layer, the heads and widths of keys and of values: of the decoder's own tokens, and of the encoder's.

    Raises:
        SpecError: see `cross_contract`.
    """
    import torch
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
    try:
        with torch.no_grad():
            _decoded(model, torch.zeros(1, source, width), torch.zeros(1, 2, dtype=torch.int64), cache)
    except Exception as err:  # transformers raises whatever it likes where a cache is of another kind
        raise other(place, model, f"it does not take a cache of keys and values: {first_line(err)}") from err
    return (whole_tokens(place, model, cache.self_attention_cache, 2),
            whole_tokens(place, model, cache.cross_attention_cache, source))  # fmt: skip
