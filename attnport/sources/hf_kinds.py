"""Models of every kind beside plain text: encoder-decoders, vision, audio, dual towers, layout, and their parts."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attnport.artifacts import IOContract
from attnport.budget import Budget
from attnport.dims import Dim
from attnport.errors import SpecError, UsageError
from attnport.sources.declare import example, narrow_dims, observe_outputs
from attnport.sources.hf_cross import ENCODER as ENCODER_WITH_PAST
from attnport.sources.hf_cross import encoded, has_cross, stepped
from attnport.sources.hf_inputs import FORMS, SMALL, Inputs, Trial, choose, usual_dims
from attnport.sources.hf_modules import ENCODER_MASK, Kind, decoder, reads_text, tower, whole, with_inputs
from attnport.sources.hf_numbers import Numbers
from attnport.sources.hf_past import PART as WITH_PAST
from attnport.sources.hf_past import cached, has_past
from attnport.sources.hf_text import MAX_POSITIONS
from attnport.sources.parsing import parse_dims
from attnport.sources.ranges import range_by_trying

TOWERS = {
    "text": ("get_text_features",),
    "vision": ("get_image_features",),
    "audio": ("get_audio_features",),
    "video": ("get_video_features",),
}
"""By part, the methods that run one tower."""
_NOT_TRIED = ("batch", "choices")
_MOST_TRIED = 4096
"""A longer sequence takes too much memory to be tried; the config is believed."""
_IMAGE = ("height", "width")
_MAIN = {"text": "input_ids", "vision": "pixel_values", "audio": "input_features", "video": "pixel_values"}


@dataclasses.dataclass(frozen=True)
class Text:
    """What is known of a model's texts: the sizes of its tables, and how long its sequences may be."""

    vocab: int | None
    types: int | None
    decoder_vocab: int | None
    longest: Mapping[str, int]


def text_of(config: Any, *, types: bool) -> Text:
    """What the configs say of a model's texts, of those that it reads and those that it writes.

    Args:
        types: Whether the model's tokenizer makes type ids.
    """
    reads = _inside(config, "text_config", "encoder", "encoder_config")
    writes = _inside(config, "decoder", "text_config", "decoder_config")
    reads = reads if hasattr(reads, "vocab_size") else writes
    rows = getattr(reads, "type_vocab_size", None)
    return Text(
        getattr(reads, "vocab_size", None),
        rows if types and isinstance(rows, int) and rows > 0 else None,
        getattr(writes, "vocab_size", None),
        {"seq": _positions(reads), "decoder_seq": _positions(writes)},
    )


def _first_width(model: Any) -> int | None:
    """The features that a model's first linear layer takes."""
    widths = (getattr(module, "in_features", None) for module in model.modules())
    return next((width for width in widths if isinstance(width, int)), None)


def _inside(config: Any, *names: str) -> Any:
    """The first of these configs inside a config that is one, or else the config itself."""
    inner = (getattr(config, name, None) for name in names)
    return next((each for each in inner if hasattr(each, "to_dict")), config)


def _positions(config: Any) -> int:
    """How many positions a config has, at most; the tables may have fewer that can be used."""
    names = ("max_target_positions", "max_position_embeddings", "n_positions", "max_text_positions", "max_length")
    found = [getattr(config, name, None) for name in names]
    return min(next((each for each in found if isinstance(each, int) and each > 1), 512), MAX_POSITIONS)


def parts_of(model: Any) -> list[str]:
    """The parts that a model can be taken into."""
    parts = [part for part, methods in TOWERS.items() if any(hasattr(model, method) for method in methods)]
    if getattr(model.config, "is_encoder_decoder", False) and "encoder_outputs" in _parameters(model.forward):
        parts = ["encoder", "decoder", *parts]
    if has_cross(model):
        parts = [*parts, ENCODER_WITH_PAST, WITH_PAST]
    return [*parts, WITH_PAST] if has_past(model) else parts


def is_plain_text(model: Any, numbers: Numbers) -> bool:
    """Whether a model takes token ids with their mask and types, and nothing else."""
    others = FORMS.keys() - {"input_ids", "token_type_ids", "encoder_hidden_states"}
    accepted = set(_parameters(model.forward))
    if _main(model) != "input_ids" or "input_ids" not in accepted:
        return False
    if type(model).__name__.endswith("ForMultipleChoice"):
        return False
    # A model that marks the places of pictures or sound in its text by placeholders can run on text alone.
    return numbers.placeholders or not others & accepted


