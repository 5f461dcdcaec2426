"""Decoders of transformers with their cache: new tokens and a cache in, the last token's logits and a longer cache out.

One graph serves a prompt (no cache, many tokens) and a step (a cache, one token), so the two share their weights. A
model that keeps something else than keys and values has states, too.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnport.artifacts import IOContract, Window
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, first_line
from attnport.masks import MaskSpec
from attnport.sources.declare import narrow_dims, observe_outputs
from attnport.sources.hf.contract import text_contract
from attnport.sources.hf.files import TokenizerOf
from attnport.sources.hf.modules import (
    CACHE_ARGUMENTS,
    CROSS_KEY,
    CROSS_VALUE,
    DECODER_IDS,
    DECODER_MASK,
    ENCODER_MASK,
    KEY,
    MEMORY,
    POSITIONS,
    VALUE,
    WIDTH,
    WINDOW_MASK,
    Kept,
    Kind,
    Memory,
    NoMemory,
    Path,
    TextModel,
    accepted,
    cached,
    decoded,
    reads_text,
    remembering,
    tensors_in,
)
from attnport_bundle.format.decoder import Rules

if TYPE_CHECKING:
    pass


KEPT = "kept"
"""The dim of the places that layers with a window keep, beside layers that keep all."""


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
        named.append(Dim(KEPT, 0, min(128, windows.places), old))
        lengths = [KEPT if slides else "past" for slides in windows.layers]
        inputs.append(TensorSpec(WINDOW_MASK, "int64", ("batch", f"{KEPT}+seq"), high=2))
        behind.append(MaskSpec(("padding",), WINDOW_MASK))
        window = Window(KEPT, windows.places)
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
    cut = {**given, WINDOW_MASK: mask_BT[:, 1:]}
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
    ids, hidden = specs[DECODER_IDS], specs["encoder_hidden_states"]
    if ids.dims != ("batch", "decoder_seq"):
        raise other(place, model, f"it writes {ids}, and not one token after another")
    mask = "attention_mask" if reads_text(model) else ENCODER_MASK
    source = hidden.dims[1]
    kind.constants[WIDTH] = hidden.dims[2]
    own, cross = _cross_sizes(place, model, source if isinstance(source, int) else 3, int(hidden.dims[2]))
    most = plain.dim("decoder_seq").max
    half = max(1, most // 2)  # every place of the largest cache and pass together has a position
    sizes = [dim for dim in plain.dims if dim.name != "decoder_seq"]
    sizes += [Dim("decoder_seq", 1, 1, half), Dim("past", 0, min(32, half), half)]
    inputs, masks = [ids], [MaskSpec(("causal",), alignment="lower_right")]
    for name, given, length in ((DECODER_MASK, DECODER_MASK, "past+decoder_seq"), (mask, ENCODER_MASK, source)):
        if given in specs:
            inputs.append(TensorSpec(name, "int64", ("batch", length), high=2))
            masks.append(MaskSpec(("padding",), name))
    for names, length, shapes in (((KEY, VALUE), "past", own), ((CROSS_KEY, CROSS_VALUE), source, cross)):
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


def _cross_sizes(
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
            decoded(model, torch.zeros(1, source, width), torch.zeros(1, 2, dtype=torch.int64), cache)
    except Exception as err:  # transformers raises whatever it likes where a cache is of another kind
        raise other(place, model, f"it does not take a cache of keys and values: {first_line(err)}") from err
    return (whole_tokens(place, model, cache.self_attention_cache, 2),
            whole_tokens(place, model, cache.cross_attention_cache, source))  # fmt: skip


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


_NEAR = 1e-3
"""How far scores may be from those of one pass, in standard deviations of them: less than any fault makes."""


def inputs_of(
    ids: TensorSpec, memory: Memory, masks: Sequence[MaskSpec], longest: int, *, masked: bool
) -> tuple[list[TensorSpec], tuple[Dim, ...], list[MaskSpec]]:
    """The inputs, dims and masks of a model that keeps more than keys and values.

    Args:
        ids: The tokens of a text.
        masks: Those of a pass over whole texts.
        longest: The most tokens of a text.
        masked: Whether texts may be padded.
    """
    new = 1 if memory.has_states else "seq"
    dims = [Dim("batch", 1, 1, 64)]
    half = longest if memory.has_states else max(1, longest // 2)
    dims += [] if memory.has_states else [Dim("seq", 1, 1, half)]
    dims += [Dim("past", 0, min(128, half), max(1, half - memory.has_states))] if memory.past else []
    inputs = [dataclasses.replace(ids, dims=("batch", new))]
    behind = [dataclasses.replace(mask, alignment="lower_right") for mask in masks if not mask.input and memory.past]
    if masked:
        inputs.append(TensorSpec("attention_mask", "int64", ("batch", f"past+{new}" if memory.past else new), high=2))
        behind += [mask for mask in masks if mask.input]
    return [*inputs, *(one.spec() for one in memory.kept)], tuple(dims), behind


def takes_padding(model: Any, memory: Memory, vocab: int) -> bool:
    """Whether texts may be padded at the left, by running two of them as they are generated.

    Raises:
        NoMemory: without padding, too, a pass over all tokens gives something else; or the model needs more than was
            found of what it keeps.
    """
    import torch

    ids_BS, begins = (torch.arange(12).reshape(2, 6) * 5 + 3) % vocab, (0, 2)
    mask_BS = torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    steps = range(6) if memory.has_states else (2, 3, 4, 5)
    with torch.no_grad():
        wanted = [model(input_ids=row[None, begin:], use_cache=False).logits[0, -1]
                  for row, begin in zip(ids_BS, begins, strict=True)]  # fmt: skip
        kept, start = memory.empty(2), 0
        for step in steps:
            whole = {
                "input_ids": ids_BS[:, start : step + 1],
                "attention_mask": mask_BS[:, (0 if memory.past else start) : step + 1],
            }
            try:
                found = remembering(model, {**whole, **kept}, {MEMORY: memory})
            except Exception as err:  # transformers raises whatever it likes where a cache lacks something
                raise NoMemory(f"it does not go on with what its cache was found to hold: {first_line(err)}") from err
            kept = {name: found[name.replace("past_", "present_", 1)] for name in kept}
            start = step + 1
    far = [float((got - one).abs().max() / one.std()) for got, one in zip(found["logits"], wanted, strict=True)]
    if not far[0] <= _NEAR:
        raise NoMemory(f"token by token it gives other scores than in one pass, by {far[0]:.0e} of their spread")
    return far[1] <= _NEAR


_NAMES = {"keys": "key", "values": "value", "conv_states": "conv", "recurrent_states": "recurrent"}
_BATCH, _TOKENS = 5, 6
"""The sizes of the runs, of which no other size should be one by chance."""


def memory_of(model: Any, vocab: int) -> Memory:
    """Finds out what a model keeps, from two runs of it, one of them with one token more.

    Raises:
        NoMemory: it keeps nothing, or something that grows in another way.
    """
    argument = next((name for name in CACHE_ARGUMENTS if name in accepted(model)), None)
    if argument is None:
        raise NoMemory("it does not take what it keeps")
    try:
        begin = _unbounded(_run(model, argument, vocab, 1, None), model)
        short, long = (_run(model, argument, vocab, tokens, copy.deepcopy(begin)) for tokens in (_TOKENS, _TOKENS + 1))
    except Exception as err:  # transformers raises whatever it likes where a cache is of another kind
        raise NoMemory(f"it does not run with a cache: {first_line(err)}") from err
    longer, kept, count = dict(tensors_in(long, ())), list[Kept](), dict[str, int]()
    for path, tensor in tensors_in(short, ()):
        if tensor.shape[:1] != (_BATCH,):
            continue  # a constant
        axis = _length(path, tuple(tensor.shape), tuple(longer[path].shape) if path in longer else ())
        attribute = next((part for part in reversed(path) if isinstance(part, str)), argument)
        base = _NAMES.get(attribute, attribute.strip("_"))
        number = count.setdefault(base, 0)
        count[base] += 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        kept.append(Kept(path, f"{base}_{number}", axis, tuple(tensor.shape), dtype))
    if not kept:
        raise NoMemory("it keeps nothing between tokens")
    return Memory(argument, short, tuple(kept))


def _length(path: Path, shape: tuple[int, ...], longer: tuple[int, ...]) -> int | None:
    """The axis that grows with a token; None of a state. Raises NoMemory for another size."""
    if shape == longer:
        return None
    changed = [at for at, (one, other) in enumerate(zip(shape, longer, strict=False)) if one != other]
    if len(shape) == len(longer) and len(changed) == 1 and (shape[changed[0]], longer[changed[0]]) == (
        _TOKENS, _TOKENS + 1,
    ):  # fmt: skip
        return changed[0]
    what = ".".join(map(str, path))
    raise NoMemory(f"{what} in its cache is {list(shape)} of {_TOKENS} tokens and {list(longer)} of one more")


def _run(model: Any, argument: str, vocab: int, tokens: int, given: Any) -> Any:
    """What a model keeps after a run."""
    import torch

    ids_BS = (torch.arange(_BATCH * tokens).reshape(_BATCH, tokens) + 1) % vocab
    with torch.no_grad():
        out = model(input_ids=ids_BS, use_cache=True, **({} if given is None else {argument: given}))
    return out.get(argument, given)


def _unbounded(made: Any, model: Any) -> Any:
    """An empty cache whose layers keep also the tokens that a window hides; None where a model makes its own."""
    from transformers import cache_utils as kinds

    if type(made) is not kinds.DynamicCache:
        return None
    every: Any = kinds  # its constructors have no types
    cache = every.DynamicCache(config=model.config)
    for at, layer in enumerate(cache.layers):
        # A model's own subclass of one of these layers may hold more than the layer that would replace it.
        if type(layer) is every.LinearAttentionAndSlidingWindowAttentionLayer:
            cache.layers[at] = every.LinearAttentionAndFullAttentionLayer(number_of_states=layer.number_of_states)
        elif type(layer) is every.DynamicSlidingWindowLayer:
            cache.layers[at] = every.DynamicLayer()
    return cache


def rules_of(model: Any, vocab: int) -> Rules:
    """The rules of a model's generation config, with transformers' own values where it has none."""
    how = model.generation_config

    def said(name: str, otherwise: Any) -> Any:
        found = getattr(how, name, None)
        return otherwise if found is None else found

    tokens = {
        ours: known_tokens(said(theirs, ()), vocab)
        for ours, theirs in (
            ("suppress", "suppress_tokens"),
            ("suppress_first", "begin_suppress_tokens"),
            ("forced_first", "forced_bos_token_id"),
            ("forced_last", "forced_eos_token_id"),
        )
    }
    words = [known_tokens(word, vocab) for word in said("bad_words_ids", ())]
    least = said("min_new_tokens", None)
    return Rules(
        **tokens,
        bad_words=tuple(word for word, given in zip(words, said("bad_words_ids", ()), strict=True)
                        if word and len(word) == len(given)),
        min_length=int(said("min_length", 0)) if least is None else 0,
        min_tokens=int(least or 0),
        repetition_penalty=float(said("repetition_penalty", 1.0)),
        no_repeat_ngram=int(said("no_repeat_ngram_size", 0)),
        beams=int(said("num_beams", 1)),
        length_penalty=float(said("length_penalty", 1.0)),
        early_stopping=said("early_stopping", False) is True,
        renormalize=said("renormalize_logits", False) is True,
    )  # fmt: skip


def known_tokens(given: Any, vocab: int) -> tuple[int, ...]:
    """One token id or several, without those that are none of the vocabulary's."""
    every = given if isinstance(given, list | tuple) else [given]
    return tuple(token for token in every if isinstance(token, int) and 0 <= token < vocab)
