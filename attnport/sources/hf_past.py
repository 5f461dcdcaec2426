"""Decoders of transformers with their cache: new tokens and a cache in, the last token's logits and a longer cache out.

One graph serves a prompt (no cache, many tokens) and a step (a cache, one token), so the two share their weights. What
keeps something else than keys and values is in `hf_steps`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from attnport.artifacts import IOContract, Window
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, first_line
from attnport.masks import MaskSpec
from attnport.sources.declare import narrow_dims, observe_outputs
from attnport.sources.hf_memory import ARGUMENTS, NoMemory, memory_of
from attnport.sources.hf_modules import Kind, TextModel, accepted
from attnport.sources.hf_rules import known_tokens, rules_of
from attnport.sources.hf_steps import MEMORY, POSITIONS, inputs_of, positions, remembering, takes_padding
from attnport.sources.hf_text import text_contract
from attnport.sources.hf_tokenizer import TokenizerOf
from attnport.sources.hf_windows import DIM as WINDOW
from attnport.sources.hf_windows import MASK, Windows, two_masks, windows_of

if TYPE_CHECKING:
    import torch

PART = "with-past"
"""What the part of a model is called."""
KEY, VALUE = "past_key_{}", "past_value_{}"


def has_past(model: Any) -> bool:
    """Whether a model generates text from text alone, with a cache."""
    generates = bool(getattr(model, "can_generate", lambda: False)())
    takes = accepted(model)
    return generates and not model.config.is_encoder_decoder and "input_ids" in takes and bool(takes & {*ARGUMENTS})


def cached(model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The last token's logits `[batch, vocabulary]`, and each layer's keys and values `[batch, heads, past+seq, D]`.

    Args:
        tensors: `input_ids [batch,seq]`, `attention_mask [batch,past+seq]` unless padding moves the positions, and
            `past_key_0 [batch,heads,past,D]`, ... Where some layers have a window, their caches have `kept` in place of
            `past`, and there is `window_mask [batch,kept+seq]`. Where all have one: `position_ids [batch,seq]`.
        constants: `positions`, where a table has so many; `windows`, by layer, where there is a `window_mask`;
            `MEMORY`, where it is something else that is kept.
    """
    if MEMORY in constants:
        return remembering(model, tensors, constants)
    ids_BS, mask_BT = tensors["input_ids"], tensors.get("attention_mask")
    pairs = pairs_of(tensors, KEY, VALUE)
    masks = cast("Any", mask_BT)
    layers: Sequence[bool] = constants.get("windows", (False,))
    given: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted(model) else {}
    if POSITIONS in tensors:
        given[POSITIONS] = tensors[POSITIONS]
    else:
        given |= positions(model, mask_BT, pairs[layers.index(False)][0].shape[2], constants)
    cache = keys_and_values(pairs)
    if MASK in tensors and mask_BT is not None:
        masks = two_masks(model, layers, cache, ids_BS, mask_BT, tensors[MASK])
    out = model(input_ids=ids_BS, attention_mask=masks, past_key_values=cache, use_cache=True, **given)
    return {"logits": out.logits[:, -1], **present(cache)}


