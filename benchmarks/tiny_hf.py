"""Tiny transformers models of any type, with random weights, and inputs that they take.

A type's own default config is shrunk by the names of its fields. Presets shrink less and less; the first of which the
model computes finite numbers is taken. What no rule can know is in `EXCEPTIONS`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Sizes = Mapping[str, int]
VOCABULARY, FIRST_SPECIAL, ORDINARY = 160, 140, (10, 130)
"""Ids from 10 to 130 are words; the special ones of a config come after."""
MOST_PARAMETERS = 80_000_000
SIZES: tuple[Sizes, ...] = (
    {"batch": 2, "seq": 7, "target": 5, "frames": 64, "samples": 1600},
    {"batch": 1, "seq": 12, "target": 9, "frames": 48, "samples": 2200},
    {"batch": 3, "seq": 16, "target": 4, "frames": 80, "samples": 1840},
    {"batch": 5, "seq": 4, "target": 11, "frames": 56, "samples": 3000},
    {"batch": 4, "seq": 33, "target": 17, "frames": 96, "samples": 2560},
)
_BATCHES = (2, 1, 3, 5, 4)

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},  # sparse attention needs long sequences and random numbers
    "bigbird_pegasus": {"attention_type": "original_full"},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"], "is_decoder": True},
    "dpr": {"projection_dim": 0},
    "esm": {
        "vocab_size": 160,
        "pad_token_id": 1,
        "mask_token_id": 32,
        "hidden_size": 64,
        "token_dropout": False,
        "max_position_embeddings": 66,
        "num_attention_heads": 4,
    },
}
"""Fields of a config that no rule can know."""

_LAYERS = re.compile(
    r"(^|_)(num_hidden_layers|n_layers?|num_layers|depth|(en|de)coder_layers|num_(en|de)coder_layers|num_blocks"
    r"|(en|de)coder_num_hidden_layers|num_encoder_blocks_|conf_num_hidden_layers|conv_layers|resampler_depth)$"
)
_HEADS = re.compile(r"(^|_)(num_attention_heads|num_heads|n_heads?|attention_heads|heads|resampler_n_heads)$")
_KV_HEADS = re.compile(r"(num_key_value_heads|num_kv_heads|n_kv_heads|num_key_value_groups)$")
_HIDDEN = re.compile(
    r"^((\w+_)?hidden_size|d_model|dim|n_embd|embed_dim|embedding_size|out_hidden_size|(\w+_)?projection_dim"
    r"|hidden_dim|emb_dim|word_embed_proj_dim|encoder_hidden_dim|decoder_hidden_dim|feature_size|output_dim)$"
)
_WIDE = re.compile(r"((^|_)intermediate_size|ffn_dim|ffn_hidden_size|d_ff|d_inner|n_inner|ffn_size|mlp_dim)$")
_EXPERTS = re.compile(r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$")
_CHOSEN = re.compile(r"(num_experts_per_tok|num_experts_per_token|moe_topk|top_k_experts|moe_k|experts_top_k)$")
_EXACT = {
    "head_dim": 16, "attention_head_dim": 16, "d_kv": 16, "d_head": 16, "kv_channels": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "qk_head_dim": 32, "kv_lora_rank": 32, "q_lora_rank": 32, "n_group": 1,
    "rotary_dim": 8, "d_latents": 64, "num_latents": 8,
    "topk_group": 1, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "sliding_window": 8, "num_mel_bins": 16, "max_source_positions": 32,
    "num_conv_pos_embedding_groups": 4, "num_conv_pos_embeddings": 16, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "hidden_size_per_layer_input": 16, "global_head_dim": 16, "attention_chunk_size": 8,
    "index_topk": 8, "index_head_dim": 16, "index_n_heads": 4, "swa_head_dim": 16, "num_kv_shared_layers": 0,
}  # fmt: skip
_PICTURE = re.compile(r"^(image_size|img_size|input_size|crop_size|pretrain_image_size)$")
_PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_types", "indexer_types")


@dataclasses.dataclass(frozen=True)
class Preset:
    """What is shrunk: widths of plain models, lists of widths of staged ones, pictures to this size (0 = stays)."""

    widths: bool
    lists: bool
    picture: int
    heads: bool = True


PRESETS = tuple(
    Preset(widths, lists, picture, heads)
    for picture in (32, 64, 224, 0)
    for widths, lists, heads in (
        (True, True, True), (True, False, True), (True, False, False), (False, True, False), (False, False, False)
    )
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a model: its dims are names of `SIZES` or numbers; `kind` is ids, mask, float or a constant."""

    name: str
    dims: tuple[str | int, ...]
    kind: str

    def tensor(self, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
        """Values at these sizes; a mask has padding at the end of each row but the first."""
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)
        if self.kind == "ids":
            return torch.randint(*ORDINARY, shape, generator=generator)
        if self.kind == "zeros":
            return torch.zeros(shape, dtype=torch.int64)
        if self.kind == "mask":
            length = shape[-1]
            kept = torch.tensor([max(1, length - (row * 2) % max(1, length - 1)) for row in range(shape[0])])
            return (torch.arange(length)[None, :] < kept[:, None]).long()
        return torch.randn(shape, generator=generator)


