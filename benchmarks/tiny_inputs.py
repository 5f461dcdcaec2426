"""Inputs that a transformers model may take, by its main input and its forward's signature."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from tiny_configs import ORDINARY, Preset

Sizes = Mapping[str, int]
SIZES: tuple[Sizes, ...] = (
    {"batch": 2, "seq": 7, "target": 5, "frames": 64, "samples": 1600},
    {"batch": 1, "seq": 12, "target": 9, "frames": 48, "samples": 2200},
    {"batch": 3, "seq": 16, "target": 4, "frames": 80, "samples": 1840},
    {"batch": 5, "seq": 4, "target": 11, "frames": 56, "samples": 3000},
    {"batch": 4, "seq": 33, "target": 17, "frames": 96, "samples": 2560},
)
BATCHES = (2, 1, 3, 5, 4)


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a model: its dims are names of `SIZES` or numbers; `kind` is ids, mask, float or a constant."""

    name: str
    dims: tuple[str | int, ...]
    kind: str
    value: tuple[int, ...] = ()
    """Of a constant: its last row, the same in every row. Of ids: a token, and how many of it come first."""

    def tensor(self, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
        """Values at these sizes; a mask has padding at the end of each row but the first."""
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)
        if self.kind == "ids":
            ids = torch.randint(*ORDINARY, shape, generator=generator)
            if self.value:
                ids[:, : self.value[1]] = self.value[0]
            return ids
        if self.kind == "constant":
            return torch.tensor(self.value).expand(shape).clone()
        if self.kind == "places":  # of a square's patches
            side = math.isqrt(shape[-2])
            square = torch.cartesian_prod(torch.arange(side), torch.arange(side))
            return square.expand(shape).clone()
        if self.kind == "patches":  # two numbers of the place, then a patch
            found = torch.randn(shape, generator=generator)
            found[..., 0] = torch.arange(shape[-2]) // 4 + 1
            found[..., 1] = torch.arange(shape[-2]) % 4 + 1
            return found
        if self.kind == "boxes":  # left, top, right and bottom, of a thousand
            corners = torch.randint(0, 500, shape, generator=generator)
            corners[..., 2:] += 500
            return corners
        if self.kind == "none":  # of the values, as of padding
            return torch.zeros(shape)
        if self.kind == "zeros":
            return torch.zeros(shape, dtype=torch.int64)
        if self.kind == "mask":
            length = shape[-1]
            kept = torch.tensor([max(1, length - (row * 2) % max(1, length - 1)) for row in range(shape[0])])
            return (torch.arange(length)[None, :] < kept[:, None]).long()
        return torch.randn(shape, generator=generator)

    def declared(self) -> str:
        """The input as `--input` declares it; a constant with its values, if its shape has no dims."""
        if self.kind == "constant" and all(isinstance(dim, int) for dim in self.dims):
            return f"{self.name}={self.tensor({}, torch.Generator()).tolist()}"
        shape = f"[{','.join(map(str, self.dims))}]"
        if self.kind in ("float", "none", "patches"):
            return f"{self.name}=float32{shape}"
        if self.kind == "mask" and len(self.dims) == 2:
            return f"{self.name}=int64{shape}:padding"
        if self.value and isinstance(self.value[0], bool):
            return f"{self.name}=bool{shape}"
        high = {"ids": ORDINARY[1], "mask": 2, "constant": max(self.value, default=0) + 1, "boxes": 1000}
        return f"{self.name}=int64{shape}:high={high.get(self.kind, 1)}"