def kind_of(place: str, model: Any, part: str) -> Kind:
    """A model, or a part of it, as a module that takes tensors by name.

    Raises:
        UsageError: it has no such part; the message lists those that it has.
    """
    parts = parts_of(model)
    if part and part not in parts:
        raise UsageError(
            f"--part {part}: hf:{place}, a {type(model).__name__}, has no such part; it has "
            f"{', '.join(parts) or 'none'}.",
            hint="Name one of these, or leave --part out for the whole model." if parts else "Leave --part out.",
        )
    if part == "encoder":
        return Kind(model.get_encoder())
    if part == "decoder":
        return Kind(model, decoder)
    if part == ENCODER_WITH_PAST:
        return Kind(model, encoded)
    if part == WITH_PAST:
        return Kind(model, stepped if has_cross(model) else cached)
    if part:
        return Kind(model, tower(part, next(name for name in TOWERS[part] if hasattr(model, name))))
    return Kind(model, whole)


def kind_contract(
    place: str, kind: Kind, part: str, numbers: Numbers, text: Text, declared: Sequence[str], *, flexible: bool = True
) -> IOContract:
    """Finds the contract of a model from its forward, its configs and runs of it; sets the inputs of `kind` to it.

    Args:
        declared: `--dim` declarations; those of images make an image's sides dynamic, or fix them.
        flexible: Let an image's sides be dynamic where the model takes other sizes than that of its config.

    Raises:
        SpecError: it does not run on inputs as its forward and its configs suggest.
        UsageError: a declared dim is unknown, or the model does not take its sizes.
    """
    name = f"hf:{place}"
    wanted = parse_dims(declared)
    model: Any = kind.model
    numbers.further |= {"vocab": text.vocab, "types": text.types, "decoder_vocab": text.decoder_vocab}
    numbers.further["first_width"] = _first_width(model)
    accepted = _parameters(_called(kind, part))
    image = numbers.image_size
    sides = {side: dim.opt for side, dim in wanted.items() if side in _IMAGE}
    given: dict[str, Sequence[str]] = {}
    if part == "decoder":
        encoded = _encoded(place, model, numbers, text)
        accepted = ["encoder_hidden_states", *accepted, *([ENCODER_MASK] if encoded.masked else [])]
        given = {each: () for each in FORMS if not each.startswith("decoder_")}
        given["encoder_hidden_states"] = (encoded.form,)
        text = dataclasses.replace(text, longest={**text.longest, "seq": encoded.longest})
    if any(side in wanted and wanted[side].min < wanted[side].max for side in _IMAGE) and (
        "interpolate_pos_encoding" in accepted
    ):
        kind.constants["interpolate_pos_encoding"] = True
    multiple = type(model).__name__.endswith("ForMultipleChoice")
    if multiple:
        given = {each: [form.replace("[batch,", "[batch,choices,") for form in FORMS[each]]
                 for each in ("input_ids", "token_type_ids")}  # fmt: skip
    reader = model.get_encoder() if part == ENCODER_WITH_PAST else model
    main = "decoder_input_ids" if part == "decoder" else _MAIN.get(part) or _main(reader)
    main = main if main in accepted or part == "decoder" else next((each for each in FORMS if each in accepted), main)
    trial, inputs = _started(name, kind, accepted, main, numbers, given, image, sides)
    inputs, freed = _images(inputs, trial, wanted, image, flexible=flexible and numbers.convolves_images)
    dims = tuple(
        dim
        if dim.name in _NOT_TRIED or (dim.name in text.longest and dim.max > _MOST_TRIED)
        else _tried(dim, wanted.get(dim.name), inputs, trial)
        for dim in usual_dims(inputs, text.longest, trial.usual)
    )
    dims = narrow_dims(dims, [each for each in declared if _name(each) in {dim.name for dim in dims}
                              or _name(each) not in _IMAGE])  # fmt: skip
    if "samples" in inputs.dims and inputs.masks:
        samples = trial.usual["samples"]
        # A shorter item has no frame, and the model looks up one before its first.
        kind.least = range_by_trying(
            Dim("samples", 1, samples, samples), samples, partial(_runs, trial, inputs, "samples")
        ).min
    try:
        outputs = observe_outputs(kind.named, inputs.tensors, dims, name)
    except SpecError:
        if not freed:
            raise
        return kind_contract(place, kind, part, numbers, text, declared, flexible=False)
    with_inputs(kind, [spec.name for spec in inputs.tensors])
    return IOContract(inputs.tensors, outputs, dims, inputs.masks, positions="absolute")