@dataclasses.dataclass
class Made:
    """A model, its inputs, and the sizes at which it is tried."""

    model: Any
    inputs: tuple[Input, ...]
    sizes: tuple[Sizes, ...]
    parameters: int


def types() -> dict[str, str]:
    """Every model type with a class in the library's auto mappings, and that class: the base model if there is one."""
    import transformers.models.auto.modeling_auto as auto

    heads = [name for name in dir(auto) if name.startswith("MODEL_FOR_") and name.endswith("MAPPING_NAMES")]
    mappings = ["MODEL_MAPPING_NAMES", *sorted(heads)]
    found: dict[str, str] = {}
    for mapping in mappings:
        for kind, named in getattr(auto, mapping).items():
            found.setdefault(kind, named if isinstance(named, str) else named[0])
    return found


def make(kind: str, class_name: str) -> Made:
    """The model of a type.

    Raises:
        ValueError: no preset gives a model that computes finite numbers; the message has the last reason.
    """
    import transformers

    cls = getattr(transformers, class_name)
    reasons: list[str] = []
    seen: set[str] = set()
    for preset in PRESETS:
        try:
            config = tiny_config(kind, preset)
            written = str(sorted(config.to_dict().items(), key=str))
            if written in seen:
                continue
            seen.add(written)
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in cls._from_config(config).parameters())
            if count > MOST_PARAMETERS:
                raise ValueError(f"{count / 1e6:.0f} million parameters")
            torch.manual_seed(0)
            model = cls._from_config(config).float().eval()
            randomise(model)
            if getattr(model.config, "use_cache", None):
                model.config.use_cache = False
            inputs, sizes = inputs_of(model, preset)
            return Made(model, inputs, sizes, count)
        except Exception as err:  # whatever a config or a model raises
            reasons.append(f"{type(err).__name__}: {' '.join(str(err).split())[:160]}")
        if len(reasons) > 8:
            break
    raise ValueError("; ".join(dict.fromkeys(reasons)) or "no preset applies")


