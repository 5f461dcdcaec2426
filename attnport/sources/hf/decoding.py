"""Decoders of transformers with their cache: new tokens and a cache in, the last token's logits and a longer cache out.

One graph serves a prompt (no cache, many tokens) and a step (a cache, one token), so the two share their weights. A
model that keeps something else than keys and values has states, too.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from attnport.artifacts import Dim, IOContract, MaskSpec, TensorSpec, Window
from attnport.errors import SpecError, first_line
from attnport.patches import Patch, patched
from attnport.sources.declare import narrow_dims, observe_outputs
from attnport.sources.hf.contract import Subject, text_inputs
from attnport.sources.hf.files import TokenizerOf
from attnport.sources.hf.modules import (
    CACHE_ARGUMENTS,
    CROSS,
    DECODER_IDS,
    DECODER_MASK,
    ENCODER_MASK,
    OWN,
    POSITIONS,
    WINDOW_MASK,
    Call,
    HubModel,
    Kept,
    Memory,
    Path,
    Run,
    UnknownCache,
    accepted,
    decode_behind,
    reads_text,
    run_behind_caches,
    run_whole,
    run_with_cache,
    run_with_memory,
    tensors_in,
)
from attnport_bundle.format.decoder import Rules

Sizes = list[tuple[tuple[int, int], tuple[int, int]]]
"""By layer, the heads and widths of keys and of values."""
KEPT = "kept"
"""The dim of the places that layers with a window keep, beside layers that keep all."""


def past_contract(
    subject: Subject, config: Any, tokenizer: TokenizerOf, declared: Sequence[str]
) -> tuple[Call, IOContract]:
    """How a decoder is run with its cache, and its contract.

    Raises:
        SpecError: what the model keeps cannot be given to it, or it is not causal.
        UsageError: a declared dim is unknown, or beyond the model's limit.
    """
    place, model = subject.place, subject.model
    text, ranges, masks = text_inputs(config, HubModel(model, run_whole), tokenizer, ())
    if not any("causal" in mask.kinds for mask in masks):
        raise _refusal(place, model, "its tokens attend to what comes behind them, so that none can be kept in a cache")
    ids = next(spec for spec in text if spec.name == "input_ids")
    vocab, most = ids.high or 2, ranges[1].max
    generating = {"stop": _ends(model, vocab), "rules": rules_of(model, vocab)}
    behind = [dataclasses.replace(mask, alignment="lower_right") for mask in masks if not mask.input]
    padding = [mask for mask in masks if mask.input]
    try:
        sizes = _sizes(place, model, vocab)
    except SpecError:
        return _remembering(subject, ids, [*behind, *padding], ranges[1], declared, generating)
    masked = not _padding_matters(model, sizes)
    # As GPT-Neo's: a table of which place sees which has none behind its last one.
    has_table = any(buffer.shape[-2:] == (most, most) for buffer in model.buffers())
    limited = POSITIONS not in accepted(model) or not masked or has_table
    run = subject.run if limited else partial(subject.run, most=most)
    windows = None if limited else _windows(model, sizes, most)
    new, old = _shared(most) if limited else (most, max(1, most - 1))
    dims, inputs = [Dim("batch", 1, 1, 64), Dim("seq", 1, 1, new), Dim("past", 0, min(128, old), old)], [ids]
    if masked:
        inputs.append(TensorSpec("attention_mask", "int64", ("batch", "past+seq"), high=2))
        behind += padding
    lengths, window = ["past"] * len(sizes), None
    if windows and windows.everywhere:
        inputs.append(TensorSpec(POSITIONS, "int64", ("batch", "seq"), high=most))
        window = Window("past", windows.places, POSITIONS)
    elif windows:
        run = partial(run, windows=windows.layers)
        dims.append(Dim(KEPT, 0, min(128, windows.places), old))
        lengths = [KEPT if slides else "past" for slides in windows.layers]
        inputs.append(TensorSpec(WINDOW_MASK, "int64", ("batch", f"{KEPT}+seq"), high=2))
        behind.append(MaskSpec(("padding",), WINDOW_MASK))
        window = Window(KEPT, windows.places)
    inputs += _caches(OWN, sizes, lengths)
    return _contract(subject, run, inputs, narrow_dims(tuple(dims), declared), behind, window=window, **generating)


def _shared(most: int) -> tuple[int, int]:
    """The most new tokens of a pass and the most places of a cache, where there is a position for so many together.

    A longer prompt is read in pieces, so that the cache gets nearly all.
    """
    new = max(1, most // 8)
    return new, max(1, most - new)


def _contract(
    subject: Subject,
    run: Run,
    inputs: Sequence[TensorSpec],
    dims: tuple[Dim, ...],
    masks: Sequence[MaskSpec],
    **further: Any,
) -> tuple[Call, IOContract]:
    """How a model is run, and its contract with the outputs of a run; `further` is what else a contract says."""
    outputs = observe_outputs(HubModel(subject.model, run).named, inputs, dims, f"hf:{subject.place}")
    contract = IOContract(tuple(inputs), outputs, dims, tuple(masks), positions="absolute", **further)
    return Call(run, tuple(spec.name for spec in inputs)), contract


def _caches(names: tuple[str, str], sizes: Sizes, lengths: Sequence[str | int]) -> list[TensorSpec]:
    """The inputs for keys and values, layer by layer.

    Args:
        lengths: By layer, the dim of its tokens.
    """
    return [
        TensorSpec(name.format(at), "float32", ("batch", heads, length, width))
        for at, (pair, length) in enumerate(zip(sizes, lengths, strict=True))
        for name, (heads, width) in zip(names, pair, strict=True)
    ]


_SHORT = 3
"""A window with which a cache of four places is already longer than a new token sees."""


def _windows(model: Any, sizes: Sizes, most: int) -> Windows | None:
    """The windows of a model whose layers may keep the last places alone; None where all are to keep all.

    None, too, if the model makes its masks or positions of the cache of the first layer, ignores masks that it is
    given, or has a window in its config that it does not apply: then its logits change where the layers with a window
    lack a place before it.
    """
    windows = _windows_of(model, len(sizes))
    if windows is None or windows.places >= most - 1:
        return None
    ids_BS, mask_BT = torch.tensor([[0, 1]]), torch.ones(1, 6, dtype=torch.int64)
    given = {"input_ids": ids_BS, "attention_mask": mask_BT}
    draw = torch.Generator().manual_seed(0)
    for at, pair in enumerate(sizes):
        for name, (heads, width) in zip(OWN, pair, strict=True):
            given[name.format(at)] = torch.randn(1, heads, 4, width, generator=draw)
    cut = {**given, WINDOW_MASK: mask_BT[:, 1:]}
    if windows.everywhere:
        cut = {**given, "attention_mask": mask_BT[:, 1:], POSITIONS: torch.tensor([[4, 5]])}
    for at, slides in enumerate(windows.layers):
        for name in (each.format(at) for each in OWN):
            cut[name] = given[name][:, :, 1:] if slides else given[name]
    config = model.config.get_text_config(decoder=True)
    with torch.no_grad(), patched(lambda: (Patch(config, "sliding_window", _SHORT),)):
        try:
            wanted = run_with_cache(model, given)["logits"]
            found = run_with_cache(model, cut, windows=windows.layers)["logits"]
        except Exception:  # transformers raises whatever it likes where masks are of another kind
            return None
    return windows if bool((found - wanted).abs().max() <= 1e-3 * wanted.std()) else None


def _remembering(
    subject: Subject,
    ids: TensorSpec,
    masks: Sequence[MaskSpec],
    texts: Dim,
    declared: Sequence[str],
    generating: Mapping[str, Any],
) -> tuple[Call, IOContract]:
    """How a model is run that keeps something else than keys and values, and its contract.

    Args:
        masks: Its masks over what it keeps and new tokens.
        texts: The range of a text's tokens.
        generating: What its contract says of how it generates.
    """
    model = subject.model
    try:
        memory = _memory_of(model, ids.high or 2)
        masked = _takes_padding(model, memory, ids.high or 2)
    except UnknownCache as err:
        raise _refusal(subject.place, model, str(err)) from err
    run = partial(run_with_memory, memory=memory)
    if POSITIONS in accepted(model) and masked:
        run = partial(run, most=texts.max)
    new = 1 if memory.has_states else "seq"
    pass_, old = (1, max(1, texts.max - 1)) if memory.has_states else _shared(texts.max)
    dims = [Dim("batch", 1, 1, 64)]
    dims += [] if memory.has_states else [Dim("seq", 1, 1, pass_)]
    dims += [Dim("past", 0, min(128, old), old)] if memory.past else []
    inputs = [dataclasses.replace(ids, dims=("batch", new))]
    behind = [mask for mask in masks if not mask.input and memory.past]
    if masked:
        length = f"past+{new}" if memory.past else new
        inputs.append(TensorSpec("attention_mask", "int64", ("batch", length), high=2))
        behind += [mask for mask in masks if mask.input]
    inputs += [kept.spec() for kept in memory.kept]
    return _contract(subject, run, inputs, narrow_dims(tuple(dims), declared), behind, **generating)


def _padding_matters(model: Any, sizes: Sizes) -> bool:
    """Whether padding at the left changes what follows, in a prompt or in the step behind it.

    A model may count it as positions, even where it is masked, or take its place in the cache for something else.
    """
    empty = {}
    for at, pair in enumerate(sizes):
        for name, (heads, width) in zip(OWN, pair, strict=True):
            empty[name.format(at)] = torch.zeros(1, heads, 0, width)
    found = []
    for begin in (0, 1):
        ids_BS, mask_BT = torch.tensor([[0, 1, 2]])[:, begin:], torch.tensor([[0, 1, 1, 1]])[:, begin:]
        with torch.no_grad():
            prompt = run_with_cache(model, {"input_ids": ids_BS, "attention_mask": mask_BT[:, :-1], **empty})
            past = {name: prompt[name.replace("past", "present")] for name in empty}
            step = run_with_cache(model, {"input_ids": ids_BS[:, -2:-1], "attention_mask": mask_BT, **past})
        found.append(torch.cat([prompt["logits"], step["logits"]]))
    padded, alone = found
    return bool((padded - alone).abs().max() > 1e-3 * alone.std())


def _ends(model: Any, vocab: int) -> tuple[int, ...]:
    """The tokens behind which a text ends, by what the model says of how it generates."""
    return known_tokens(getattr(model.generation_config, "eos_token_id", None), vocab)


def _sizes(place: str, model: Any, vocab: int) -> Sizes:
    """The sizes of keys and values of a decoder alone; raises SpecError where it keeps something else."""
    from transformers.cache_utils import DynamicCache

    ids_BS = torch.arange(3)[None] % vocab
    cache: Any = DynamicCache()
    given = {"attention_mask": torch.ones_like(ids_BS), "past_key_values": cache, "use_cache": True}
    _fill(place, model, lambda: model(input_ids=ids_BS, **given))
    return _key_value_sizes(place, model, cache, 3)


def _cross_sizes(place: str, model: Any, source: int, width: int) -> tuple[Sizes, Sizes]:
    """The sizes of keys and values of a decoder's own tokens and of its encoder's; raises as `_sizes` does."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
    hidden_BSD, ids_BS = torch.zeros(1, source, width), torch.zeros(1, 2, dtype=torch.int64)
    _fill(place, model, lambda: decode_behind(model, hidden_BSD, ids_BS, cache))
    own, cross = cache.self_attention_cache, cache.cross_attention_cache
    return _key_value_sizes(place, model, own, 2), _key_value_sizes(place, model, cross, source)


