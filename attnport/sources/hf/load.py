"""`hf:` with a folder or a hub id: transformers models of every kind, and sentence-transformers folders.

Beside plain text: encoder-decoders, vision, audio, dual towers, layout, and their parts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnport.artifacts import Dim, IOContract, ModelSpec, Source
from attnport.errors import SpecError, UsageError, first_line, nearest
from attnport.optional import require
from attnport.sources.declare import declared_arguments, observed_spec
from attnport.sources.hf.contract import contract_of, declared_name, is_plain_text, labelled, subject_of, text_contract
from attnport.sources.hf.decoding import cross_contract, past_contract
from attnport.sources.hf.files import (
    TokenizerOf,
    auto_class,
    check_config,
    check_inside,
    check_links,
    check_weights,
    folder_of,
    kind_of,
    modules_of,
    never_asking,
    read_tokenizer,
    refuse_code,
    routes_of,
)
from attnport.sources.hf.inputs import Numbers, numbers_of, read_processor
from attnport.sources.hf.modules import (
    WITH_PAST,
    HubModel,
    has_cross,
    has_past,
    make_traceable,
    mask_notes,
    module_of,
    part_of,
    run_whole,
)
from attnport.sources.hf.sentence import (
    Head,
    read_head,
    read_limit,
    read_lower,
    read_prefixes,
    read_prompts,
    read_search,
)
from attnport.sources.hf.static import SPARSE_STATIC, STATIC, load_static
from attnport.sources.parsing import parse_dims

_NAMELESS = ("", "model", "models", "checkpoint", "snapshot")


def load_hf(source: Source) -> ModelSpec:
    """The ModelSpec of a transformers model: its inputs from the forward's signature, its limits from the config.

    Args:
        source: Its SPEC is `hf:` with a folder that has a `config.json`, or a hub id. Inputs replace those that would
            be found; the model is then taken as any module is, with all of its outputs, or those that are named.

    Raises:
        UsageError: there is no such head or part; the message lists those that there are; or a part has declared
            inputs.
        SpecError: the model does not exist, its files are damaged or outside the folder, it needs code of its own, or
            its kind is not supported.
        MissingDependency: transformers is not installed.
    """
    place, dims = _place(source), source.dims
    if source.inputs and source.part:
        raise UsageError(
            f"hf:{place}: --input does not apply to --part {source.part}, whose inputs are found.",
            hint="Leave out one of them.",
        )
    found = _found(source)
    part = "" if found.is_route else source.part
    all_of_it = not source.task and not part and not source.inputs
    if all_of_it and found.modules and kind_of(found.modules[0]) in (STATIC, SPARSE_STATIC):
        return load_static(found.name(source), place, found.folder, found.modules, dims)
    read = _opened(source, found, whole=all_of_it)
    model = read.model()
    if source.inputs:
        return _as_declared(read, model, source.inputs, dims, source.outputs)
    numbers = numbers_of(read.config, read_processor(found.where), types="token_type_ids" in read.tokenizer.makes)
    if part or not is_plain_text(model, numbers):
        if read.head is not None:
            raise SpecError(
                f"hf:{place}: what sentence-transformers puts behind a {read.config.model_type} is not supported.",
                hint="Export the model alone: --task feature-extraction.",
            )
        return _of_kind(read, model, numbers, dims)
    text = HubModel(model, run_whole, head=read.head).eval()
    call, contract = text_contract(f"hf:{place}", text, read.config, read.tokenizer, dims)
    spec = _spec(read, model, contract, lambda loaded: module_of(loaded, call, read.head), dims)
    if not all_of_it:
        return spec
    limit = read_limit(found.beside, read.tokenizer.longest) if read.head is not None else None
    most = contract.dim("seq").max
    return dataclasses.replace(
        spec,
        prompts=read_prompts(found.folder),
        text_limit=limit if limit is not None and limit < most else None,
        search=read_search(found.folder, read.head, read.tokenizer, found.modules) if read.head is not None else None,
    )


def model_of(source: Source) -> Any:
    """The transformers model itself, as `load_hf` takes it where its inputs are declared; raises as that does."""
    return _opened(source, _found(source), whole=False).model()


def _place(source: Source) -> str:
    return source.text.removeprefix("hf").removeprefix(":")


@dataclasses.dataclass(frozen=True)
class _Found:
    """The folders or hub ids that hold the files of a model.

    Attributes:
        folder: The folder of sentence-transformers' files: the place itself, or the hub cache's for a hub id.
        where: The folder or hub id of the config, the weights and the tokenizer: `place`, or a folder inside.
        modules: What `modules.json` lists, or a way of its Router.
        is_route: Whether the part that was asked for is such a way.
    """

    folder: Path
    where: str
    modules: list[dict[str, Any]]
    is_route: bool

    @property
    def beside(self) -> Path:
        """The folder of the settings of the transformer."""
        return Path(self.where) if Path(self.where).is_dir() else self.folder

    def name(self, source: Source, config: Any = None) -> str:
        """The model's name."""
        place = Path(_place(source))
        own = _name(place) if place.is_dir() else place.name
        return f"{own or getattr(config, 'model_type', 'model')}{f'.{source.part}' if source.part else ''}"


