"""`hf:` with a folder or a hub id: transformers text and vision models, and sentence-transformers folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.errors import SpecError, first_line
from attnport.masks.spec import MaskSpec
from attnport.optional import require
from attnport.sources.declare import narrow_dims, observe_outputs
from attnport.sources.hf_files import (
    auto_class,
    check_config,
    check_links,
    check_weights,
    find,
    never_asking,
    refuse_code,
)
from attnport.sources.hf_modules import TextModel, VisionModel
from attnport.sources.hf_text import text_contract
from attnport.sources.pooling import Pooling, read_pooling

_NAMELESS = ("", "model", "models", "checkpoint", "snapshot")


def load_hf(place: str, dims: Sequence[str], *, trust_remote_code: bool = False) -> ModelSpec:
    """The ModelSpec of a transformers model: its inputs from the forward's signature, its limits from the config.

    Args:
        place: A folder with `config.json`, or a hub id.
        dims: `--dim` declarations that narrow the model's own ranges.
        trust_remote_code: Run the Python code that its `config.json` names instead of transformers' classes.

    Raises:
        SpecError: the model does not exist, its files are damaged or outside the folder, it needs code of its own, or
            its kind is not supported.
        MissingDependency: transformers is not installed.
    """
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
    values, config = _config(place, trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise SpecError(
            f"hf:{place}: {config.model_type} is an encoder with a decoder; one pass over one sequence is supported.",
            hint="Write a factory that returns its encoder (get_encoder), and declare its inputs with --input.",
        )
    check_weights(place, values)
    pooling = read_pooling(folder) if folder.is_dir() else None

    def make() -> TextModel | VisionModel:
        return _module(place, config, pooling, trust_remote_code).eval()

    module = make()
    contract = _contract(place, config, module, dims)
    ready = [module]
    name = _name(folder) or config.model_type if folder.is_dir() else place.rpartition("/")[2]
    tokenizer = find(place, "tokenizer.json")
    source = Source(f"hf:{place}")
    return ModelSpec(name, source, contract, lambda: ready.pop() if ready else make(), tokenizer, observed=True)


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


def _module(place: str, config: Any, pooling: Pooling | None, trust_remote_code: bool) -> TextModel | VisionModel:
    kind = _kind(place, config, pooling, trust_remote_code)
    try:
        with never_asking():
            model, report = kind.from_pretrained(
                place,
                trust_remote_code=trust_remote_code,
                use_safetensors=True,  # never a pickle
                dtype="float32",
                attn_implementation=_attention(kind),
                output_loading_info=True,
            )
    except Exception as err:  # safetensors and transformers raise a dozen types of error for damaged or missing files
        raise SpecError(f"hf:{place}: its weights cannot be loaded: {first_line(err)}") from err
    _refuse_random(place, model, sorted(report["missing_keys"]))
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False  # one pass over the whole sequence needs no cache
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        return VisionModel(model)
    if main != "input_ids":
        raise SpecError(
            f"hf:{place}: its main input is {main!r}; input_ids and pixel_values are supported.",
            hint="Write a factory that returns the module, and declare its inputs with --input.",
        )
    return TextModel(model, pooling)


def _kind(place: str, config: Any, pooling: Pooling | None, trust_remote_code: bool) -> Any:
    """The transformers class that loads the model: that of its architecture, or an auto class."""
    transformers = require("transformers")
    architecture = str((getattr(config, "architectures", None) or [""])[0])
    if trust_remote_code and getattr(config, "auto_map", None):
        return getattr(transformers, auto_class(config.to_dict(), "" if pooling else architecture))
    kind = None if pooling else getattr(transformers, architecture, None)
    if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
        return kind
    if type(config) not in transformers.MODEL_MAPPING:
        refuse_code(place, config.to_dict())
    return transformers.AutoModel


def _refuse_random(place: str, model: Any, missing: Sequence[str]) -> None:
    """Refuses missing weights, which transformers fills with random numbers; a pooler is removed, as it is not used."""
    if missing and all(name.startswith("pooler.") for name in missing):
        model.pooler = None
    elif missing:
        raise SpecError(
            f"hf:{place}: its weights lack {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f", which {type(model).__name__} needs.",
            hint="The checkpoint is for another architecture, or was cut; see architectures in config.json.",
        )


def _attention(kind: Any) -> str:
    """scaled_dot_product_attention if the model supports it, since that exports as one operator."""
    return "sdpa" if getattr(kind, "_supports_sdpa", True) else "eager"


def _contract(place: str, config: Any, module: TextModel | VisionModel, declared: Sequence[str]) -> IOContract:
    if isinstance(module, VisionModel):
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        inputs: tuple[TensorSpec, ...] = (
            TensorSpec("pixel_values", "float32", ("batch", config.num_channels, height, width)),
        )
        ranges: tuple[Dim, ...] = (Dim("batch", 1, 8, 64),)
        masks: tuple[MaskSpec, ...] = ()
    else:
        inputs, ranges, masks = text_contract(config, module)
    ranges = narrow_dims(ranges, declared)
    outputs = observe_outputs(module.named, inputs, ranges, f"hf:{place}")
    return IOContract(inputs, outputs, ranges, masks, positions="absolute")