def _fill(place: str, model: Any, run: Callable[[], Any]) -> None:
    """Runs a model that writes into a cache; raises SpecError if it does not take it."""
    try:
        with torch.no_grad():
            run()
    except Exception as err:  # transformers raises whatever it likes where a cache is of another kind
        raise _refusal(place, model, f"it does not take a cache of keys and values: {first_line(err)}") from err


def _key_value_sizes(place: str, model: Any, cache: Any, tokens: int) -> Sizes:
    """The sizes of a cache of one text of so many tokens; raises SpecError if it holds other than keys and values."""
    shapes = [[tuple(getattr(getattr(layer, name, None), "shape", ())) for name in ("keys", "values")]
              for layer in cache.layers]  # fmt: skip
    if not shapes or any(shape[:1] + shape[2:3] != (1, tokens) for pair in shapes for shape in pair):
        raise _refusal(place, model, "its cache does not hold keys and values of every token")
    return [((key[1], key[3]), (value[1], value[3])) for key, value in shapes]


def _refusal(place: str, model: Any, why: str) -> SpecError:
    """The error of a model that cannot be exported with its cache."""
    return SpecError(
        f"hf:{place}: {type(model).__name__} does not go with --with-past: {why}",
        hint="Leave --with-past out: the whole sequence is computed in one pass.",
    )