def _found(source: Source) -> _Found:
    check_task(source.task)
    place = _place(source)
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
    if folder.is_dir():
        check_links(folder)
    beside = folder_of(place)
    is_route = source.part in routes_of(beside)
    modules = modules_of(beside, source.part)
    inner = str(modules[0].get("path", "")) if modules else ""
    if not inner or (beside / "config.json").is_file():
        return _Found(beside, place, modules, is_route)
    check_inside(beside, inner)
    check_links(beside / inner, beside)
    return _Found(beside, str(beside / inner), modules, is_route)


def _opened(source: Source, found: _Found, *, whole: bool) -> _Read:
    """Reads everything but the weights: config, tokenizer and the head of sentence-transformers.

    Args:
        whole: Read what sentence-transformers puts behind the model, too.
    """
    place = found.where
    if Path(place).is_dir() and not (Path(place) / "config.json").is_file():
        raise SpecError(f"hf:{place}: it has no config.json.", hint="Give the folder that save_pretrained wrote.")
    values, config = _config(place, source.trust_remote_code)
    check_weights(place, values)
    head = read_head(found.folder, config, found.modules) if whole else None
    lower, prefixes = read_lower(found.beside), read_prefixes(found.folder)
    tokenizer = read_tokenizer(place, config, lower=lower, prefixes=prefixes)
    return _Read(found.name(source, config), _place(source), config, head, tokenizer, source, place)


@dataclasses.dataclass(frozen=True)
class _Read:
    """What is known of a model besides its weights, whose place is `where`."""

    name: str
    place: str
    config: Any
    head: Head | None
    tokenizer: TokenizerOf
    source: Source
    where: str

    def model(self) -> Any:
        """The transformers model, with its weights."""
        return _model(self.where, self.config, self.head, self.source)

    def tokenizer_of(self, contract: IOContract) -> Path | str | None:
        """The tokenizer's file, if the inputs are its ids."""
        reads = any(spec.name in ("input_ids", "decoder_input_ids") for spec in contract.inputs)
        return self.tokenizer.file if reads else None


def _of_kind(read: _Read, model: Any, numbers: Numbers, dims: Sequence[str]) -> ModelSpec:
    """The ModelSpec of a model that is no plain text model, or of a part of one."""
    place, part = read.place, read.source.part
    subject = subject_of(place, model, part, numbers)
    if part == WITH_PAST and has_cross(model):
        behind = [each for each in dims if declared_name(each) not in ("past", "decoder_seq")]
        _, plain = contract_of(subject_of(place, model, "decoder", numbers), behind)
        call, contract = cross_contract(subject, plain, dims)
    elif part == WITH_PAST:
        call, contract = past_contract(subject, read.config, read.tokenizer, dims)
    else:
        call, contract = contract_of(subject, dims)

    return _spec(read, model, contract, lambda loaded: module_of(part_of(place, loaded, part)[0], call), dims)


def _spec(
    read: _Read, model: Any, contract: IOContract, module: Callable[[Any], Any], dims: Sequence[str]
) -> ModelSpec:
    """The ModelSpec of a model, or part of one, whose inputs were found.

    Args:
        read: What is known of it.
        model: It itself, which is kept until it is first asked for, and read again after that.
        contract: Its contract.
        module: Makes what is exported of a model.
        dims: `--dim` declarations.
    """
    ready = [model]
    return ModelSpec(
        read.name,
        Source(f"hf:{read.place}"),
        dataclasses.replace(contract, outputs=tuple(labelled(spec, model) for spec in contract.outputs)),
        lambda: module(ready.pop() if ready else read.model()),
        read.tokenizer_of(contract),
        observed=True,
        chat=read.tokenizer.chat if read.source.part == WITH_PAST else None,
        notes=_notes(model, read),
        fixable=_fixable(contract, dims),
    )


