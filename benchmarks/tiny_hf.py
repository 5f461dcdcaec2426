"""Tiny transformers models of any type, with random weights, and inputs that they take.

Of the presets of `tiny_configs`, the first is taken of which the model computes finite numbers.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tiny_configs import ORDINARY, PRESETS, Preset, tiny_config

Sizes = Mapping[str, int]
MOST_PARAMETERS = 80_000_000
SIZES: tuple[Sizes, ...] = (
    {"batch": 2, "seq": 7, "target": 5, "frames": 64, "samples": 1600},
    {"batch": 1, "seq": 12, "target": 9, "frames": 48, "samples": 2200},
    {"batch": 3, "seq": 16, "target": 4, "frames": 80, "samples": 1840},
    {"batch": 5, "seq": 4, "target": 11, "frames": 56, "samples": 3000},
    {"batch": 4, "seq": 33, "target": 17, "frames": 96, "samples": 2560},
)
_BATCHES = (2, 1, 3, 5, 4)


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