def cross_contract(subject: Subject, plain: IOContract, declared: Sequence[str]) -> tuple[Call, IOContract]:
    """How a decoder is run behind its encoder's keys and values, and its contract.

    Args:
        plain: The contract of the decoder behind the encoder's hidden states, without a cache.

    Raises:
        SpecError: the model keeps something else than keys and values of every token.
        UsageError: a declared dim is unknown, or beyond the model's limit.
    """
    place, model = subject.place, subject.model
    specs = {spec.name: spec for spec in plain.inputs}
    ids, hidden = specs[DECODER_IDS], specs["encoder_hidden_states"]
    if ids.dims != ("batch", "decoder_seq"):
        raise _refusal(place, model, f"it writes {ids}, and not one token after another")
    mask = "attention_mask" if reads_text(model) else ENCODER_MASK
    source, width = hidden.dims[1], int(hidden.dims[2])
    own, cross = _cross_sizes(place, model, source if isinstance(source, int) else 3, width)
    most = plain.dim("decoder_seq").max
    together = _causal(model, source if isinstance(source, int) else 3, width)
    pass_, old = _shared(most) if together else (1, max(1, most - 1))
    new, many = ("decoder_seq", [Dim("decoder_seq", 1, 1, pass_)]) if together else (1, [])
    dims = [dim for dim in plain.dims if dim.name != "decoder_seq"]
    dims += [*many, Dim("past", 0, min(32, old), old)]
    inputs, masks = [dataclasses.replace(ids, dims=("batch", new))], [MaskSpec(("causal",), alignment="lower_right")]
    for name, given, length in ((DECODER_MASK, DECODER_MASK, f"past+{new}"), (mask, ENCODER_MASK, source)):
        if given in specs:
            inputs.append(TensorSpec(name, "int64", ("batch", length), high=2))
            masks.append(MaskSpec(("padding",), name))
    inputs += _caches(OWN, own, ["past"] * len(own))
    inputs += _caches(CROSS, cross, [source] * len(cross))
    vocab, run = ids.high or 2, partial(run_behind_caches, width=width, together=together)
    generating = {"stop": _ends(model, vocab), "start": _begins(model, vocab), "rules": rules_of(model, vocab)}
    return _contract(subject, run, inputs, narrow_dims(tuple(dims), declared), masks, **generating)


