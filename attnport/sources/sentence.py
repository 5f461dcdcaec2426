"""A sentence-transformers folder: the modules behind its transformer, its prompts, and a cross-encoder's activation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnport.artifacts import Prompts
from attnport.errors import IntegrityError, SpecError, first_line
from attnport.sources.hf_files import WEIGHTS, check_link, find
from attnport.sources.pooling import MODES, LayerNorm, Normalise, Pooling, Projection, Scores
from attnport_bundle.format.strict_json import decode

TOKENS, SENTENCE, SCORES = "token_embeddings", "sentence_embedding", "scores"
_ALONE = "Export the transformer alone: hf: with a copy of the folder without modules.json."
_SETTINGS = "config_sentence_transformers.json"
_TRANSFORMER_SETTINGS = "sentence_bert_config.json"
_PREFIX = "pooling_mode_"
_OLD_MODES = {
    f"{_PREFIX}{mode}{end}": mode
    for mode, end in zip(MODES, ("_token", "_tokens", "_tokens", "", "_tokens", ""), strict=True)
}


class Head(nn.Module):
    """What comes behind the transformer, step by step: each takes a named tensor and gives one.

    Attributes:
        ways: For each step, the name of what it takes and of what it gives.
    """

    def __init__(self, steps: list[nn.Module], ways: list[tuple[str, str]]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.ways = ways

    @property
    def embeds(self) -> bool:
        """Whether the transformer's own vectors go in, and not what another head made of them."""
        return self.ways[0][0] == TOKENS

    @property
    def pooled_mask(self) -> bool:
        """Whether a mask of the tokens that are pooled is an input: of a prompt, only some may count."""
        return any(isinstance(step, Pooling) and not step.include_prompt for step in self.steps)

    def named(
        self, first: dict[str, torch.Tensor], mask_BT: torch.Tensor, pooled_mask_BT: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The tensors that the steps give, by name; those of `first` that no step replaced are left out."""
        known = dict(first)
        for step, (takes, gives) in zip(self.steps, self.ways, strict=True):
            pooling = isinstance(step, Pooling)
            known[gives] = step(known[takes], mask_BT, pooled_mask_BT) if pooling else step(known[takes])
        return {name: known[name] for name in dict.fromkeys(gives for _, gives in self.ways)}


def folder_of(place: str) -> Path:
    """The folder of the files that sentence-transformers wrote: the place itself, or the hub cache's for a hub id.

    Raises:
        SpecError: `modules.json` cannot be read, or names a place outside the folder.
    """
    folder = Path(place)
    if folder.is_dir():
        return folder
    found = [find(place, name) for name in ("config.json", "modules.json", _SETTINGS, _TRANSFORMER_SETTINGS)]
    folder = next((path.parent for path in found if path), folder)
    for step in steps_of(folder):
        check_inside(folder, step)
        for name in ("config.json", WEIGHTS):
            find(place, f"{step}/{name}")
    return folder


def steps_of(folder: Path) -> list[str]:
    """The places in `modules.json` of what comes behind the transformer, in order.

    Raises:
        SpecError: `modules.json` cannot be read.
    """
    return [str(module.get("path", "")) for module in _modules(folder)[1:]]


def check_inside(folder: Path, place: str) -> None:
    """Checks that a path of `modules.json` stays inside the folder.

    Raises:
        SpecError: it leads out of it.
    """
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise SpecError(f"{folder / 'modules.json'} names {place!r}, which is outside the folder.")


def read_head(folder: Path, config: Any) -> Head | None:
    """What `modules.json` says comes behind the transformer, or the activation of a cross-encoder; None for neither.

    Raises:
        SpecError: a module or mode of sentence-transformers is not supported, or the files have another format.
    """
    modules = _modules(folder)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if modules and kinds[0] != "Transformer":
        raise SpecError(f"{folder}: got modules {', '.join(kinds)}; expected a Transformer first.", hint=_ALONE)
    steps: list[nn.Module] = []
    ways: list[tuple[str, str]] = []
    known = {TOKENS}
    for at, (module, kind) in enumerate(zip(modules[1:], kinds[1:], strict=True), 1):
        if kind == "Dropout":
            continue
        if kind not in _READERS:
            raise SpecError(f"{folder}: sentence-transformers module {kind} is not supported.", hint=_ALONE)
        place = str(module.get("path", f"{at}_{kind}"))
        values = _config(folder, place, needed=kind != "Normalize")
        steps.append(_READERS[kind](folder, place, values))
        takes = TOKENS if kind == "Pooling" else str(values.get("module_input_name") or SENTENCE)
        gives = SENTENCE if kind == "Pooling" else str(values.get("module_output_name") or takes)
        if takes not in known:
            raise SpecError(
                f"{folder}: got modules {', '.join(kinds)}: {kind} takes {takes}, and none before it gives that.",
                hint=_ALONE,
            )
        known.add(gives)
        ways.append((takes, gives))
    activation = cross_activation(folder, config)
    if activation is not None:
        steps.append(Scores(activation))
        ways.append((SCORES if SCORES in known else "logits", SCORES))
    return Head(steps, ways) if steps else None


def cross_activation(folder: Path, config: Any) -> nn.Module | None:
    """The activation that `CrossEncoder.predict` applies; None where nothing says that the folder is a cross-encoder.

    Raises:
        SpecError: it is not one of torch's.
    """
    values = _read(folder, _SETTINGS)
    of_config = getattr(config, "sentence_transformers", None)
    is_cross = values.get("model_type") == "CrossEncoder"
    text = of_config.get("activation_fn") if isinstance(of_config, Mapping) else None
    text = text or getattr(config, "sbert_ce_default_activation_function", None)
    if is_cross:
        text = text or values.get("activation_fn")
    if not is_cross and not text and not isinstance(of_config, Mapping):
        return None
    if text:
        return _activation(folder, str(text))
    return nn.Sigmoid() if getattr(config, "num_labels", 0) == 1 else nn.Identity()


def read_prompts(folder: Path) -> Prompts:
    """The prompts of `config_sentence_transformers.json`: texts to put before a text, by their use; "" is one too.

    Raises:
        SpecError: the file has another format, or a prompt that no bundle can have.
    """
    values = _read(folder, _SETTINGS)
    named = values.get("prompts") or {}
    default = values.get("default_prompt_name") or ""
    if (
        not isinstance(named, dict)
        or not all(isinstance(text, str) for text in named.values())
        or not isinstance(default, str)
        or (default and default not in named)
    ):
        raise SpecError(f"{folder / _SETTINGS}: its prompts are no texts by name.")
    try:
        return decode(Prompts, {"named": named, "default": default}, "prompts")
    except IntegrityError as err:
        raise SpecError(f"{folder / _SETTINGS}: {err}") from err


def read_limit(folder: Path, longest: int | None) -> int | None:
    """The most tokens of a text in sentence-transformers: the folder's `max_seq_length`, else the tokenizer's limit.

    Args:
        longest: The tokenizer's `model_max_length`; None where nothing is known of it.

    Raises:
        SpecError: the file has another format.
    """
    said = _read(folder, _TRANSFORMER_SETTINGS).get("max_seq_length")
    if said is None:
        return longest
    if type(said) is not int or said < 1:
        raise SpecError(
            f"{folder / _TRANSFORMER_SETTINGS}: got max_seq_length {said!r:.60}; expected a number above 0."
        )
    return said


def read_lower(folder: Path) -> bool:
    """Whether sentence-transformers puts texts into lower case, whatever the tokenizer does."""
    return bool(_read(folder, _TRANSFORMER_SETTINGS).get("do_lower_case"))


def _modules(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "modules.json").is_file():
        return []
    modules = _json(folder / "modules.json")
    if not isinstance(modules, list) or not modules or not all(isinstance(module, dict) for module in modules):
        raise SpecError(
            f"{folder / 'modules.json'} is not what sentence-transformers writes: it is not a list of modules."
        )
    return modules


def _pooling(folder: Path, place: str, values: Mapping[str, Any]) -> nn.Module:
    said = values.get("pooling_mode")
    modes = [said] if isinstance(said, str) else said
    if modes is None:
        modes = [mode for name, mode in _OLD_MODES.items() if values.get(name)]
        modes += [name.removeprefix(_PREFIX) for name in values if name.startswith(_PREFIX) and name not in _OLD_MODES]
    if not isinstance(modes, list) or not modes or not all(mode in MODES for mode in modes):
        raise SpecError(
            f"{folder}: got pooling {modes if modes else 'none'}; expected some of {', '.join(MODES)}.", hint=_ALONE
        )
    return Pooling(modes, include_prompt=bool(values.get("include_prompt", True)))


def _dense(folder: Path, place: str, values: Mapping[str, Any]) -> nn.Module:
    try:
        step = Projection(
            int(values["in_features"]),
            int(values["out_features"]),
            _activation(folder, str(values.get("activation_function", "torch.nn.Tanh"))),
            bias=bool(values.get("bias", True)),
            residual=bool(values.get("use_residual", False)),
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as err:
        raise SpecError(f"{folder / place / 'config.json'} is not what sentence-transformers writes: {err!r}.") from err
    return _weighted(folder, place, step)


def _layer_norm(folder: Path, place: str, values: Mapping[str, Any]) -> nn.Module:
    size = values.get("dimension")
    if not isinstance(size, int) or size < 1:
        raise SpecError(f"{folder / place / 'config.json'}: got dimension {size!r}; expected a number.")
    return _weighted(folder, place, LayerNorm(size))


def _weighted(folder: Path, place: str, step: nn.Module) -> nn.Module:
    """A step with the weights of its folder."""
    path = folder / place / WEIGHTS
    check_link(folder, path)
    if not path.is_file():
        raise SpecError(
            f"{folder}: there is no {place}/{WEIGHTS}; pickled weights (.bin) are not read.",
            hint="If you trust them: sentence_transformers.SentenceTransformer(OLD).save(NEW), then hf:NEW.",
        )
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        step.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
    except (SafetensorError, RuntimeError, OSError) as err:
        raise SpecError(f"{path}: its weights cannot be loaded: {first_line(err)}") from err
    return step


_READERS = {
    "Pooling": _pooling,
    "Normalize": lambda folder, place, values: Normalise(),
    "Dense": _dense,
    "LayerNorm": _layer_norm,
}


def _activation(folder: Path, text: str) -> nn.Module:
    """A module of torch.nn by its full name, as `torch.nn.modules.activation.Tanh`."""
    kind = getattr(nn, text.rpartition(".")[2], None) if text.startswith("torch.nn.") else None
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise SpecError(
            f"{folder}: its activation {text!r} is no module of torch.nn; code of a model's own is not run.",
            hint="Write a factory that returns the module, and declare its inputs with --input.",
        )
    try:
        made: nn.Module = kind()
    except TypeError as err:
        raise SpecError(f"{folder}: its activation {text!r} cannot be made: {first_line(err)}") from err
    return made


def _config(folder: Path, place: str, *, needed: bool) -> dict[str, Any]:
    check_inside(folder, place)
    path = folder / place / "config.json"
    check_link(folder, path)
    if not needed and not path.is_file():
        return {}
    values = _json(path)
    if not isinstance(values, dict):
        raise SpecError(f"{path} is not what sentence-transformers writes.")
    return values


def _read(folder: Path, name: str) -> dict[str, Any]:
    """A file beside the weights, checked by `check_links`; {} where there is none."""
    values = _json(folder / name) if (folder / name).is_file() else {}
    if not isinstance(values, dict):
        raise SpecError(f"{folder / name} is not what sentence-transformers writes.")
    return values


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as err:
        raise SpecError(f"{path} cannot be read: {err}", hint="Fetch the folder again.") from err
