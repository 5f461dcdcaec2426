"""`hf:` with a folder or a hub id: transformers models of every kind, and sentence-transformers folders.

Beside plain text: encoder-decoders, vision, audio, dual towers, layout, and their parts.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.budget import Budget
from attnport.dims import Dim
from attnport.errors import SpecError, UsageError, first_line
from attnport.optional import require
from attnport.sources.choices import Choices
from attnport.sources.declare import declared_spec, example, narrow_dims, observe_outputs
from attnport.sources.hf_cross import ENCODER as ENCODER_WITH_PAST
from attnport.sources.hf_cross import cross_contract, encoded, has_cross, stepped
from attnport.sources.hf_exportable import settle
from attnport.sources.hf_files import (
    auto_class,
    check_config,
    check_links,
    check_weights,
    never_asking,
    refuse_code,
)
from attnport.sources.hf_inputs import FORMS, SMALL, Inputs, Trial, choose, usual_dims
from attnport.sources.hf_modules import ENCODER_MASK, Kind, TextModel, decoder, reads_text, tower, whole, with_inputs
from attnport.sources.hf_numbers import Numbers, read_processor
from attnport.sources.hf_past import PART as WITH_PAST
from attnport.sources.hf_past import cached, has_past, past_contract
from attnport.sources.hf_tasks import auto_name, check_task, class_of
from attnport.sources.hf_text import MAX_POSITIONS, text_contract
from attnport.sources.hf_tokenizer import TokenizerOf, read_tokenizer
from attnport.sources.parsing import parse_dims
from attnport.sources.ranges import range_by_trying
from attnport.sources.sentence import Head, folder_of, read_head, read_limit, read_lower, read_prompts

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
    dims = narrow_dims(dims, [each for each in declared if _declared_name(each) in {dim.name for dim in dims}
                              or _declared_name(each) not in _IMAGE])  # fmt: skip
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


def _declared_name(declaration: str) -> str:
    return declaration.partition("=")[0].strip()


_NAMELESS = ("", "model", "models", "checkpoint", "snapshot")


def load_hf(
    place: str, dims: Sequence[str], choices: Choices, declared: Sequence[str] = (), outputs: Sequence[str] = ()
) -> ModelSpec:
    """The ModelSpec of a transformers model: its inputs from the forward's signature, its limits from the config.

    Args:
        place: A folder with `config.json`, or a hub id.
        dims: `--dim` declarations that narrow the model's own ranges.
        choices: The head and the part to take, and whether code of the model's own may run.
        declared: `--input` declarations in place of the inputs that would be found; the model is then taken as any
            module is, with all of its outputs.
        outputs: The outputs of such a model that are wanted; none = all.

    Raises:
        UsageError: there is no such head or part; the message lists those that there are; or a part has declared
            inputs.
        SpecError: the model does not exist, its files are damaged or outside the folder, it needs code of its own, or
            its kind is not supported.
        MissingDependency: transformers is not installed.
    """
    if declared and choices.part:
        raise UsageError(
            f"hf:{place}: --input does not apply to --part {choices.part}, whose inputs are found.",
            hint="Leave out one of them.",
        )
    whole = not choices.task and not choices.part and not declared
    read = _opened(place, choices, whole=whole)
    model = read.model()
    if declared:
        return _as_declared(read, model, declared, dims, outputs)
    numbers = Numbers(read.config, read_processor(place), {})
    if choices.part or not is_plain_text(model, numbers):
        if read.head is not None:
            raise SpecError(
                f"hf:{place}: what sentence-transformers puts behind a {read.config.model_type} is not supported.",
                hint="Export the model alone: --task feature-extraction.",
            )
        return _of_kind(read, model, numbers, dims)
    module = TextModel(model, read.head).eval()
    contract = _contract(read, module, dims)
    spec = _spec(read, model, contract, module, lambda: TextModel(read.model(), read.head).eval(), dims)
    if not whole:
        return spec
    folder = folder_of(place)
    limit = read_limit(folder, read.tokenizer.longest) if read.head is not None else None
    most = contract.dim("seq").max
    return dataclasses.replace(
        spec, prompts=read_prompts(folder), text_limit=limit if limit is not None and limit < most else None
    )


def model_of(place: str, choices: Choices) -> Any:
    """The transformers model itself, as `load_hf` takes it where its inputs are declared; raises as that does."""
    return _opened(place, choices, whole=False).model()


def _opened(place: str, choices: Choices, *, whole: bool) -> _Read:
    """Reads everything but the weights: config, tokenizer and the head of sentence-transformers.

    Args:
        whole: Read what sentence-transformers puts behind the model, too.
    """
    check_task(choices.task)
    if not place:
        raise SpecError("hf: got no folder after the colon.", hint="Write hf:FOLDER, with the folder of config.json.")
    transformers = require("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = Path(place)
    if not folder.is_dir() and (folder.is_absolute() or place.startswith(".") or place.count("/") != 1):
        raise SpecError(
            f"hf:{place}: there is no such folder.",
            hint="Give a folder with config.json, or the id of a model of the hub: hf:OWNER/NAME.",
        )
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise SpecError(f"hf:{place}: it has no config.json.", hint="Give the folder that save_pretrained wrote.")
    if folder.is_dir():
        check_links(folder)
    values, config = _config(place, choices.trust_remote_code)
    check_weights(place, values)
    beside = folder_of(place)
    head = read_head(beside, config) if whole else None
    name = _name(folder) or config.model_type if folder.is_dir() else place.rpartition("/")[2]
    if choices.part:
        name = f"{name}.{choices.part}"
    return _Read(name, place, config, head, read_tokenizer(place, config, lower=read_lower(beside)), choices)


@dataclasses.dataclass(frozen=True)
class _Read:
    """What is known of a model besides its weights."""

    name: str
    place: str
    config: Any
    head: Head | None
    tokenizer: TokenizerOf
    choices: Choices

    def model(self) -> Any:
        """The transformers model, with its weights."""
        return _model(self.place, self.config, self.head, self.choices)

    def tokenizer_of(self, contract: IOContract) -> Path | str | None:
        """The tokenizer's file, if the inputs are its ids."""
        reads = any(spec.name in ("input_ids", "decoder_input_ids") for spec in contract.inputs)
        return self.tokenizer.file if reads else None