def _causal(model: Any, source: int, width: int) -> bool:
    """Whether a token of a decoder behind its encoder sees none behind it, where there is a cache.

    FSMT leaves its causal mask out there.
    """
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    hidden_BSD = torch.randn(1, source, width, generator=torch.Generator().manual_seed(0))
    ids_BS = torch.tensor([[0, 2]])
    with torch.no_grad():
        alone, followed = (
            decode_behind(model, hidden_BSD, new_BS, EncoderDecoderCache(DynamicCache(), DynamicCache())).logits[:, 0]
            for new_BS in (ids_BS[:, :1], ids_BS)
        )
    return bool((followed - alone).abs().max() <= _NEAR * alone.std())


def _begins(model: Any, vocab: int) -> tuple[int, ...]:
    """The tokens that a text begins with, by what the model says of how it generates."""
    how, name = model.generation_config, "decoder_start_token_id"
    said = (getattr(how, name, None), getattr(model.config, name, None), getattr(how, "bos_token_id", None))
    return known_tokens(next((token for token in said if token is not None), None), vocab)


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


def _windows_of(model: Any, layers: int) -> Windows | None:
    """The windows by which transformers cuts a model's cache; None if it cuts no layer's."""
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


def _takes_padding(model: Any, memory: Memory, vocab: int) -> bool:
    """Whether texts may be padded at the left, by running two of them as they are generated.

    Raises:
        UnknownCache: without padding, too, a pass over all tokens gives something else; or the model needs more than
            was found of what it keeps.
    """
    ids_BS, begins = (torch.arange(12).reshape(2, 6) * 5 + 3) % vocab, (0, 2)
    mask_BS = torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    steps = range(6) if memory.has_states else (2, 3, 4, 5)
    with torch.no_grad():
        wanted = [model(input_ids=row[None, begin:], use_cache=False).logits[0, -1]
                  for row, begin in zip(ids_BS, begins, strict=True)]  # fmt: skip
        kept, start = memory.empty(2), 0
        for step in steps:
            seen = slice(0 if memory.past else start, step + 1)
            new = {"input_ids": ids_BS[:, start : step + 1], "attention_mask": mask_BS[:, seen]}
            try:
                found = run_with_memory(model, {**new, **kept}, memory=memory)
            except Exception as err:  # transformers raises whatever it likes where a cache lacks something
                why = f"it does not go on with what its cache was found to hold: {first_line(err)}"
                raise UnknownCache(why) from err
            kept = {name: found[name.replace("past_", "present_", 1)] for name in kept}
            start = step + 1
    far = [float((got - one).abs().max() / one.std()) for got, one in zip(found["logits"], wanted, strict=True)]
    if not far[0] <= _NEAR:
        raise UnknownCache(f"token by token it gives other scores than in one pass, by {far[0]:.0e} of their spread")
    return far[1] <= _NEAR


