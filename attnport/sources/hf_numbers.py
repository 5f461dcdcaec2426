"""The numbers in a model's config, the configs inside it, and its processor's config."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnport.errors import SpecError
from attnport.sources.hf_files import find

_PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
_PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index", "video_token_id")


class Numbers:
    """Finds a number by the names that models have for it.

    Attributes:
        further: Numbers that are not in a config, or that replace what is there.
    """

    def __init__(self, config: Any, processor: Mapping[str, Any], further: Mapping[str, int | None]) -> None:
        self._configs = list(_configs(config))
        self._processor = processor
        self.further = dict(further)

    def first(self, names: str) -> int | None:
        """The first number of `a|b=3`; None where there is none."""
        names, _, otherwise = names.partition("=")
        for name in names.split("|"):
            if (found := self.get(name)) is not None:
                return found
        return int(otherwise) if otherwise else None

    def get(self, name: str) -> int | None:
        """A number above zero, of the outermost config that has it."""
        if name in self.further:
            return self.further[name]
        if name in _DERIVED:
            return _DERIVED[name](self)
        values = [getattr(config, name, None) for config in self._configs]
        found = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
        return found[0] if found else None

    def processed(self, name: str) -> int | None:
        """A number of the processor's config."""
        value = self._processor.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def placeholders(self) -> bool:
        """Whether tokens among the ids stand for parts of images or sounds."""
        return any(isinstance(getattr(config, name, None), int) for config in self._configs for name in _PLACEHOLDERS)

    @property
    def takes_audio_mask(self) -> bool:
        """Whether the model was trained with a mask over its samples: its processor, or else its config, says it."""
        said = self._processor.get("return_attention_mask")
        if isinstance(said, bool):
            return said
        # wav2vec 2.0 with normalisation by groups was trained with zeros in place of a mask.
        return all(getattr(config, "feat_extract_norm", "layer") != "group" for config in self._configs)

    @property
    def samples_per_frame(self) -> int:
        """How many raw samples become one frame; 320, as of wav2vec 2.0, where the config does not say."""
        strides = next((each for each in (getattr(one, "conv_stride", None) for one in self._configs) if each), None)
        return math.prod(strides) if isinstance(strides, list | tuple) else 320

    @property
    def convolves_images(self) -> bool:
        """Whether images may have any size: the config names none, or there is no attention in the model.

        Attention over windows of dynamic sizes makes conditions that torch takes hours to simplify.
        """
        heads = ("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads")
        attends = any(getattr(config, name, None) for config in self._configs for name in heads)
        return self._model_image_size is None or not attends

    @property
    def _model_image_size(self) -> tuple[int, int] | None:
        names = ("image_size", "input_size", "img_size", "crop_size")
        sizes = [_size(getattr(config, name, None)) for config in self._configs for name in names]
        return next((size for size in sizes if size is not None), None)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of images: as the model's config has them, or else as the processor makes them."""
        sizes = [self._model_image_size]
        cropped = self._processor.get("crop_size") if self._processor.get("do_center_crop", True) else None
        sizes += [_size(cropped), _size(self._processor.get("size"))]
        return next((size for size in sizes if size is not None), None)


def read_processor(place: str) -> dict[str, Any]:
    """The configs of a model's processors as one, those inside others flattened; {} without any.

    Raises:
        SpecError: one cannot be read.
    """
    found: dict[str, Any] = {}
    for path in filter(None, (find(place, name) for name in _PROCESSORS)):
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as err:
            raise SpecError(f"hf:{place}: {path.name} cannot be read: {err}", hint="Fetch the folder again.") from err
        if not isinstance(values, dict):
            raise SpecError(f"hf:{place}: {path.name} is no object.", hint="Fetch the folder again.")
        inner = [
            value for name, value in values.items() if isinstance(value, dict) and name not in ("size", "crop_size")
        ]
        for part in (values, *inner):
            found = {**part, **found}
    return found


def _size(values: Any) -> tuple[int, int] | None:
    """Height and width, of a number, a pair or a dict as transformers writes them."""
    if isinstance(values, Mapping):
        edge = values.get("shortest_edge")
        values = (values.get("height", edge), values.get("width", edge))
    pair = (values, values) if isinstance(values, int) else tuple(values) if isinstance(values, list | tuple) else ()
    good = len(pair) == 2 and all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in pair)
    return (int(pair[0]), int(pair[1])) if good else None


def _configs(config: Any) -> Iterator[Any]:
    """A config and those inside it, outermost first."""
    pending = [config]
    for each in pending:
        yield each
        inner = [getattr(each, name, None) for name in getattr(each, "sub_configs", {})]
        inner += [value for value in vars(each).values() if hasattr(value, "to_dict") and hasattr(value, "model_type")]
        pending += [one for one in inner if one is not None and not any(one is known for known in pending)]


def _whisper_frames(numbers: Numbers) -> int | None:
    positions = numbers.get("max_source_positions")
    return None if positions is None else 2 * positions


def _speech2text_bins(numbers: Numbers) -> int | None:
    bins, channels = numbers.get("input_feat_per_channel"), numbers.get("input_channels")
    return None if bins is None else bins * (channels or 1)


def _clap_frames(numbers: Numbers) -> int | None:
    """The frames that the processor makes; without one, those of ten seconds, if the spectrogram has room for them."""
    samples, hop = numbers.processed("nb_max_samples"), numbers.processed("hop_length")
    if samples and hop:
        return samples // hop + 1
    size, bins = numbers.get("spec_size"), numbers.get("num_mel_bins")
    return None if size is None or bins is None else min(1001, size * (size // bins))


_DERIVED = {
    "whisper_frames": _whisper_frames,  # two of them for each position
    "speech2text_bins": _speech2text_bins,
    "clap_frames": _clap_frames,
}
