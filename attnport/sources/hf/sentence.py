"""A sentence-transformers folder: the modules behind its transformer, its prompts, and a cross-encoder's activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnport.artifacts import Prompts
from attnport.errors import IntegrityError, SpecError, first_line
from attnport.sources.hf.files import (
    SETTINGS,
    TRANSFORMER_SETTINGS,
    WEIGHTS,
    check_inside,
    check_link,
    modules_of,
    read_json,
)
from attnport_bundle.format.strict_json import decode

TOKENS, SENTENCE, SCORES = "token_embeddings", "sentence_embedding", "scores"
_ALONE = "Export the transformer alone: hf: with a copy of the folder without modules.json."
_PREFIX = "pooling_mode_"
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""The ways to pool, in the order in which sentence-transformers joins the vectors of several."""
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

    def behind(
        self, named: dict[str, torch.Tensor], mask_BT: torch.Tensor, pooled_mask_BT: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """What a transformer gives, its last hidden state alone if that is embedded, and what the steps make of it."""
        if not self.embeds:
            return {**named, **self.named(named, mask_BT)}
        hidden = named["last_hidden_state"]
        return {"last_hidden_state": hidden, **self.named({TOKENS: hidden}, mask_BT, pooled_mask_BT)}

    def named(
        self, first: dict[str, torch.Tensor], mask_BT: torch.Tensor, pooled_mask_BT: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The tensors that the steps give, by name; those of `first` that no step replaced are left out."""
        known = dict(first)
        for step, (takes, gives) in zip(self.steps, self.ways, strict=True):
            pooling = isinstance(step, Pooling)
            known[gives] = step(known[takes], mask_BT, pooled_mask_BT) if pooling else step(known[takes])
        return {name: known[name] for name in dict.fromkeys(gives for _, gives in self.ways)}


def read_head(folder: Path, config: Any) -> Head | None:
    """What `modules.json` says comes behind the transformer, or the activation of a cross-encoder; None for neither.

    Raises:
        SpecError: a module or mode of sentence-transformers is not supported, or the files have another format.
    """
    modules = modules_of(folder)
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
    values = _read(folder, SETTINGS)
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
    values = _read(folder, SETTINGS)
    named = values.get("prompts") or {}
    default = values.get("default_prompt_name") or ""
    if (
        not isinstance(named, dict)
        or not all(isinstance(text, str) for text in named.values())
        or not isinstance(default, str)
        or (default and default not in named)
    ):
        raise SpecError(f"{folder / SETTINGS}: its prompts are no texts by name.")
    try:
        return decode(Prompts, {"named": named, "default": default}, "prompts")
    except IntegrityError as err:
        raise SpecError(f"{folder / SETTINGS}: {err}") from err


def read_limit(folder: Path, longest: int | None) -> int | None:
    """The most tokens of a text in sentence-transformers: the folder's `max_seq_length`, else the tokenizer's limit.

    Args:
        longest: The tokenizer's `model_max_length`; None where nothing is known of it.

    Raises:
        SpecError: the file has another format.
    """
    said = _read(folder, TRANSFORMER_SETTINGS).get("max_seq_length")
    if said is None:
        return longest
    if type(said) is not int or said < 1:
        raise SpecError(f"{folder / TRANSFORMER_SETTINGS}: got max_seq_length {said!r:.60}; expected a number above 0.")
    return said


def read_lower(folder: Path) -> bool:
    """Whether sentence-transformers puts texts into lower case, whatever the tokenizer does."""
    return bool(_read(folder, TRANSFORMER_SETTINGS).get("do_lower_case"))


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
    values = read_json(path)
    if not isinstance(values, dict):
        raise SpecError(f"{path} is not what sentence-transformers writes.")
    return values


def _read(folder: Path, name: str) -> dict[str, Any]:
    """A file beside the weights, checked by `check_links`; {} where there is none."""
    values = read_json(folder / name) if (folder / name).is_file() else {}
    if not isinstance(values, dict):
        raise SpecError(f"{folder / name} is not what sentence-transformers writes.")
    return values


class Pooling(nn.Module):
    """One vector for each sentence, of the vectors of its real tokens.

    `cls` is the first real token, wherever padding stands, `lasttoken` the last; `weightedmean` weighs a token by its
    place, from 1; several modes give their vectors side by side.

    Source: sentence-transformers' `Pooling`. A row without a real token, whose result is undefined there, gives zero.
    """

    def __init__(self, modes: Sequence[str], *, include_prompt: bool = True) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self.include_prompt = include_prompt

    def forward(
        self, hidden_BTE: torch.Tensor, attention_mask_BT: torch.Tensor, pooled_mask_BT: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Pools `[B,T,E]` over the tokens that masks `[B,T]` keep, to `[B,E]`; several modes give a multiple of E.

        Args:
            attention_mask_BT: Nonzero for real tokens.
            pooled_mask_BT: Nonzero for those of them that are pooled; None = all.
        """
        real_BT = attention_mask_BT.to(torch.bool)
        keep_BT = real_BT if pooled_mask_BT is None else real_BT & pooled_mask_BT.to(torch.bool)
        return torch.cat([self._pooled(mode, hidden_BTE, keep_BT, real_BT) for mode in self.modes], -1)

    def _pooled(
        self, mode: str, hidden_BTE: torch.Tensor, keep_BT: torch.Tensor, real_BT: torch.Tensor
    ) -> torch.Tensor:
        keep_BT1 = keep_BT.unsqueeze(-1)
        if mode == "max":
            low = torch.finfo(hidden_BTE.dtype).min
            return torch.where(keep_BT1.any(1), torch.where(keep_BT1, hidden_BTE, low).amax(1), 0.0)
        position_T = torch.arange(hidden_BTE.shape[1], device=hidden_BTE.device)
        if mode in ("cls", "lasttoken"):
            # One place holds the token and all others zero, so that the sum is the token itself.
            one_BT = position_T == (_first(keep_BT, position_T) if mode == "cls" else _last(keep_BT, position_T))
            return torch.where((one_BT & keep_BT).unsqueeze(-1), hidden_BTE, 0.0).sum(1)
        # `where`, not a product: padded rows may be large, and in half precision the sum could overflow.
        kept_BTE = torch.where(keep_BT1, hidden_BTE, 0.0)
        if mode == "weightedmean":
            place_BT = torch.where(keep_BT, position_T - _first(real_BT, position_T) + 1, 0).to(hidden_BTE.dtype)
            share_BT = place_BT / hidden_BTE.shape[1]  # the sum of places themselves could overflow too
            share_BT = share_BT / share_BT.sum(1, keepdim=True).clamp(min=1e-6)
            return (kept_BTE * share_BT.unsqueeze(-1)).sum(1)
        count_B1 = keep_BT1.sum(1).clamp(min=1).to(hidden_BTE.dtype)
        return kept_BTE.sum(1) / (count_B1.sqrt() if mode == "mean_sqrt_len_tokens" else count_B1)


def _first(keep_BT: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
    """The first position that is kept, `[B,1]`."""
    return torch.where(keep_BT, position_T, position_T.shape[0]).amin(1, keepdim=True)


def _last(keep_BT: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
    """The last position that is kept, `[B,1]`."""
    return torch.where(keep_BT, position_T, -1).amax(1, keepdim=True)


class Normalise(nn.Module):
    """Vectors of length 1; zero stays zero. Source: sentence-transformers' `Normalize`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[...,E]` to `[...,E]`."""
        # The norm is in float32, since a sum of squares overflows in half precision. The minimum is for a zero vector.
        wide = x if x.dtype == torch.float64 else x.float()
        norm = wide.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        return (wide / norm).to(x.dtype)


class Projection(nn.Module):
    """A linear layer with an activation, and what came in added where that is wanted.

    Source: sentence-transformers' `Dense`. The names of weights are those of its files.
    """

    def __init__(self, size: int, out: int, activation: nn.Module, *, bias: bool, residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(size, out, bias=bias)
        self.activation = activation
        self.residual: nn.Module | None = None
        if residual:
            self.residual = nn.Identity() if size == out else nn.Linear(size, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[...,size]` to `[...,out]`."""
        projected: torch.Tensor = self.activation(self.linear(x))
        return projected if self.residual is None else projected + self.residual(x)


class LayerNorm(nn.Module):
    """Source: sentence-transformers' `LayerNorm`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[...,E]` to `[...,E]`."""
        normed: torch.Tensor = self.norm(x)
        return normed


class Scores(nn.Module):
    """The activation of a cross-encoder; one label gives one number for each item.

    Source: sentence-transformers' `CrossEncoder.predict`.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, logits_BL: torch.Tensor) -> torch.Tensor:
        """`[B,L]` to `[B,L]`, or to `[B]` for one label."""
        scores: torch.Tensor = self.activation(logits_BL)
        return scores.squeeze(-1) if logits_BL.shape[-1] == 1 else scores