_NAMES = {"keys": "key", "values": "value", "conv_states": "conv", "recurrent_states": "recurrent"}
_BATCH, _TOKENS = 5, 6
"""The sizes of the runs, of which no other size should be one by chance."""


def _memory_of(model: Any, vocab: int) -> Memory:
    """Finds out what a model keeps, from two runs of it, one of them with one token more.

    Raises:
        UnknownCache: it keeps nothing, or something that grows in another way.
    """
    argument = next((name for name in CACHE_ARGUMENTS if name in accepted(model)), None)
    if argument is None:
        raise UnknownCache("it does not take what it keeps")
    try:
        begin = _unbounded(_run(model, argument, vocab, 1, None), model)
        short, long = (_run(model, argument, vocab, tokens, copy.deepcopy(begin)) for tokens in (_TOKENS, _TOKENS + 1))
    except Exception as err:  # transformers raises whatever it likes where a cache is of another kind
        raise UnknownCache(f"it does not run with a cache: {first_line(err)}") from err
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
        raise UnknownCache("it keeps nothing between tokens")
    return Memory(argument, short, tuple(kept))


def _length(path: Path, shape: tuple[int, ...], longer: tuple[int, ...]) -> int | None:
    """The axis that grows with a token; None of a state. Raises UnknownCache for another size."""
    if shape == longer:
        return None
    changed = [at for at, sizes in enumerate(zip(shape, longer, strict=False)) if sizes[0] != sizes[1]]
    if len(shape) == len(longer) and [(shape[at], longer[at]) for at in changed] == [(_TOKENS, _TOKENS + 1)]:
        return changed[0]
    what = ".".join(map(str, path))
    raise UnknownCache(f"{what} in its cache is {list(shape)} of {_TOKENS} tokens and {list(longer)} of one more")


def _run(model: Any, argument: str, vocab: int, tokens: int, given: Any) -> Any:
    """What a model keeps after a run."""
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