def _of_kind(read: _Read, model: Any, numbers: Numbers, dims: Sequence[str]) -> ModelSpec:
    """The ModelSpec of a model that is no plain text model, or of a part of one."""
    part = read.choices.part
    kind = kind_of(read.place, model, part)
    text = text_of(read.config, types="token_type_ids" in read.tokenizer.makes)
    if part == WITH_PAST and has_cross(model):
        behind = [each for each in dims if each.partition("=")[0].strip() not in ("past", "decoder_seq")]
        plain = kind_contract(read.place, kind_of(read.place, model, "decoder"), "decoder", numbers, text, behind)
        contract = cross_contract(read.place, kind, plain, dims)
    elif part == WITH_PAST:
        contract = past_contract(read.place, kind, read.config, read.tokenizer, dims)
    else:
        contract = kind_contract(read.place, kind, part, numbers, text, dims)
    if part == WITH_PAST:
        with_inputs(kind, [spec.name for spec in contract.inputs])
    names = [spec.name for spec in contract.inputs]

    def make() -> Any:
        made = kind_of(read.place, read.model(), part)
        made.constants, made.least = kind.constants, kind.least
        return with_inputs(made, names).eval()

    return _spec(read, model, contract, kind.eval(), make, dims)


def _spec(
    read: _Read, model: Any, contract: IOContract, module: Any, make: Callable[[], Any], dims: Sequence[str]
) -> ModelSpec:
    """The ModelSpec of a model, or part of one, whose inputs were found."""
    ready = [module]
    return ModelSpec(
        read.name,
        Source(f"hf:{read.place}"),
        contract,
        lambda: ready.pop() if ready else make(),
        read.tokenizer_of(contract),
        observed=True,
        notes=_notes(model, read),
        fixable=_fixable(contract, dims),
    )


def _as_declared(
    read: _Read, model: Any, inputs: Sequence[str], dims: Sequence[str], outputs: Sequence[str]
) -> ModelSpec:
    """The ModelSpec of a model that is taken as a plain module, with the inputs that the user declared."""
    ready = [model]
    spec = declared_spec(
        read.name, f"hf:{read.place}", model, lambda: ready.pop() if ready else read.model(), inputs, dims, outputs
    )
    return dataclasses.replace(
        spec,
        tokenizer=read.tokenizer_of(spec.io),
        notes=(*spec.notes, *_notes(model, read)),
        fixable=_fixable(spec.io, dims),
    )


def _fixable(contract: IOContract, declared: Sequence[str]) -> tuple[Dim, ...]:
    """The dims that nobody declared, each at its usual size; a batch at one item."""
    sizes = {dim.name: dim.at_least(1 if dim.name == "batch" else dim.opt) for dim in contract.dims}
    known = parse_dims(declared)
    return tuple(Dim(name, size, size, size) for name, size in sizes.items() if name not in known)


def _notes(model: Any, read: _Read) -> tuple[str, ...]:
    """What a user should know of the tokenizer, and of the part of the model that one graph is."""
    notes = (read.tokenizer.note,) if read.tokenizer.note else ()
    generates = bool(getattr(model, "can_generate", lambda: False)())
    if not generates or read.choices.part not in ("", "decoder"):
        return notes
    further = (
        "with --with-past it generates token by token"
        if has_past(model) or has_cross(model)
        else "generating token by token with a cache is not part of attnport yet"
    )
    return (
        *notes,
        f"{type(model).__name__} generates: this is one pass over whole sequences, without a cache; {further}",
    )


