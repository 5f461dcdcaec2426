"""The inputs of transformers models: one table from an input's name to its forms, and how to choose among them.

Which inputs a model takes follows from its forward; their sizes follow from its config and its processor's config.
Where these leave several forms, such as raw samples or frames of features, the model is run, and the first that works
is taken.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, first_line
from attnport.example_values import example
from attnport.masks import MaskSpec
from attnport.sources.hf.files import find, read_json
from attnport.sources.parsing import parse_input

if TYPE_CHECKING:
    from attnport.sources.hf.modules import HubModel


FORMS: dict[str, tuple[str, ...]] = {
    "input_ids": ("int64[batch,seq]:high={vocab}",),
    "token_type_ids": ("int64[batch,seq]:high={types}",),
    # Corners of boxes, x0, y0, x1, y1, each a row of a table; Bros computes sines of them.
    "bbox": ("int64[batch,seq,4]:high={max_2d_position_embeddings}", "float32[batch,seq,4]", "float32[batch,seq,8]"),
    "xpath_tags_seq": ("int64[batch,seq,{max_depth}]:high={max_xpath_tag_unit_embeddings}",),
    "xpath_subs_seq": ("int64[batch,seq,{max_depth}]:high={max_xpath_subs_unit_embeddings}",),
    "pixel_values": (
        "float32[batch,{num_channels|in_channels|in_chans|image_channels=3},height,width]",
        "float32[batch,{num_frames|frames_per_clip|tubelet_frames},{num_channels|in_channels|in_chans=3},height,width]",
        "float32[batch,2,{num_channels|in_channels|in_chans=3},height,width]",  # pairs of images, to be matched
    ),
    "task_inputs": ("int64[batch,{task_seq_len}]:high={text_encoder_vocab_size}",),
    "pixel_values_videos": ("float32[batch,{frames_per_clip|num_frames},{in_chans|num_channels=3},height,width]",),
    "input_values": (
        "float32[batch,samples]",
        "float32[batch,{max_length},{num_mel_bins}]",
        "float32[batch,{audio_channels=1},samples]",
    ),
    "input_features": (
        "float32[batch,{num_mel_bins|num_mel_features},{whisper_frames}]",
        # Configs of Gemma's towers have no number of bins; their processors make 128.
        "float32[batch,frames,{feature_projection_input_dim|speech2text_bins|num_mel_bins|input_feat_dim|input_dim=128}]",
        "float32[batch,{num_mel_bins|num_mel_features},frames]",
        "float32[batch,{patch_embed_input_channels},{clap_frames},{num_mel_bins}]",
        "float32[batch,4,{clap_frames},{num_mel_bins}]",
        "float32[batch,frames,{first_width}]",  # of bins with their differences, several frames in one
    ),
    "is_longer": ("bool[batch,1]",),
    "visual_feats": ("float32[batch,visual,{visual_feat_dim}]",),
    "visual_pos": ("float32[batch,visual,{visual_pos_dim}]",),
    "visual_embeds": ("float32[batch,visual,{visual_embedding_dim}]",),
    # Perceiver, without a preprocessor and with one for text; an encoder of speech before any decoder.
    "inputs": ("float32[batch,seq,{d_model}]", "int64[batch,seq]:high={vocab}", "float32[batch,samples]"),
    "past_values": ("float32[batch,{context_length},{num_input_channels}]", "float32[batch,{context_length}]"),
    "encoder_hidden_states": (),
    "decoder_input_ids": (
        "int64[batch,decoder_seq]:high={decoder_vocab}",
        "int64[batch,decoder_seq,{num_channels}]:high={decoder_vocab}",  # codes of sound, several at a time
    ),
    "decoder_input_values": ("float32[batch,decoder_seq,{num_mel_bins}]",),
}
"""By input, its forms as `--input` declares them. `{a|b=3}` is the first number that the configs have, or 3."""
MASKS = {
    "attention_mask": ("input_ids", "inputs", "input_values", "input_features"),
    "encoder_attention_mask": ("encoder_hidden_states",),
    "decoder_attention_mask": ("decoder_input_ids", "decoder_input_values"),
}
"""By mask, the inputs of which the first has its dims."""
_WITH_TEXT = ("token_type_ids", "bbox", "xpath_tags_seq", "xpath_subs_seq", "decoder_input_ids",
              "encoder_hidden_states")  # fmt: skip
"""Inputs that are given wherever the forward takes them; others beside the main one only where they are needed."""
_OF_THEIR_OWN = {"pixel_values": "images", "input_features": "audios", "input_values": "audios"}
"""The batch of what stands beside texts in models that compare every one with every text."""
_AUDIO = ("input_values", "input_features")
SMALL = 8
MAX_POSITIONS = 131072
"""The longest sequence by default, whatever a config says."""
DECLARE = 'Declare what its forward takes: --input "states=float32[batch,seq,16]", an --input for each.'
_SMALL_DIMS = {"batch": 2, "choices": 3}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Declared inputs, and the masks among them."""

    tensors: tuple[TensorSpec, ...]
    masks: tuple[MaskSpec, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of their dims, in order."""
        return tuple(dict.fromkeys(dim for spec in self.tensors for dim in spec.dims if isinstance(dim, str)))

    def renamed(self, name: str, old: str, new: str | int) -> Inputs:
        """With another dim in place of `old`, in the input `name` alone, or in all for ""."""
        tensors = tuple(
            dataclasses.replace(spec, dims=tuple(new if dim == old else dim for dim in spec.dims))
            if name in ("", spec.name)
            else spec
            for spec in self.tensors
        )
        return dataclasses.replace(self, tensors=tensors)

    def without(self, name: str) -> Inputs:
        """Without an input, and without its mask."""
        return Inputs(
            tuple(spec for spec in self.tensors if spec.name != name),
            tuple(mask for mask in self.masks if mask.input != name),
        )


class Trial:
    """Runs a model to see what it takes."""

    def __init__(self, module: HubModel, usual: Mapping[str, int]) -> None:
        self.module, self.usual = module, dict(usual)
        self.problem = ""

    def feeds(self, inputs: Inputs, **sizes: int) -> dict[str, torch.Tensor]:
        """Example tensors, of small sizes for the dims that are not in `sizes`."""
        every = {dim: self.usual.get(dim, _SMALL_DIMS.get(dim, SMALL)) for dim in inputs.dims} | sizes
        return {spec.name: _example(spec, every) for spec in inputs.tensors}

    def outputs(self, feeds: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        """The outputs; None, and `problem` says why, where the model does not run."""
        try:
            with torch.no_grad():
                return self.module.named(**feeds)
        except Exception as err:  # transformers raises whatever it likes for inputs that do not fit
            self.problem = f"{type(err).__name__}: {first_line(err)}"
            return None

    def runs(self, inputs: Inputs, **sizes: int) -> bool:
        """Whether the model runs and returns something."""
        return bool(self.outputs(self.feeds(inputs, **sizes)))


def _example(spec: TensorSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    """Ones for masks; ids that differ, since a mask over equal tokens may change nothing.

    The first ids are left out where there are others: one is that of padding, which may have no position.
    """
    return example(spec, sizes, least=None if spec.high is None or spec.name in MASKS else min(2, spec.high - 1))


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The inputs that a model may take, before it is run.

    Attributes:
        main: Its main input.
        forms: By input, in the order of the table, its forms, of which all numbers are known; at least one each.
        masks: The masks that its forward takes, each with the inputs of which the first that is given has its dims.
        alone: Whether the inputs that need not be given are left out at first; otherwise all are given.
    """

    main: str
    forms: Mapping[str, tuple[TensorSpec, ...]]
    masks: Mapping[str, Sequence[str]]
    alone: bool

    def tries(self) -> Iterator[Inputs]:
        """What to run the model with, in order.

        All inputs or the needed ones, each in its first form; then with one of them in another form, left out or added.
        """
        others = [name for name in self.forms if name != self.main and name not in _WITH_TEXT]
        left_out = [[], others] if others else [[]]
        for out in reversed(left_out) if self.alone else left_out:
            names = [name for name in self.forms if name not in out]
            yield self._inputs(names)
            for name in names:
                for form in self.forms[name][1:]:
                    yield self._inputs(names, {name: form})
            for other in others:
                yield self._inputs([name for name in self.forms if (name in names) != (name == other)])

    def _inputs(self, names: Sequence[str], chosen: Mapping[str, TensorSpec] = MappingProxyType({})) -> Inputs:
        return Inputs(tuple(chosen.get(name, self.forms[name][0]) for name in names))

    def masked(self, inputs: Inputs) -> Inputs:
        """Inputs with the padding masks that the forward takes, each behind the input that it is of."""
        tensors, masks = list(inputs.tensors), []
        for name, subjects in self.masks.items():
            subject = next((spec for each in subjects for spec in inputs.tensors if spec.name == each), None)
            dims = subject.dims[1:] if subject else ()
            positions = next((dim for dim in dims if isinstance(dim, str) and dim != "choices"), None)
            if subject is None or positions is None:
                continue
            lead = subject.dims[: subject.dims.index(positions)] if subject.name == "input_ids" else subject.dims[:1]
            spec = TensorSpec(name, "int64", (*lead, positions), high=2)
            tensors.insert(tensors.index(subject) + 1, spec)
            if len(spec.dims) == 2:
                masks.append(MaskSpec(("padding",), name))
        return Inputs(tuple(tensors), tuple(masks))


def candidates(
    text: str, accepted: Sequence[str], main: str, numbers: Numbers, other: Mapping[str, Sequence[str]]
) -> Candidates:
    """The inputs that a model may take, by the table.

    Args:
        other: Forms that replace those of the table, by input; none = it is not given.

    Raises:
        SpecError: no form of its main input is known.
    """
    forms = {name: _known_forms(name, other.get(name, FORMS[name]), numbers) for name in FORMS if name in accepted}
    if not forms.get(main):
        raise SpecError(
            f"{text}: what its main input {main!r} looks like is not known; its forward takes {', '.join(accepted)}.",
            hint=DECLARE,
        )
    without_mask = () if numbers.takes_audio_mask else _AUDIO
    masks = {name: [each for each in of if each not in without_mask] for name, of in MASKS.items() if name in accepted}
    # Where tokens stand for images, their number is in the ids.
    return Candidates(main, {name: specs for name, specs in forms.items() if specs}, masks, numbers.placeholders)


def _known_forms(name: str, forms: Sequence[str], numbers: Numbers) -> tuple[TensorSpec, ...]:
    """The forms of an input of which all numbers are known."""
    known = []
    for form in forms:
        values = {part: numbers.first(part) for part in re.findall(r"\{([^}]*)\}", form)}
        if None not in values.values():
            for part, value in values.items():
                form = form.replace(f"{{{part}}}", str(value))
            known.append(parse_input(f"{name}={form}")[0])
    return tuple(dict.fromkeys(known))


def choose(text: str, known: Candidates, trial: Trial) -> Inputs:
    """The first inputs with which a model runs, with masks or else without, of those that it may take.

    Raises:
        SpecError: it runs with none.
    """
    first = ""
    for plain in dict.fromkeys(known.tries()):
        for inputs in dict.fromkeys((known.masked(plain), plain)):
            if trial.runs(inputs):
                return _own_batch(_used(inputs, trial), known.main, trial)
            first = first or f"{', '.join(map(str, inputs.tensors))}: {trial.problem}"
    raise SpecError(
        f"{text}: it does not run on the inputs that its forward and its config suggest: {first}", hint=DECLARE
    )


def _used(inputs: Inputs, trial: Trial) -> Inputs:
    """Without the masks that change nothing: a forward may take one for training alone."""
    for mask in inputs.masks:
        feeds = trial.feeds(inputs)
        hidden = dict(feeds)
        name = str(mask.input)
        hidden[name] = feeds[name].clone()
        hidden[name][:, : hidden[name].shape[1] // 2] = 0
        shown, changed = trial.outputs(feeds), trial.outputs(hidden)
        if shown and changed and all(_equal(shown[key], changed.get(key)) for key in shown):
            inputs = inputs.without(name)
    return inputs


def _equal(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _own_batch(inputs: Inputs, main: str, trial: Trial) -> Inputs:
    """With a batch of its own for images or sounds beside texts, where the model compares each with each."""
    names = [spec.name for spec in inputs.tensors]
    if main != "input_ids" or "decoder_input_ids" in names:
        return inputs
    own = [(name, batch) for name, batch in _OF_THEIR_OWN.items() if name in names]
    if len(own) != 1:
        return inputs
    name, batch = own[0]
    apart = inputs.renamed(name, "batch", batch)
    if "is_longer" in names:
        apart = apart.renamed("is_longer", "batch", batch)
    return apart if trial.runs(apart, **{batch: 3}) and trial.runs(apart, **{batch: 1}) else inputs


def usual_dims(inputs: Inputs, longest: Mapping[str, int], usual: Mapping[str, int]) -> Iterator[Dim]:
    """The usual range of every dim, of which trying may leave a part.

    Args:
        usual: The sides of images, and the samples of a second.
    """
    high, wide, samples = usual.get("height", 224), usual.get("width", 224), usual.get("samples", 16000)
    several = any(len(spec.dims) == 5 for spec in inputs.tensors)  # images in an item
    table = {
        "batch": Dim("batch", 1, 2, 16) if several else Dim("batch", 1, 8, 64),
        "images": Dim("images", 1, 2, 16),
        "audios": Dim("audios", 1, 2, 16),
        "choices": Dim("choices", 1, 4, 8),
        "visual": Dim("visual", 1, 36, 64),
        "samples": Dim("samples", 1, samples, 10 * samples),
        "frames": Dim("frames", 1, 256, 2048),
        "height": Dim("height", min(32, high), high, max(2 * high, 512)),
        "width": Dim("width", min(32, wide), wide, max(2 * wide, 512)),
    }
    for name in inputs.dims:
        if name in longest:
            yield Dim(name, 1, min(128 if name == "seq" else 32, longest[name]), longest[name])
        else:
            yield table[name]


_PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
_PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index", "video_token_id")


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers in a model's configs, by the names that models have for them.

    Attributes:
        configs: Its config and those inside it, outermost first.
        processor: The config of its processor, as `read_processor` reads it.
        further: Numbers that are not in a config, or that replace what is there.
        longest: The most tokens of the texts that it reads and writes, by dim.
    """

    configs: tuple[Any, ...]
    processor: Mapping[str, Any]
    further: Mapping[str, int | None]
    longest: Mapping[str, int]

    def first(self, names: str) -> int | None:
        """The first number of `a|b=3`; None where there is none."""
        names, _, otherwise = names.partition("=")
        numbers = (self.get(name) for name in names.split("|"))
        return next((number for number in numbers if number is not None), int(otherwise) if otherwise else None)

    def get(self, name: str) -> int | None:
        """A number above zero, of the outermost config that has it."""
        if name in self.further:
            return self.further[name]
        if name in _DERIVED:
            return _DERIVED[name](self)
        values = (getattr(config, name, None) for config in self.configs)
        return next((value for value in values if type(value) is int and value > 0), None)

    def processed(self, name: str) -> int | None:
        """A number of the processor's config."""
        value = self.processor.get(name)
        return value if type(value) is int else None

    @property
    def placeholders(self) -> bool:
        """Whether tokens among the ids stand for parts of images or sounds."""
        return any(isinstance(getattr(config, name, None), int) for config in self.configs for name in _PLACEHOLDERS)

    @property
    def takes_audio_mask(self) -> bool:
        """Whether the model was trained with a mask over its samples: its processor, or else its config, says it."""
        said = self.processor.get("return_attention_mask")
        if isinstance(said, bool):
            return said
        # wav2vec 2.0 with normalisation by groups was trained with zeros in place of a mask.
        return all(getattr(config, "feat_extract_norm", "layer") != "group" for config in self.configs)

    @property
    def samples_per_frame(self) -> int:
        """How many raw samples become one frame; 320, as of wav2vec 2.0, where the config does not say."""
        strides = next(filter(None, (getattr(config, "conv_stride", None) for config in self.configs)), None)
        return math.prod(strides) if isinstance(strides, list | tuple) else 320

    @property
    def convolves_images(self) -> bool:
        """Whether images may have any size: the config names none, or there is no attention in the model.

        Attention over windows of dynamic sizes makes conditions that torch takes hours to simplify.
        """
        heads = ("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads")
        attends = any(getattr(config, name, None) for config in self.configs for name in heads)
        return self._model_image_size is None or not attends

    @property
    def _model_image_size(self) -> tuple[int, int] | None:
        names = ("image_size", "input_size", "img_size", "crop_size")
        sizes = (_size(getattr(config, name, None)) for config in self.configs for name in names)
        return next(filter(None, sizes), None)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of images: as the model's config has them, or else as the processor makes them."""
        cropped = self.processor.get("crop_size") if self.processor.get("do_center_crop", True) else None
        return self._model_image_size or _size(cropped) or _size(self.processor.get("size"))


def numbers_of(config: Any, processor: Mapping[str, Any], *, types: bool) -> Numbers:
    """The numbers in a model's configs, and of the texts that it reads and those that it writes.

    Args:
        types: Whether its tokenizer makes type ids.
    """
    reads = _inside(config, "text_config", "encoder", "encoder_config")
    writes = _inside(config, "decoder", "text_config", "decoder_config")
    reads = reads if hasattr(reads, "vocab_size") else writes
    rows = getattr(reads, "type_vocab_size", None)
    further = {
        "vocab": getattr(reads, "vocab_size", None),
        "types": rows if types and isinstance(rows, int) and rows > 0 else None,
        "decoder_vocab": getattr(writes, "vocab_size", None),
    }
    longest = {"seq": _positions(reads), "decoder_seq": _positions(writes)}
    return Numbers(tuple(_configs(config)), processor, further, longest)


def _inside(config: Any, *names: str) -> Any:
    """The first of these configs inside a config, or else the config itself."""
    inner = (getattr(config, name, None) for name in names)
    return next((each for each in inner if hasattr(each, "to_dict")), config)


def _positions(config: Any) -> int:
    """How many positions a config has, at most; the tables may have fewer that can be used."""
    names = ("max_target_positions", "max_position_embeddings", "n_positions", "max_text_positions", "max_length")
    numbers = (getattr(config, name, None) for name in names)
    return min(next((each for each in numbers if isinstance(each, int) and each > 1), 512), MAX_POSITIONS)


def read_processor(place: str) -> dict[str, Any]:
    """The configs of a model's processors as one, those inside others flattened; {} without any.

    Raises:
        SpecError: one cannot be read.
    """
    found: dict[str, Any] = {}
    for path in filter(None, (find(place, name) for name in _PROCESSORS)):
        values = read_json(path)
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
