"""Tiny transformers models of any type, with random weights, and inputs that they take (`tiny_inputs`).

Of the presets of `tiny_configs`, the first is taken of which the model computes finite numbers.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tiny_configs import PRESETS, Preset, tiny_config
from tiny_inputs import BATCHES, SIZES, Input, Sizes, feeds, recipes

MOST_PARAMETERS = 80_000_000


CLASSES = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "speecht5": "SpeechT5ForSpeechToText",
}
"""Types whose base class takes no input that a processor gives."""


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
    found: dict[str, str] = dict(CLASSES)
    mappings = ["MODEL_MAPPING_NAMES", *sorted(heads)]
    for mapping in mappings:
        for kind, named in getattr(auto, mapping).items():
            found.setdefault(kind, named if isinstance(named, str) else named[0])
    return found


def make(kind: str, class_name: str, *, other: bool = False) -> Made:
    """The model of a type.

    Args:
        kind: The model type, as in `config.json`.
        class_name: The class of the model.
        other: Make its other config: heads that share keys and values where they did not, windows of another length.

    Raises:
        ValueError: no preset gives a model that computes finite numbers; the message has the last reason.
    """
    import transformers

    cls = getattr(transformers, class_name)
    reasons: list[str] = []
    seen: set[str] = set()
    for preset in PRESETS:
        try:
            config = tiny_config(kind, dataclasses.replace(preset, other=other))
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
            without_cache(model.config)
            inputs, sizes = inputs_of(model, preset)
            return Made(model, inputs, sizes, count)
        except Exception as err:  # whatever a config or a model raises
            reasons.append(f"{type(err).__name__}: {' '.join(str(err).split())[:160]}")
        if len(reasons) > 8:
            break
    raise ValueError("; ".join(dict.fromkeys(reasons)) or "no preset applies")


def without_cache(config: Any) -> None:
    """No cache in a config, and in none inside it."""
    for one in (config, *(inside for inside in vars(config).values() if hasattr(inside, "model_type"))):
        if getattr(one, "use_cache", None):
            one.use_cache = False


def randomise(model: torch.nn.Module) -> None:
    """Weights of which every one counts: no zeros, ones or tiny scales, under which wrong numbers look right."""
    generator = torch.Generator().manual_seed(1)
    batch_norms = (one for one in model.modules() if isinstance(one, torch.nn.modules.batchnorm._BatchNorm))
    scales = {id(one.weight) for one in batch_norms if one.weight is not None}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point() or weight.ndim == 0 or weight.numel() == 0:
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if not torch.isfinite(weight).all():
                weight.copy_(0.05 * noise)
            spread = float(weight.std()) if weight.numel() > 1 else 0.0
            if id(weight) in scales:  # some types begin with zeros here
                weight.copy_(1 + 0.1 * noise)
            elif spread == 0 and weight.ndim == 1:
                middle = float(weight.flatten()[0])  # a tiny one is a scale of a layer
                weight.copy_(0.1 * noise + (middle if abs(middle) > 0.01 or middle == 0 else 0.5))
            elif weight.ndim >= 2:
                fan_in = weight[0].numel() if "embed" not in name else 4
                wanted = 0.8 / math.sqrt(max(1, fan_in))
                if spread == 0:
                    weight.copy_(wanted * noise)
                elif spread < 0.6 * wanted:
                    weight.mul_(wanted / spread)
        kept = model.state_dict().keys()
        for name, table in model.named_buffers():  # a codebook of zeros gives the same code for everything
            if name in kept and table.is_floating_point() and table.ndim >= 2 and not bool(table.any()):
                table.copy_(torch.randn(table.shape, generator=generator))


def settle_norms(model: torch.nn.Module, inputs: Sequence[Input]) -> None:
    """Batch norms with the statistics of an input, as trained ones have: with others, signals die in deep models."""
    norms = [one for one in model.modules() if isinstance(one, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    before = [(one.momentum, {name: value.clone() for name, value in one.named_buffers()}) for one in norms]
    try:
        for one in norms:
            one.train()
            one.momentum = 1.0
        run(model, feeds(inputs, {**SIZES[3], "batch": 16}))
    except Exception:  # a single value for each channel has no statistics; or these inputs do not fit
        for one, (_, buffers) in zip(norms, before, strict=True):
            for name, value in buffers.items():
                getattr(one, name).copy_(value)
    finally:
        for one, (momentum, _) in zip(norms, before, strict=True):
            one.momentum = momentum
            one.eval()
            if one.running_var is not None:
                one.running_var.clamp_(min=1e-2)


def inputs_of(model: Any, preset: Preset) -> tuple[tuple[Input, ...], tuple[Sizes, ...]]:
    """The first inputs of which the model computes finite numbers, at as many different sizes as it takes.

    Raises:
        ValueError: no inputs are known that it takes.
    """
    first = ""
    taken = inspect.signature(model.forward).parameters
    for inputs in recipes(model, preset):
        if any(one.name not in taken for one in inputs):  # it would be swallowed unused
            continue
        try:
            settle_norms(model, inputs)
            outputs = run(model, feeds(inputs, SIZES[0]))
        except Exception as err:  # whatever a model raises for inputs that it does not take
            first = first or f"{type(err).__name__}: {' '.join(str(err).split())[:200]}"
            continue
        if not outputs or not _plain(outputs):
            first = first or "its outputs are not finite"
            continue
        return inputs, _sizes_taken(model, inputs)
    raise ValueError(f"it takes none of the inputs known here: {first}")


def _plain(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the first output is finite, and no other has a number that is none: what is hidden may be infinite."""
    return bool(torch.isfinite(outputs[0]).all()) and not any(bool(torch.isnan(one).any()) for one in outputs)


def _sizes_taken(model: Any, inputs: Sequence[Input]) -> tuple[Sizes, ...]:
    """The five sizes, or five batches where the rest is fixed."""
    try:
        for sizes in SIZES:
            run(model, feeds(inputs, sizes))
        return SIZES
    except Exception:  # a model of fixed sizes
        return tuple({**SIZES[0], "batch": batch} for batch in BATCHES)


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


def save(made: Made, folder: Path) -> None:
    """Writes the model as a user's folder has it."""
    made.model.save_pretrained(folder)