def pairs_of(tensors: Mapping[str, torch.Tensor], key: str, value: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The keys and values of each layer, by the patterns of their names."""
    count = sum(name.startswith(key.format("")) for name in tensors)
    return [(tensors[key.format(at)], tensors[value.format(at)]) for at in range(count)]


def present(cache: Any) -> dict[str, torch.Tensor]:
    """A cache's keys and values, as a graph gives them."""
    found: dict[str, torch.Tensor] = {}
    for at, layer in enumerate(cache.layers):
        found |= {f"present_key_{at}": layer.keys, f"present_value_{at}": layer.values}
    return found


def keys_and_values(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """A cache that holds these keys and values, of which any number may be 0."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache, kind = DynamicCache(), cast("Any", DynamicLayer)  # whose constructor has no types
    for keys, values in pairs:
        layer = kind()
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def past_contract(place: str, kind: Kind, config: Any, tokenizer: TokenizerOf, declared: Sequence[str]) -> IOContract:
    """The contract of a decoder with its cache; sets the constants of `kind` that it needs.

    Args:
        declared: `--dim` declarations.

    Raises:
        SpecError: the model keeps something else than keys and values of every token, or is not causal.
        UsageError: a declared dim is unknown, or beyond the model's limit.
    """
    model: Any = kind.model
    text, ranges, masks = text_contract(config, TextModel(model), tokenizer, ())
    if not any("causal" in mask.kinds for mask in masks):
        raise other(place, model, "its tokens attend to what comes behind them, so that none can be kept in a cache")
    ids = next(spec for spec in text if spec.name == "input_ids")
    most = ranges[1].max
    stop, rules = ends(model, ids.high or 2), rules_of(model, ids.high or 2)
    try:
        sizes = _sizes(place, model, ids.high or 2)
    except SpecError:
        inputs, dims, behind = _remembered(place, kind, ids, masks, most)
        dims = narrow_dims(dims, declared)
        outputs = observe_outputs(kind.named, inputs, dims, f"hf:{place}")
        return IOContract(tuple(inputs), outputs, dims, tuple(behind), stop, rules=rules, positions="absolute")
    masked = not _padding_matters(model, sizes)
    limited = POSITIONS not in accepted(model) or not masked
    windows = None
    if not limited:
        kind.constants["positions"] = most
        windows = _windows(model, sizes, most)
    # A model that counts positions itself has to find one for every place of the largest cache and pass together.
    new, old = (max(1, most // 2),) * 2 if limited else (most, max(1, most - 1))
    named = [Dim("batch", 1, 1, 64), Dim("seq", 1, 1, new), Dim("past", 0, min(128, old), old)]
    inputs, behind = [ids], [dataclasses.replace(mask, alignment="lower_right") for mask in masks if not mask.input]
    if masked:
        inputs.append(TensorSpec("attention_mask", "int64", ("batch", "past+seq"), high=2))
        behind += [mask for mask in masks if mask.input]
    lengths, window = ["past"] * len(sizes), None
    if windows and windows.everywhere:
        inputs.append(TensorSpec(POSITIONS, "int64", ("batch", "seq"), high=most))
        window = Window("past", windows.places, POSITIONS)
    elif windows:
        kind.constants["windows"] = windows.layers
        named.append(Dim(WINDOW, 0, min(128, windows.places), old))
        lengths = [WINDOW if slides else "past" for slides in windows.layers]
        inputs.append(TensorSpec(MASK, "int64", ("batch", f"{WINDOW}+seq"), high=2))
        behind.append(MaskSpec(("padding",), MASK))
        window = Window(WINDOW, windows.places)
    dims = narrow_dims(tuple(named), declared)
    for at, ((key, value), length) in enumerate(zip(sizes, lengths, strict=True)):
        inputs.append(TensorSpec(KEY.format(at), "float32", ("batch", key[0], length, key[1])))
        inputs.append(TensorSpec(VALUE.format(at), "float32", ("batch", value[0], length, value[1])))
    outputs = observe_outputs(kind.named, inputs, dims, f"hf:{place}")
    return IOContract(
        tuple(inputs), outputs, dims, tuple(behind), stop, rules=rules, window=window, positions="absolute"
    )


def _windows(model: Any, sizes: Sequence[tuple[tuple[int, int], tuple[int, int]]], most: int) -> Windows | None:
    """The windows of a model whose layers may keep the last places alone; None where all are to keep all.

    A model may have made its masks or positions of what the first layer keeps, or take no masks that are made for it.
    That is seen where a place that is padding is kept by no layer with a window.

    Args:
        most: The longest text.
    """
    import torch

    windows = windows_of(model, len(sizes))
    if windows is None or windows.places >= most - 1:
        return None
    ids_BS, mask_BT = torch.tensor([[0, 1]]), torch.tensor([[0, 1, 1, 1, 1]])
    given = {"input_ids": ids_BS, "attention_mask": mask_BT}
    draw = torch.Generator().manual_seed(0)
    for at, pair in enumerate(sizes):
        for name, (heads, width) in zip((KEY, VALUE), pair, strict=True):
            given[name.format(at)] = torch.randn(1, heads, 3, width, generator=draw)
    cut = {**given, MASK: mask_BT[:, 1:]}
    if windows.everywhere:
        cut = {**given, "attention_mask": mask_BT[:, 1:], POSITIONS: torch.tensor([[2, 3]])}
    for at, slides in enumerate(windows.layers):
        for name in (KEY.format(at), VALUE.format(at)):
            cut[name] = given[name][:, :, 1:] if slides else given[name]
    with torch.no_grad():
        whole = cached(model, given, {})["logits"]
        try:
            found = cached(model, cut, {"windows": windows.layers})["logits"]
        except Exception:  # transformers raises whatever it likes where masks are of another kind
            return None
    return windows if bool((found - whole).abs().max() <= 1e-3 * whole.std()) else None


def _remembered(
    place: str, kind: Kind, ids: TensorSpec, masks: Sequence[MaskSpec], longest: int
) -> tuple[list[TensorSpec], tuple[Dim, ...], list[MaskSpec]]:
    """The inputs, dims and masks of a model that keeps something else than keys and values; sets its constants."""
    model: Any = kind.model
    try:
        memory = memory_of(model, ids.high or 2)
        masked = takes_padding(model, memory, ids.high or 2)
    except NoMemory as err:
        raise other(place, model, str(err)) from err
    kind.constants[MEMORY] = memory
    if POSITIONS in accepted(model) and masked:
        kind.constants["positions"] = longest
    return inputs_of(ids, memory, masks, longest, masked=masked)


def _padding_matters(model: Any, sizes: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> bool:
    """Whether padding at the left changes what follows, in a prompt or in the step behind it.

    A model may count it as positions, even where it is masked, or take its place in the cache for something else.
    """
    import torch

    empty = {}
    for at, pair in enumerate(sizes):
        for name, (heads, width) in zip((KEY, VALUE), pair, strict=True):
            empty[name.format(at)] = torch.zeros(1, heads, 0, width)
    found = []
    for begin in (0, 1):
        ids_BS, mask_BT = torch.tensor([[0, 1, 2]])[:, begin:], torch.tensor([[0, 1, 1, 1]])[:, begin:]
        with torch.no_grad():
            prompt = cached(model, {"input_ids": ids_BS, "attention_mask": mask_BT[:, :-1], **empty}, {})
            past = {name: prompt[name.replace("past", "present")] for name in empty}
            step = cached(model, {"input_ids": ids_BS[:, -2:-1], "attention_mask": mask_BT, **past}, {})
        found.append(torch.cat([prompt["logits"], step["logits"]]))
    padded, alone = found
    return bool((padded - alone).abs().max() > 1e-3 * alone.std())


def ends(model: Any, vocab: int) -> tuple[int, ...]:
    """The tokens behind which a text ends, by what the model says of how it generates."""
    return known_tokens(getattr(model.generation_config, "eos_token_id", None), vocab)


def _sizes(place: str, model: Any, vocab: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """By layer, the heads and widths of keys and of values.

    Raises:
        SpecError: see `past_contract`.
    """
    import torch
    from transformers.cache_utils import DynamicCache

    ids_BS = torch.arange(3)[None] % vocab
    cache: Any = DynamicCache()
    try:
        with torch.no_grad():
            model(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), past_key_values=cache, use_cache=True)
    except Exception as err:  # transformers raises whatever it likes where a cache is of another kind
        raise other(place, model, f"it does not take a cache of keys and values: {first_line(err)}") from err
    return whole_tokens(place, model, cache, 3)


def whole_tokens(place: str, model: Any, cache: Any, tokens: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """By layer, the heads and widths of keys and of values, in the cache of one text of so many tokens.

    Raises:
        SpecError: it holds something else.
    """
    shapes = [[tuple(getattr(getattr(layer, name, None), "shape", ())) for name in ("keys", "values")]
              for layer in cache.layers]  # fmt: skip
    if not shapes or any(shape[:1] + shape[2:3] != (1, tokens) for pair in shapes for shape in pair):
        raise other(place, model, "its cache does not hold keys and values of every token")
    return [((key[1], key[3]), (value[1], value[3])) for key, value in shapes]


def other(place: str, model: Any, why: str) -> SpecError:
    """The error of a model that cannot be exported with its cache."""
    return SpecError(
        f"hf:{place}: {type(model).__name__} does not go with --with-past: {why}",
        hint="Leave --with-past out: the whole sequence is computed in one pass.",
    )