def _started(
    name: str,
    kind: Kind,
    accepted: Sequence[str],
    main: str,
    numbers: Numbers,
    given: Mapping[str, Sequence[str]],
    image: tuple[int, int] | None,
    declared: Mapping[str, int],
) -> tuple[Trial, Inputs]:
    """The inputs, and a trial with sizes at which the model runs: the declared sides of images, or else `image`."""
    # What a config calls the size of images may be that of something else.
    pairs = [*((image,) if image else ()), *((side, side) for side in (224, 64, 32, 512))]
    problem: SpecError | None = None
    for side in ({**dict(zip(_IMAGE, pair, strict=True)), **declared} for pair in pairs):
        trial = Trial(kind.named, {"samples": 50 * numbers.samples_per_frame, "frames": 256, **side})
        try:
            return trial, choose(name, accepted, main, numbers, trial, given)
        except SpecError as err:
            problem = problem or err
    assert problem is not None
    raise problem


def _images(
    inputs: Inputs, trial: Trial, wanted: Mapping[str, Dim], image: tuple[int, int] | None, *, flexible: bool
) -> tuple[Inputs, bool]:
    """With the sides of images fixed where the model takes no others, or where that is declared."""
    if "height" not in inputs.dims:
        return inputs, False
    sides = {side: trial.usual[side] for side in _IMAGE}
    declared = [wanted[side] for side in _IMAGE if side in wanted]
    free = [dim for dim in declared if dim.min < dim.max]
    takes = not declared and flexible and all(
        trial.runs(inputs, **{**sides, side: sides[side] + more}) for side in _IMAGE for more in (1, 6)
    )  # fmt: skip
    if takes:
        return inputs, True
    for side in _IMAGE:
        if side not in {dim.name for dim in free}:
            inputs = inputs.renamed("", side, sides[side])
    return inputs, False


def _tried(dim: Dim, declared: Dim | None, inputs: Inputs, trial: Trial) -> Dim:
    """The part of a usual range, or of a declared one, at which the model runs.

    Raises:
        UsageError: it does not run at declared sizes.
    """

    budget = Budget(["batch"])

    def runs(size: int) -> bool:
        # A size that does not fit is left to the trial of the graph, which says so.
        return (
            budget.reach({dim.name: size}, lambda sizes: _runs(trial, inputs, dim.name, sizes[dim.name])) is not False
        )

    start = trial.usual.get(dim.name, min(SMALL, dim.max))
    if declared is None:
        return range_by_trying(dim, start, runs)
    for size in (declared.min, declared.max):
        if not runs(size):
            raise UsageError(f"--dim {declared}: the model does not run at {dim.name}={size}: {trial.problem}")
    return declared


def _runs(trial: Trial, inputs: Inputs, dim: str, size: int) -> bool:
    return trial.runs(inputs, **{"batch": 1, dim: size})


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """What an encoder gives to its decoder.

    Attributes:
        form: That of its hidden states, as an input.
        masked: Whether the decoder takes a mask of them.
        longest: How many there are at most.
    """

    form: str
    masked: bool
    longest: int


def _encoded(place: str, model: Any, numbers: Numbers, text: Text) -> _Encoded:
    """What the encoder gives."""
    encoder = kind_of(place, model, "encoder")
    contract = kind_contract(place, encoder, "encoder", numbers, text, (), flexible=False)
    hidden = next(spec for spec in contract.outputs if spec.name == "last_hidden_state")
    length = hidden.dims[1] if isinstance(hidden.dims[1], int) else "seq"
    form, longest = f"float32[batch,{length},{hidden.dims[-1]}]", text.longest["seq"]
    if reads_text(model):
        return _Encoded(form, "attention_mask" in _parameters(model.forward), longest)
    if length == "seq":
        most = {dim.name: 1 if dim.name == "batch" else dim.max for dim in contract.dims}
        found = Trial(encoder.named, most).outputs({spec.name: example(spec, most) for spec in contract.inputs})
        longest = found["last_hidden_state"].shape[1] if found else longest
    return _Encoded(form, bool(contract.masks) and ENCODER_MASK in _parameters(model.get_decoder().forward), longest)


def _called(kind: Kind, part: str) -> Callable[..., Any]:
    """What is called with the inputs."""
    model: Any = kind.model
    if part == ENCODER_WITH_PAST:
        model = model.get_encoder()
    method = next((name for name in TOWERS.get(part, ()) if hasattr(model, name)), "forward")
    called: Callable[..., Any] = getattr(model, method)
    return called


def _parameters(call: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(call).parameters)


def _main(model: Any) -> str:
    return str(getattr(model, "main_input_name", "input_ids"))


def _name(declaration: str) -> str:
    return declaration.partition("=")[0].strip()