def tiny_config(kind: str, preset: Preset) -> Any:
    """The config of a type, shrunk."""
    import transformers

    cls = transformers.CONFIG_MAPPING[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = cls().to_dict()
    shrunk = shrink(values, preset)
    shrunk.update(EXCEPTIONS.get(kind, {}))
    for key in (
        "out_features",
        "out_indices",
        "stage_names",
        "transformers_version",
        "model_type",
        "architectures",
        "dtype",
        "rope_scaling",
    ):
        shrunk.pop(key, None)
    return cls(**shrunk)


def shrink(values: Mapping[str, Any], preset: Preset, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """A config's fields, smaller, and those of every config inside it."""
    kept = _kept_layers(values)
    special = itertools.count(FIRST_SPECIAL)
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in ("id2label", "label2id"):
            found[key] = _rope(value) if "rope" in key else shrink(value, preset, vocabulary)
        elif isinstance(value, list):
            found[key] = _list(key, value, kept, preset)
        elif isinstance(value, bool) or not isinstance(value, int):
            found[key] = value
        elif re.search(r"_token_(id|index)$|_(index|id)$", key) and value >= VOCABULARY:
            found[key] = min(next(special), VOCABULARY - 1)
        else:
            found[key] = _number(key, value, values, kept, preset)
    if "vocab_size" in found and found["vocab_size"] is None:
        found["vocab_size"] = vocabulary
    if preset.widths:
        _settle_heads(found)
    return found


def _settle_heads(found: dict[str, Any]) -> None:
    """Numbers that follow from others: heads of state spaces, and the width of models whose heads grow by stage."""
    width, heads = found.get("hidden_size") or found.get("d_model"), found.get("num_heads")
    for expand, count, size in (
        ("expand", "num_heads", "head_dim"),
        ("mamba_expand", "mamba_n_heads", "mamba_d_head"),
        ("expand", "mamba_num_heads", "mamba_head_dim"),
        ("mamba_expand", "n_mamba_heads", "mamba_headdim"),
    ):
        if isinstance(width, int) and isinstance(found.get(expand), int | float) and isinstance(found.get(count), int):
            if found.get(size) is not None:
                found[size] = 16
                found[count] = int(width * found[expand]) // 16
            for groups in ("n_groups", "mamba_n_groups"):
                if isinstance(found.get(groups), int):
                    found[groups] = min(found[groups], 2)
    if isinstance(found.get("mamba_d_ssm"), int) and isinstance(width, int):
        found["mamba_d_ssm"] = int(width * found.get("mamba_expand", 2))
    if isinstance(heads, list) and isinstance(found.get("embed_dim"), int) and isinstance(heads[0], int):
        found["embed_dim"] = 8 * heads[0]


def _kept_layers(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers to keep: one of each kind, or the first two."""
    lists = [values[key] for key in _PER_LAYER if isinstance(values.get(key), list) and values[key]]
    count = next((value for key, value in values.items() if key == "num_hidden_layers" and isinstance(value, int)), 0)
    lists = [found for found in lists if len(found) == count]
    if not lists:
        return (0, 1)
    first = {key: at for at, key in reversed(list(enumerate(zip(*lists, strict=True))))}
    at = sorted(first.values())[:4]
    return tuple(at) if len(at) > 1 else (0, min(1, count - 1)) if count > 1 else (0,)


def _number(key: str, value: int, values: Mapping[str, Any], kept: Sequence[int], preset: Preset) -> int:
    if "vocab_size" in key:
        return min(value, VOCABULARY)
    if _LAYERS.search(key):
        return min(value, len(kept) if key == "num_hidden_layers" else 2)
    if _EXPERTS.search(key):
        return min(value, 4)
    if _CHOSEN.search(key):
        return min(value, 2)
    if _PICTURE.match(key) and preset.picture:
        return min(value, preset.picture)
    if key == "patch_size" and preset.picture == 32:
        return min(value, 8)
    if preset.heads and _KV_HEADS.search(key):
        whole = values.get("num_attention_heads") or values.get("num_heads")
        return min(value, 4) if value == whole else min(value, 2)
    if preset.heads and _HEADS.search(key):
        return 4 if value >= 4 else value
    if preset.widths and key in _EXACT:
        return min(value, _EXACT[key])
    if preset.widths and _WIDE.search(key):
        return min(value, 96)
    if preset.widths and _HIDDEN.match(key):
        return min(value, 64)
    return value


def _list(key: str, value: list[Any], kept: Sequence[int], preset: Preset) -> list[Any]:
    if _PICTURE.match(key) and preset.picture:
        return [min(int(size), preset.picture) for size in value]
    if key in _PER_LAYER or (key.endswith(("_layers", "layer_types")) and len(value) > 8):
        return [value[at] for at in kept if at < len(value)]
    numbers = bool(value) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    if numbers and key in ("depths", "layer_depths", "stage_depths", "num_blocks_per_stage"):
        return [min(one, 1) for one in value]
    if numbers and preset.lists and re.search(r"(hidden_sizes|embed_dims?|channels|conv_dim|widths?)$", key):
        share = max(1, min(value) // 16) if min(value) >= 16 else 1
        return [max(4, one // share) for one in value]
    return list(value)


def _rope(value: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of rotary positions; their sections are of a head of 16."""
    found = dict(value)
    section = found.get("mrope_section")
    if isinstance(section, list) and sum(section) > 8:
        found["mrope_section"] = [4, 2, 2] if len(section) == 3 else [8 // len(section)] * len(section)
    return {key: _rope(one) if isinstance(one, Mapping) else one for key, one in found.items()}


def randomise(model: torch.nn.Module) -> None:
    """Weights of which every one counts: no zeros, ones or tiny scales, under which wrong numbers look right."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point() or weight.ndim == 0 or weight.numel() == 0:
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if not torch.isfinite(weight).all():
                weight.copy_(0.05 * noise)
            spread = float(weight.std()) if weight.numel() > 1 else 0.0
            if spread == 0 and weight.ndim == 1:
                middle = float(weight.flatten()[0])  # a tiny one is a scale of a layer
                weight.copy_(0.1 * noise + (middle if abs(middle) > 0.01 or middle == 0 else 0.5))
            elif weight.ndim >= 2:
                fan_in = weight[0].numel() if "embed" not in name else 4
                wanted = 0.8 / math.sqrt(max(1, fan_in))
                if spread == 0:
                    weight.copy_(wanted * noise)
                elif spread < 0.6 * wanted:
                    weight.mul_(wanted / spread)


def feeds(inputs: Sequence[Input], sizes: Sizes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors for every input at these sizes; the same each time."""
    generator = torch.Generator().manual_seed(seed)
    return {one.name: one.tensor(sizes, generator) for one in inputs}


def inputs_of(model: Any, preset: Preset) -> tuple[tuple[Input, ...], tuple[Sizes, ...]]:
    """The first inputs of which the model computes finite numbers, at as many different sizes as it takes.

    Raises:
        ValueError: no inputs are known that it takes.
    """
    first = ""
    for inputs in _recipes(model, preset):
        try:
            outputs = run(model, feeds(inputs, SIZES[0]))
        except Exception as err:  # whatever a model raises for inputs that it does not take
            first = first or f"{type(err).__name__}: {' '.join(str(err).split())[:200]}"
            continue
        if not outputs or not all(bool(torch.isfinite(one).all()) for one in outputs):
            first = first or "its outputs are not finite"
            continue
        return inputs, _sizes_taken(model, inputs)
    raise ValueError(f"it takes none of the inputs known here: {first}")


def _sizes_taken(model: Any, inputs: Sequence[Input]) -> tuple[Sizes, ...]:
    """The five sizes, or five batches where the rest is fixed."""
    try:
        for sizes in SIZES:
            run(model, feeds(inputs, sizes))
        return SIZES
    except Exception:  # a model of fixed sizes
        return tuple({**SIZES[0], "batch": batch} for batch in _BATCHES)


def run(model: Any, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The floating-point tensors that the model gives, without caches."""
    with torch.no_grad():
        return list(named_tensors(model(**values)).values())


def named_tensors(result: Any) -> dict[str, torch.Tensor]:
    """The floating-point tensors of a result, by their keys; without caches."""
    found: dict[str, torch.Tensor] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                found[name] = value
        elif isinstance(value, Mapping):
            for key, part in value.items():
                if key not in ("past_key_values", "mems", "cache_params", "past_buckets_states"):
                    walk(part, f"{name}.{key}" if name else str(key))
        elif isinstance(value, tuple | list):
            for at, part in enumerate(value):
                walk(part, f"{name}.{at}" if name else str(at))

    walk(result, "")
    return found


def _recipes(model: Any, preset: Preset) -> Iterator[tuple[Input, ...]]:
    """Sets of inputs to try, from the model's main input and the forward's signature."""
    signature = inspect.signature(model.forward).parameters
    main = model.main_input_name if isinstance(getattr(model, "main_input_name", None), str) else "input_ids"
    needed = [name for name, one in signature.items() if one.default is one.empty and one.kind.name[0] != "V"]
    text = [Input("input_ids", ("batch", "seq"), "ids")]
    if "attention_mask" in signature:
        text.append(Input("attention_mask", ("batch", "seq"), "mask"))
    target = [Input("decoder_input_ids", ("batch", "target"), "ids")] if "decoder_input_ids" in signature else []
    pictures = list(_pictures(model, preset))
    if main == "input_ids" and "input_ids" in signature:
        yield from _texts(model, text, target, pictures, boxes="bbox" in signature)
    if main in ("pixel_values", "pixel_values_videos") or "pixel_values" in signature:
        for picture in pictures:
            yield (picture,)
            yield (picture, *target)
        for picture in pictures:
            yield (*text, picture)
    if main in _SOUND or set(_SOUND) & set(signature):
        for sound in _sounds(model, main if main in signature else needed[0] if needed else "input_values"):
            yield (sound,)
            yield (sound, *target)
            yield (*text, sound)
    yield from _others(model, main, signature, needed)


_SOUND = ("input_features", "input_values", "audio_values", "input_spectrogram")


def _texts(
    model: Any, text: list[Input], target: list[Input], pictures: list[Input], *, boxes: bool
) -> Iterator[tuple[Input, ...]]:
    yield tuple(text + [one for one in target if getattr(model.config, "is_encoder_decoder", False)])
    yield tuple(text + target)
    if boxes:
        box = Input("bbox", ("batch", "seq", 4), "zeros")
        yield (*text, box)
        for picture in pictures:
            yield (*text, box, picture)
    for picture in pictures:
        yield (*text, picture)
    yield tuple(text[:1])


def _others(model: Any, main: str, signature: Collection[str], needed: list[str]) -> Iterator[tuple[Input, ...]]:
    """Series of numbers, bytes, and what is embedded already."""
    config = model.config
    if main == "past_values" or "past_values" in signature:
        length = int(getattr(config, "context_length", None) or getattr(config, "prediction_length", 32))
        channels = int(getattr(config, "num_input_channels", 1))
        yield (Input("past_values", ("batch", length, channels), "float"),)
        yield (Input("past_values", ("batch", length), "float"),)
    if "inputs" in signature:
        yield (Input("inputs", ("batch", "seq"), "ids"),)
        yield (Input("inputs", ("batch", "seq", int(getattr(config, "d_model", 64))), "float"),)
    for name in ("inputs_embeds", "hidden_states"):
        if main == name or name in needed:
            yield (Input(name, ("batch", "seq", int(getattr(config, "hidden_size", 64))), "float"),)


def _pictures(model: Any, preset: Preset) -> Iterator[Input]:
    signature = inspect.signature(model.forward).parameters
    name = next((one for one in ("pixel_values", "pixel_values_videos") if one in signature), "pixel_values")
    configs = [model.config] + [
        one for one in vars(model.config).values() if hasattr(one, "to_dict") and hasattr(one, "model_type")
    ]
    config = next((one for one in configs if getattr(one, "image_size", None)), configs[0])
    size = getattr(config, "image_size", None) or getattr(config, "img_size", None) or preset.picture or 224
    if isinstance(size, int):
        size = (size, size)
    height, width = tuple(size)[:2] if isinstance(size, list | tuple) else (64, 64)
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    channels = channels if isinstance(channels, int) else 3
    frames = int(getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None) or 2)
    tried = [(height, width)] + [(one, one) for one in (64, 128, 224) if (one, one) != (height, width)]
    for high, wide in tried:
        yield Input(name, ("batch", channels, high, wide), "float")
        yield Input(name, ("batch", frames, channels, high, wide), "float")


def _sounds(model: Any, name: str) -> Iterator[Input]:
    config = model.config
    bins = next(
        (int(getattr(one, key))
         for one in (config, getattr(config, "audio_config", None), getattr(config, "encoder_config", None))
         for key in ("num_mel_bins", "feature_size", "input_feat_size", "input_feat_per_channel", "feat_dim")
         if isinstance(getattr(one, key, None), int)), 80,
    )  # fmt: skip
    frames = 2 * int(getattr(config, "max_source_positions", 0) or 0)
    if frames and frames < 400:
        yield Input(name, ("batch", bins, frames), "float")
    lengths: tuple[str | int, ...] = ("frames", 400, 1024)
    for length in lengths:
        yield Input(name, ("batch", length, bins), "float")
        yield Input(name, ("batch", bins, length), "float")
    lengths = ("samples", 16000)
    for length in lengths:
        yield Input(name, ("batch", length), "float")
        yield Input(name, ("batch", 1, length), "float")
    yield Input(name, ("batch", 1, 64, bins), "float")
    yield Input(name, ("batch", 1, 1024, 128), "float")
    yield Input(name, ("batch", "seq"), "ids")


def save(made: Made, folder: Path) -> None:
    """Writes the model as a user's folder has it."""
    made.model.save_pretrained(folder)