def feeds(inputs: Sequence[Input], sizes: Sizes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors for every input at these sizes; the same each time."""
    generator = torch.Generator().manual_seed(seed)
    return {one.name: one.tensor(sizes, generator) for one in inputs}


def recipes(model: Any, preset: Preset) -> Iterator[tuple[Input, ...]]:
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
    yield from _with_companions(model.config, signature, text, pictures)
    if "input_ids" in signature:  # of a text model that calls its main input otherwise
        yield tuple(text)


_SOUND = ("input_features", "input_values", "audio_values", "input_spectrogram")


def _texts(
    model: Any, text: list[Input], target: list[Input], pictures: list[Input], *, boxes: bool
) -> Iterator[tuple[Input, ...]]:
    if boxes:
        box = Input("bbox", ("batch", "seq", 4), "boxes")
        for picture in pictures:
            yield (*text, box, picture, *target)
        yield (*text, box, *target)
    yield tuple(text + [one for one in target if getattr(model.config, "is_encoder_decoder", False)])
    yield tuple(text + target)
    for picture in pictures:
        yield (*text, picture)
    yield tuple(text)
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
    for name in ("inputs_embeds", "hidden_states", "latents"):
        if main == name or name in needed:
            width = int(getattr(config, "hidden_size", 64))
            yield (Input(name, ("batch", "seq", width), "float"),)
            yield (Input(name, ("batch", width, "seq"), "float"),)


def _number(config: Any, *names: str, default: int) -> int:
    """The first of these fields, of this config or of one inside it."""
    inside = [one for one in vars(config).values() if hasattr(one, "model_type")]
    found = (getattr(one, name, None) for one in (config, *inside) for name in names)
    return next((one for one in found if isinstance(one, int)), default)


def _patches(config: Any, signature: Collection[str], words: list[Input]) -> Iterator[tuple[Input, ...]]:
    """Pictures that were cut into 16 patches, and where the patches are."""
    side = _number(config, "patch_size", default=16)
    area = _number(config, "num_channels", "in_channels", "in_chans", default=3) * side**2
    name = next((one for one in ("pixel_values", "hidden_states") if one in signature), "")
    for grid in {"grid_thw", "image_grid_thw"} & set(signature) if name else ():
        places = [Input(grid, (1, 3), "constant", (1, 4, 4))]
        if "merge_sizes" in signature:
            places.append(Input("merge_sizes", (1,), "constant", (2,)))
        for width in (area, area * _number(config, "temporal_patch_size", default=2)):
            yield (Input(name, (16, width), "float"), *places)
        yield (Input(name, (16, 3, side, side), "float"), *places)
        merged = side * _number(config, "spatial_merge_size", default=2)
        yield (Input(name, (16, merged, merged, 3), "float"), *places)
    if "spatial_shapes" in signature:
        mask = Input("pixel_attention_mask", ("batch", 16), "constant", (1,))
        shapes = Input("spatial_shapes", ("batch", 2), "constant", (4, 4))
        yield (*words, Input("pixel_values", ("batch", 16, area), "float"), mask, shapes)
    if "pixel_position_ids" in signature:
        places = [Input("pixel_position_ids", ("batch", 9, 2), "places")]
        yield (Input("pixel_values", ("batch", 9, area), "float"), *places)
    if "target_sizes" in signature and name == "pixel_values":
        row = Input(name, (1, 3, side, 16 * side), "float")
        yield (row, Input("target_sizes", (1, 2), "constant", (4, 4)))
    if "flattened_patches" in signature:
        target = [Input("decoder_input_ids", ("batch", "target"), "ids")]
        yield (Input("flattened_patches", ("batch", 16, 2 + area), "patches"), *target)
        yield (Input("flattened_patches", ("batch", 16, 2 + area), "patches"),)


def _among_words(config: Any, signature: Collection[str], pictures: list[Input]) -> Iterator[tuple[Input, ...]]:
    """Words after as many tokens of a picture as its queries are."""
    count = _number(config, "num_query_tokens", "latent_query_num", default=0)
    token = _number(config, "image_token_index", "video_token_index", "image_token_id", default=140)
    if not count or "input_ids" not in signature:
        return
    for picture in pictures:
        many = count * (int(picture.dims[1]) if len(picture.dims) == 5 else 1)
        words = [Input("input_ids", ("batch", many + 7), "ids", (token, many))]
        words.append(Input("attention_mask", ("batch", many + 7), "constant", (1,)))
        if "image_embeds_position_mask" in signature:
            words.append(Input("image_embeds_position_mask", ("batch", many + 7), "constant", (1,) * many + (0,) * 7))
        if "qformer_input_ids" in signature:
            words.append(Input("qformer_input_ids", ("batch", "seq"), "ids"))
        yield (picture, *words)


def _series(config: Any, signature: Collection[str]) -> Iterator[tuple[Input, ...]]:
    """Series with their times."""
    if "states" in signature and "returns_to_go" in signature:
        counts = {"states": _number(config, "state_dim", default=4), "actions": _number(config, "act_dim", default=4)}
        told = [Input(name, ("batch", "seq", count), "float") for name, count in counts.items()]
        told.append(Input("returns_to_go", ("batch", "seq", 1), "float"))
        yield (*told, Input("timesteps", ("batch", "seq"), "zeros"), Input("attention_mask", ("batch", "seq"), "mask"))
    if "past_time_features" in signature:
        ahead = _number(config, "prediction_length", default=8)
        before = _number(config, "context_length", default=8) + max(getattr(config, "lags_sequence", None) or [0])
        times = _number(config, "num_time_features", default=0)
        yield (
            Input("past_values", ("batch", before), "float"),
            Input("past_time_features", ("batch", before, times), "float"),
            Input("past_observed_mask", ("batch", before), "constant", (1,)),
            Input("future_values", ("batch", ahead), "float"),
            Input("future_time_features", ("batch", ahead, times), "float"),
        )
    if "past_values_padding" in signature:
        length = _number(config, "context_length", default=64)
        series = Input("past_values", ("batch", length), "float")
        padding = Input("past_values_padding", ("batch", length), "none")
        yield (series, padding, Input("freq", ("batch", 1), "zeros"))


def _sounds_and_more(config: Any, signature: Collection[str], words: list[Input]) -> Iterator[tuple[Input, ...]]:
    """Sounds with their masks, with words, and in two forms."""
    for sound, mask_name in (("input_features", "input_features_mask"), ("audio_mel", "audio_mel_mask")):
        bins = _number(config, "input_size", "num_mel_bins", "input_feat_size", default=128)
        if sound in signature and mask_name in signature:
            for dims in (
                ("batch", "frames", bins),
                ("batch", bins, "frames"),
                ("batch", bins, 64),
                ("batch", bins, 3000),
            ):
                length = next(one for one in dims[1:] if one != bins)
                mask = Input(mask_name, ("batch", length), "mask")
                if sound == "audio_mel":  # true where there is none
                    mask = Input(mask_name, ("batch", length), "constant", (False,))
                yield (Input(sound, dims, "float"), mask)
    if "is_longer" in signature:
        bins, frames = _number(config, "num_mel_bins", default=64), _number(config, "spec_size", default=256) * 4
        mixed = [Input("is_longer", ("batch", 1), "constant", (0,))]
        yield (*words, Input("input_features", ("batch", 4, frames, bins), "float"), *mixed)
        yield (*words, Input("input_features", ("batch", 1, frames, bins), "float"), *mixed)
    if "input_values" in signature and words:
        for dims in (("batch", "samples"), ("batch", 1, "samples"), ("batch", 1, 16000)):
            yield (*words, Input("input_values", dims, "float"))
    if "input_features" in signature and words:
        bins = _number(config, "num_mel_bins", "feature_size", default=80)
        for dims in (("batch", bins, "frames"), ("batch", "frames", bins)):
            yield (*words, Input("input_features", dims, "float"))
    if "input_values" in signature and "input_features" in signature:
        bins = _number(config, "num_mel_bins", "feature_projection_input_dim", default=160)
        yield (
            Input("input_values", ("batch", 1, 3200), "float"),
            Input("input_features", ("batch", 10, bins), "float"),
        )


def _with_companions(
    config: Any, signature: Collection[str], text: list[Input], pictures: list[Input]
) -> Iterator[tuple[Input, ...]]:
    """Inputs that only come together."""
    words = text if "input_ids" in signature else []
    yield from _among_words(config, signature, pictures)
    yield from _patches(config, signature, words)
    yield from _series(config, signature)
    yield from _sounds_and_more(config, signature, words)
    if "visual_feats" in signature:
        seen = Input("visual_feats", ("batch", 4, _number(config, "visual_feat_dim", default=64)), "float")
        yield (*words, seen, Input("visual_pos", ("batch", 4, _number(config, "visual_pos_dim", default=4)), "float"))
    if isinstance(codes := getattr(config, "num_codebooks", None), int) and words:
        yield (Input("input_ids", ("batch", "seq", codes + 1), "ids"), *words[1:])
    if "query_embeds" in signature:
        yield (
            Input("query_embeds", ("batch", "target", _number(config, "hidden_size", default=64)), "float"),
            Input(
                "encoder_hidden_states", ("batch", "seq", _number(config, "encoder_hidden_size", default=64)), "float"
            ),
        )
    for picture in pictures:
        if "image_attention_mask" in signature and len(picture.dims) == 5:
            seen = Input("image_attention_mask", ("batch", "seq", picture.dims[1]), "constant", (1,))
            yield (*words, picture, seen)
        if "task_inputs" in signature:
            yield (picture, Input("task_inputs", ("batch", _number(config, "task_seq_len", default=77)), "ids"))
        if "prompt_masks" in signature:
            high, *rest = picture.dims[-2:]
            half = Input("pixel_values", ("batch", 3, int(high) // 2, *rest), "float")
            yield tuple(
                dataclasses.replace(half, name=name) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
            )


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
         for key in ("num_mel_bins", "feature_size", "input_feat_size", "input_feat_per_channel", "feat_dim",
                     "feature_projection_input_dim")
         if isinstance(getattr(one, key, None), int)), 80,
    )  # fmt: skip
    frames = 2 * int(getattr(config, "max_source_positions", 0) or 0)
    if frames and frames < 400:
        yield Input(name, ("batch", bins, frames), "float")
    lengths: tuple[str | int, ...] = ("frames", 400, 1024)
    for length in lengths:
        yield Input(name, ("batch", length, bins), "float")
        yield Input(name, ("batch", bins, length), "float")
    lengths = ("samples", 16000, 3840)
    for length in lengths:
        yield Input(name, ("batch", length), "float")
        yield Input(name, ("batch", 1, length), "float")
    yield Input(name, ("batch", "frames", 128), "float")
    yield Input(name, ("batch", 1, 64, bins), "float")
    yield Input(name, ("batch", 1, 1024, 128), "float")
    yield Input(name, ("batch", "seq"), "ids")