def _config(place: str, trust_remote_code: bool) -> tuple[dict[str, Any], Any]:
    """The model's config, as written and as transformers reads it, after a check that it names nothing elsewhere."""
    transformers = require("transformers")
    try:
        values, _ = transformers.PreTrainedConfig.get_config_dict(place)
        if not isinstance(values, dict):
            raise ValueError(f"got a {type(values).__name__}; expected an object.")
        check_config(place, values)
        if not trust_remote_code and values.get("model_type") not in transformers.CONFIG_MAPPING:
            refuse_code(place, values)
        with never_asking():
            return values, transformers.AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, TypeError, RecursionError) as err:
        is_folder = Path(place).is_dir()
        hint = (
            "" if is_folder else "There is no such folder here, so it was looked for on the hub. Is the machine online?"
        )
        raise SpecError(f"hf:{place}: its config cannot be read: {first_line(err)}", hint=hint) from err


def _name(folder: Path) -> str:
    """A folder's name or, if that is generic, the title of its model card; "" if there is no usable title."""
    if folder.resolve().name not in _NAMELESS:
        return folder.resolve().name
    card = folder / "README.md"
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines() if card.is_file() else []
    title = next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
    return title if re.fullmatch(r"[\w.+-]{1,80}", title) else ""


def _model(place: str, config: Any, head: Head | None, choices: Choices) -> Any:
    """The transformers model, with its weights."""
    kind = _kind(place, config, head is not None and head.embeds, choices)

    def read(attention: str | None) -> Any:
        with never_asking():
            return kind.from_pretrained(
                place,
                trust_remote_code=choices.trust_remote_code,
                use_safetensors=True,  # never a pickle
                dtype="float32",
                attn_implementation=attention,
                output_loading_info=True,
            )

    try:
        try:
            model, report = read(_attention(kind))
        except ValueError as err:
            if "attention implementation" not in str(err):
                raise
            model, report = read(None)  # a part of it, as a convolutional backbone, supports none
    except Exception as err:  # safetensors and transformers raise a dozen types of error for damaged or missing files
        raise SpecError(f"hf:{place}: its weights cannot be loaded: {first_line(err)}") from err
    _refuse_random(place, model, sorted(report["missing_keys"]), choices.task)
    settle(model)
    for part in model.modules():
        own = getattr(part, "config", None)
        if own is not None and getattr(own, "use_cache", False):
            own.use_cache = False  # one pass over the whole sequence needs no cache
    return model.eval()


def _kind(place: str, config: Any, embeds: bool, choices: Choices) -> Any:
    """The transformers class that loads the model: that of the task or of its architecture, or an auto class."""
    transformers = require("transformers")
    if choices.task and choices.trust_remote_code and getattr(config, "auto_map", None):
        return getattr(transformers, auto_name(choices.task))
    if choices.task:
        return class_of(choices.task, place, config)
    architecture = str((getattr(config, "architectures", None) or [""])[0])
    if choices.trust_remote_code and getattr(config, "auto_map", None):
        return getattr(transformers, auto_class(config.to_dict(), "" if embeds else architecture))
    kind = None if embeds else getattr(transformers, architecture, None)
    if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
        return kind
    encoders = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    if embeds and getattr(config, "is_encoder_decoder", False) and type(config) in encoders:
        return transformers.AutoModelForTextEncoding  # as sentence-transformers takes the encoder of a T5
    if type(config) not in transformers.MODEL_MAPPING:
        refuse_code(place, config.to_dict())
    return transformers.AutoModel


def _refuse_random(place: str, model: Any, missing: Sequence[str], task: str) -> None:
    """Refuses missing weights, which transformers fills with random numbers; a pooler is removed, as it is not used."""
    if missing and all(name.startswith("pooler.") for name in missing):
        model.pooler = None
    elif missing:
        raise SpecError(
            f"hf:{place}: its weights lack {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f", which {type(model).__name__} needs.",
            hint=f"The checkpoint was not trained for {task}: give one that was, or leave --task out."
            if task
            else "The checkpoint is for another architecture, or was cut; see architectures in config.json.",
        )


def _attention(kind: Any) -> str:
    """scaled_dot_product_attention if the model supports it, since that exports as one operator."""
    return "sdpa" if getattr(kind, "_supports_sdpa", True) else "eager"


def _contract(read: _Read, module: TextModel, declared: Sequence[str]) -> IOContract:
    inputs, ranges, masks = text_contract(read.config, module, read.tokenizer, declared)
    outputs = observe_outputs(module.named, inputs, ranges, f"hf:{read.place}")
    return IOContract(inputs, outputs, ranges, masks, positions="absolute")