def _as_declared(
    read: _Read, model: Any, inputs: Sequence[str], dims: Sequence[str], outputs: Sequence[str]
) -> ModelSpec:
    """The ModelSpec of a model that is taken as a plain module, with the inputs that the user declared."""
    ready, text = [model], f"hf:{read.place}"
    given = declared_arguments(text, model, inputs, dims)
    spec = observed_spec(read.name, text, model, lambda: ready.pop() if ready else read.model(), *given, outputs)
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
    """What a user should know of the tokenizer, of the head, and of the part of the model that one graph is."""
    notes = (*filter(None, (read.tokenizer.note, _of_another_task(model, read))), *mask_notes(model))
    generates = bool(getattr(model, "can_generate", lambda: False)())
    if not generates or read.source.part not in ("", "decoder"):
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


def _of_another_task(model: Any, read: _Read) -> str:
    """A note where the checkpoint has a head of another kind, whose weights may have the same names; else ""."""
    kind, task = type(model).__name__, read.source.task
    saved = [str(name) for name in getattr(read.config, "architectures", None) or ()]
    # What was pretrained has the heads of several tasks.
    several = any(name.endswith("ForPreTraining") for name in saved)
    if not task or not saved or "For" not in kind or kind in saved or several:
        return ""
    return (
        f"the checkpoint was saved as {' or '.join(saved)}, and is taken as {kind}: its weights have the names that "
        f"this one needs, but may have been trained for another task than {task}"
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
        offline = transformers.utils.hub.is_offline_mode()
        asked = "HF_HUB_OFFLINE forbids that." if offline else "Is the machine online?"
        hint = "" if is_folder else f"There is no such folder here, so it was looked for on the hub. {asked}"
        raise SpecError(f"hf:{place}: its config cannot be read: {first_line(err)}", hint=hint) from err


def _name(folder: Path) -> str:
    """A folder's name or, if that is generic, the title of its model card; "" if there is no usable title."""
    if folder.resolve().name not in _NAMELESS:
        return folder.resolve().name
    card = folder / "README.md"
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines() if card.is_file() else []
    title = next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
    return title if re.fullmatch(r"[\w.+-]{1,80}", title) else ""


def _model(place: str, config: Any, head: Head | None, source: Source) -> Any:
    """The transformers model, with its weights."""
    kind = _kind(place, config, head, source)

    def read(attention: str | None) -> Any:
        with never_asking():
            return kind.from_pretrained(
                place,
                trust_remote_code=source.trust_remote_code,
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
    _refuse_random(place, model, sorted(report["missing_keys"]), source.task)
    make_traceable(model)
    for part in model.modules():
        own = getattr(part, "config", None)
        if own is not None and getattr(own, "use_cache", False):
            own.use_cache = False  # one pass over the whole sequence needs no cache
    return model.eval()


def _kind(place: str, config: Any, head: Head | None, source: Source) -> Any:
    """The transformers class that loads the model: that of the task or of its architecture, or an auto class."""
    transformers = require("transformers")
    embeds = head is not None and head.embeds
    if source.task and source.trust_remote_code and getattr(config, "auto_map", None):
        return getattr(transformers, auto_name(source.task))
    if source.task:
        return class_of(source.task, place, config)
    architecture = str((getattr(config, "architectures", None) or [""])[0])
    if source.trust_remote_code and getattr(config, "auto_map", None):
        return getattr(transformers, auto_class(config.to_dict(), "" if embeds else architecture))
    if head is not None and head.of_words and type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        return transformers.AutoModelForMaskedLM
    kind = None if embeds else getattr(transformers, architecture, None)
    if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
        return kind
    encoders = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    # The config that the encoder of a T5 saves by itself says that it is no encoder-decoder.
    alone = getattr(config, "is_encoder_decoder", False) or architecture.endswith("EncoderModel")
    if embeds and alone and type(config) in encoders:
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


def _attention(kind: Any) -> str | None:
    """scaled_dot_product_attention if the model supports it, since that exports as one operator; else transformers'
    own choice for each of its parts, which "eager" would overrule: its BERT misreads the bool mask of Grounding DINO.
    """
    return "sdpa" if getattr(kind, "_supports_sdpa", True) else None


_PREFIX = "AutoModel"
TASKS: dict[str, tuple[str, ...]] = {
    "feature-extraction": ("",),
    "text-classification": ("ForSequenceClassification",),
    "zero-shot-classification": ("ForSequenceClassification",),
    "token-classification": ("ForTokenClassification",),
    "question-answering": ("ForQuestionAnswering",),
    "multiple-choice": ("ForMultipleChoice",),
    "next-sentence-prediction": ("ForNextSentencePrediction",),
    "fill-mask": ("ForMaskedLM",),
    "pretraining": ("ForPreTraining",),
    "text-generation": ("ForCausalLM",),
    "text2text-generation": ("ForSeq2SeqLM",),
    "summarization": ("ForSeq2SeqLM",),
    "translation": ("ForSeq2SeqLM",),
    "table-question-answering": ("ForTableQuestionAnswering",),
    "document-question-answering": ("ForDocumentQuestionAnswering", "ForQuestionAnswering"),
    "visual-question-answering": ("ForVisualQuestionAnswering",),
    "image-to-text": ("ForImageTextToText",),
    "image-text-to-text": ("ForImageTextToText",),
    "image-feature-extraction": ("",),
    "image-classification": ("ForImageClassification",),
    "zero-shot-image-classification": ("ForZeroShotImageClassification",),
    "image-segmentation": ("ForImageSegmentation", "ForUniversalSegmentation", "ForSemanticSegmentation"),
    "semantic-segmentation": ("ForSemanticSegmentation",),
    "image-to-image": ("ForImageToImage",),
    "masked-image-modeling": ("ForMaskedImageModeling",),
    "mask-generation": ("ForMaskGeneration",),
    "keypoint-detection": ("ForKeypointDetection",),
    "keypoint-matching": ("ForKeypointMatching",),
    "depth-estimation": ("ForDepthEstimation",),
    "object-detection": ("ForObjectDetection",),
    "zero-shot-object-detection": ("ForZeroShotObjectDetection",),
    "video-classification": ("ForVideoClassification",),
    "audio-classification": ("ForAudioClassification",),
    "audio-frame-classification": ("ForAudioFrameClassification",),
    "audio-xvector": ("ForAudioXVector",),
    "automatic-speech-recognition": ("ForCTC", "ForTDT", "ForSpeechSeq2Seq"),
    "text-to-audio": ("ForTextToWaveform", "ForTextToSpectrogram"),
    "time-series-prediction": ("ForTimeSeriesPrediction",),
}
"""By task, the auto classes, without `AutoModel`, in the order in which a pipeline tries them."""


def check_task(task: str) -> None:
    """Raises UsageError for a name that is neither a task nor an auto class."""
    if task and task not in TASKS and task.removeprefix(_PREFIX) not in _heads():
        raise UsageError(
            f"--task {task}: there is no such task; there are {', '.join(TASKS)}.",
            hint=f"{nearest(task, TASKS)} A reranker is one of text-classification. An auto class of transformers will "
            "do, too: AutoModelForSequenceClassification.".lstrip(),
        )


def class_of(task: str, place: str, config: Any) -> Any:
    """The transformers class of a model for a task.

    Raises:
        UsageError: the model's type has no such head; the message lists those that it has.
    """
    for head in TASKS.get(task) or (task.removeprefix(_PREFIX),):
        if (kind := _class(head, config)) is not None:
            return kind
    known = [name for name, heads in TASKS.items() if any(_class(head, config) is not None for head in heads)]
    raise UsageError(
        f"--task {task}: transformers has no such head for hf:{place}, a {config.model_type}; it has "
        f"{', '.join(known) or 'none'}.",
        hint="Name one of these, or leave --task out for the checkpoint's own.",
    )


def auto_name(task: str) -> str:
    """The first auto class of a task, for models with code of their own."""
    return _PREFIX + (TASKS.get(task) or (task.removeprefix(_PREFIX),))[0]


def _heads() -> list[str]:
    return [head for heads in TASKS.values() for head in heads]


def _class(head: str, config: Any) -> Any:
    mapping = getattr(getattr(require("transformers"), _PREFIX + head, None), "_model_mapping", {})
    if type(config) not in mapping:
        return None
    found = mapping[type(config)]
    if not isinstance(found, list | tuple):
        return found
    # As transformers chooses among the classes of one config: by its architectures.
    by_name = {kind.__name__: kind for kind in found}
    return next((by_name[name] for name in config.architectures or () if name in by_name), found[0])
