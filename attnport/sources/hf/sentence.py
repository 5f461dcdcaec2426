"""A sentence-transformers folder: the modules behind its transformer, its prompts, and a cross-encoder's activation.

A text has one vector, as of embedders; or one with a place for each word of a vocabulary or for each of many features,
most of them zero (SPLADE, CSR); or one for each of its tokens (ColBERT).
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnport.artifacts import Prompts, Search
from attnport.errors import IntegrityError, SpecError, first_line
from attnport.sources.hf.files import (
    METADATA,
    SETTINGS,
    TRANSFORMER_SETTINGS,
    WEIGHTS,
    TokenizerOf,
    check_inside,
    check_link,
    kind_of,
    modules_of,
    read_json,
)
from attnport_bundle.format.strict_json import decode

TOKENS, SENTENCE, SCORES, SPARSE = "token_embeddings", "sentence_embedding", "scores", "sparse_embedding"
FIRST = ("Transformer", "MLMTransformer", "StaticEmbedding", "SparseStaticEmbedding")
PYLATE = "ColBERT"
"""What PyLate calls the kind of its models."""
_OF_TOKENS = ("MultiVectorEncoder", PYLATE)
_PREFIXES = {"query": "query_prefix", "document": "document_prefix"}
_PYLATE = (*_PREFIXES.values(), "query_length", "document_length", "attend_to_expansion_tokens",
           "attend_to_mask_tokens", "do_query_expansion", "skiplist_words")  # fmt: skip
"""Settings of which one is in every folder of PyLate's."""
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
        of_tokens: Whether a text has a vector for each of its tokens, of which the reader takes those that count.
        attended_mask: Whether an input says which tokens are attended to: those that make a query longer need not be.
    """

    def __init__(
        self,
        steps: list[nn.Module],
        ways: list[tuple[str, str]],
        *,
        of_tokens: bool = False,
        attended_mask: bool = False,
    ) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.ways = ways
        self.of_tokens, self.attended_mask = of_tokens, attended_mask

    @property
    def of_words(self) -> bool:
        """Whether the scores of words that a masked language model gives for each token go in."""
        return any(isinstance(step, SpladePooling) for step in self.steps)

    @property
    def sparse(self) -> bool:
        """Whether most places of a text's vector are zero."""
        return self.of_words or any(isinstance(step, SparseAutoEncoder) for step in self.steps)

    @property
    def embeds(self) -> bool:
        """Whether the transformer's own vectors go in, and not what another head made of them."""
        return self.of_tokens or (self.ways[0][0] == TOKENS and not self.of_words)

    @property
    def pooled_mask(self) -> bool:
        """Whether a mask of the tokens that are pooled is an input: of a prompt, only some may count."""
        return any(isinstance(step, Pooling) and not step.include_prompt for step in self.steps)

    def behind(
        self, named: dict[str, torch.Tensor], mask_BT: torch.Tensor, pooled_mask_BT: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """What a transformer gives, its last hidden state alone if that is embedded, and what the steps make of it."""
        if not self.embeds and not self.of_words:
            return {**named, **self.named(named, mask_BT)}
        hidden = named["logits" if self.of_words else "last_hidden_state"]
        if self.sparse or self.of_tokens:
            found = {TOKENS: hidden, **self.named({TOKENS: hidden}, mask_BT, pooled_mask_BT)}
            return {SPARSE: found[SENTENCE]} if self.sparse else {TOKENS: found[TOKENS]}
        return {"last_hidden_state": hidden, **self.named({TOKENS: hidden}, mask_BT, pooled_mask_BT)}

    def named(
        self, first: dict[str, torch.Tensor], mask_BT: torch.Tensor, pooled_mask_BT: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The tensors that the steps give, by name; those of `first` that no step replaced are left out."""
        known = dict(first)
        for step, (takes, gives) in zip(self.steps, self.ways, strict=True):
            pooling, words = isinstance(step, Pooling), isinstance(step, SpladePooling)
            masks = (mask_BT, pooled_mask_BT) if pooling else (mask_BT,) if words else ()
            known[gives] = step(known[takes], *masks)
        return {name: known[name] for name in dict.fromkeys(gives for _, gives in self.ways)}


def read_head(folder: Path, config: Any, listed: Sequence[Mapping[str, Any]] | None = None) -> Head | None:
    """What `modules.json` says comes behind the transformer, or the activation of a cross-encoder; None for neither.

    Args:
        listed: Of a Router, the modules of one of its ways; None = those of `modules.json`.

    Raises:
        SpecError: a module or mode of sentence-transformers is not supported, or the files have another format.
    """
    modules = modules_of(folder) if listed is None else listed
    kinds = [kind_of(module) for module in modules]
    if modules and kinds[0] not in FIRST:
        raise SpecError(f"{folder}: got modules {', '.join(kinds)}; expected a Transformer first.", hint=_ALONE)
    of_tokens = "MultiVectorMask" in kinds or _settings(folder).get("model_type") in _OF_TOKENS
    steps: list[nn.Module] = []
    ways: list[tuple[str, str]] = []
    known = {SENTENCE if modules and "Static" in kinds[0] else TOKENS}
    for at, (module, kind) in enumerate(zip(modules[1:], kinds[1:], strict=True), 1):
        if kind in ("Dropout", "MultiVectorMask"):  # the reader chooses tokens
            continue
        if kind not in _READERS:
            raise SpecError(f"{folder}: sentence-transformers module {kind} is not supported.", hint=_ALONE)
        place = str(module.get("path", f"{at}_{kind}"))
        values = _config(folder, place, needed=kind != "Normalize")
        steps.append(_READERS[kind](folder, place, values))
        pools = kind in ("Pooling", "SpladePooling")
        usual = TOKENS if pools or (of_tokens and kind == "Dense") else SENTENCE
        takes = TOKENS if pools else str(values.get("module_input_name") or usual)
        gives = SENTENCE if pools else str(values.get("module_output_name") or takes)
        if takes not in known:
            raise SpecError(
                f"{folder}: got modules {', '.join(kinds)}: {kind} takes {takes}, and none before it gives that.",
                hint=_ALONE,
            )
        known.add(gives)
        ways.append((takes, gives))
    if of_tokens:
        if SENTENCE in known:
            raise SpecError(f"{folder}: got modules {', '.join(kinds)}; expected vectors of tokens alone.", hint=_ALONE)
        if _is_stanford(folder):
            steps.insert(0, _stanford(folder))
            ways.insert(0, (TOKENS, TOKENS))
        if _settings(folder).get("model_type") == PYLATE:  # whose code does this behind its modules
            steps.append(Normalise())
            ways.append((TOKENS, TOKENS))
        expansion = _expansion(folder, _of_transformer(folder, modules))
        return Head(steps, ways, of_tokens=True, attended_mask=expansion is not None and not expansion["attend"])
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
    values = _settings(folder)
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
    values = _settings(folder)
    named = values.get("prompts") or {}
    for name, prefix in _PREFIXES.items():
        if isinstance(named, dict) and isinstance(text := values.get(prefix), str):
            named = {**named, name: text + str(named.get(name) or "").removeprefix(text)}
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


def read_search(
    folder: Path,
    head: Head | None,
    tokenizer: TokenizerOf,
    modules: Sequence[Mapping[str, Any]],
    *,
    sparse: bool = False,
) -> Search:
    """The settings of a search: how two vectors are compared, and which vectors and tokens count.

    Args:
        modules: What `modules.json` lists.
        sparse: Whether vectors are sparse though no part of the head makes them so.

    Raises:
        SpecError: the files have another format, or name a token that the tokenizer does not have.
    """
    values, own = _settings(folder), _of_transformer(folder, modules)
    sparse, of_tokens = sparse or (head is not None and head.sparse), head is not None and head.of_tokens
    similarity = values.get("similarity_fn_name") or ("dot" if sparse else "cosine")
    if of_tokens:  # as the library, which takes those of one vector for a leftover
        similarity = similarity if similarity in ("maxsim", "meanmaxsim") else "maxsim"
    sizes = [step.active for step in head.steps if isinstance(step, SparseAutoEncoder)] if head is not None else []
    found: dict[str, Any] = {"similarity": similarity}
    found |= {f"{role}_limit": {**values, **own}.get(f"{role}_length") for role in ("query", "document")}
    found |= {"active": values.get("max_active_dims") or next(iter(sizes), None)} if sparse else {}
    if of_tokens:
        found |= _of_tokens(folder, tokenizer, modules, own)
    try:
        return decode(Search, found, "search", own=True)
    except IntegrityError as err:
        raise SpecError(f"{folder / SETTINGS}: {err}") from err


def _of_transformer(folder: Path, modules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of the transformer, which may have a folder of its own."""
    return _read(folder / str(modules[0].get("path", "")) if modules else folder, TRANSFORMER_SETTINGS)


def _of_tokens(
    folder: Path, tokenizer: TokenizerOf, modules: Sequence[Mapping[str, Any]], own: Mapping[str, Any]
) -> dict[str, Any]:
    """The attributes of `Search` of a model with a vector for each token."""
    from tokenizers import Tokenizer

    masks = [module for module in modules if kind_of(module) == "MultiVectorMask"]
    values = _config(folder, str(masks[0].get("path", "")), needed=True) if masks else _settings(folder)
    if values.get("keep_only_token_ids"):
        raise SpecError(f"{folder}: keep_only_token_ids is of pictures, which are not supported.", hint=_ALONE)
    words = values.get("skiplist_words")
    words = list(string.punctuation) if words is None and not masks else words or []
    tasks = values.get("skiplist_tasks") or ["document"]
    text = tokenizer.file.read_text(encoding="utf-8") if isinstance(tokenizer.file, Path) else tokenizer.file or ""
    known = Tokenizer.from_str(text)
    skipped = [known.token_to_id(str(word)) for word in words]
    found = {
        "skipped": sorted({one for one in skipped if one is not None}),
        "skipped_of": [tasks] if isinstance(tasks, str) else tasks,
    }
    if (expansion := _expansion(folder, own)) is None:
        return found
    token = expansion.get("token")
    made = tokenizer.expanding if token is None else known.token_to_id(str(token))
    if made is None:
        raise SpecError(f"{folder}: its tokenizer has no token {token or 'of a mask'!r} to make queries longer.")
    if known.padding and known.padding["direction"] == "left":
        raise SpecError(f"{folder}: queries are made longer, and padding stands before them.", hint=_ALONE)
    if expansion.get("strategy") not in ("fixed", "min"):
        raise SpecError(f"{folder}: got query_expansion {expansion}; expected the strategy fixed or min.", hint=_ALONE)
    return found | {
        "expansion": {
            "token": made,
            "length": expansion.get("length"),
            "fixed": expansion["strategy"] == "fixed",
            "attended": bool(expansion.get("attend")),
        },
    }


def _expansion(folder: Path, own: Mapping[str, Any]) -> dict[str, Any] | None:
    """What makes queries longer: sentence-transformers' `query_expansion`, also in the words of PyLate; None = nothing.

    Source: sentence-transformers' `MultiVectorEncoder._parse_model_config`.
    """
    settings = _settings(folder)
    said = own.get("query_expansion", settings.get("query_expansion"))
    if "query_expansion" in own or "query_expansion" in settings:
        return {"attend": False, **said} if isinstance(said, dict) else None
    if not any(name in settings for name in _PYLATE) or settings.get("do_query_expansion") is False:
        return None
    attend = settings.get("attend_to_expansion_tokens", settings.get("attend_to_mask_tokens"))
    return {"strategy": "fixed", "attend": bool(attend), "length": settings.get("query_length") or 32}


def read_prefixes(folder: Path) -> tuple[str, ...]:
    """What PyLate puts before a query and before a document, each as one token where the tokenizer has such."""
    values = _settings(folder)
    return tuple(str(values[name]) for name in (*_PREFIXES.values(),) if values.get(name))


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


def _splade(folder: Path, place: str, values: Mapping[str, Any]) -> nn.Module:
    strategy, activation = values.get("pooling_strategy", "max"), values.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise SpecError(
            f"{folder}: got SPLADE's {strategy!r} of {activation!r}; expected max or sum, of relu or log1p_relu.",
            hint=_ALONE,
        )
    return SpladePooling(strategy, twice=activation == "log1p_relu")


def _auto_encoder(folder: Path, place: str, values: Mapping[str, Any]) -> nn.Module:
    try:
        sizes = [int(values[name]) for name in ("input_dim", "hidden_dim", "k")]
        step = SparseAutoEncoder(*sizes, normalise=bool(values.get("normalize", False)))
    except (KeyError, TypeError, ValueError, RuntimeError) as err:
        raise SpecError(f"{folder / place / 'config.json'} is not what sentence-transformers writes: {err!r}.") from err
    # Of the encoder's weights, which the decoder shares, a file has one.
    names = {name: name for name in ("pre_bias", "encoder.weight", "latent_bias")}
    return _weighted(folder, place, step, {**names, "decoder.linear.weight": "encoder.weight"})


def _stanford(folder: Path) -> nn.Module:
    """The projection of Stanford's ColBERT."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            weight = file.get_tensor("linear.weight").float()
        step = Projection(weight.shape[1], weight.shape[0], nn.Identity(), bias=False, residual=False)
        step.linear.load_state_dict({"weight": weight})
    except (SafetensorError, RuntimeError, OSError, IndexError) as err:
        raise SpecError(f"{folder / WEIGHTS}: its projection cannot be loaded: {first_line(err)}") from err
    return step


def _layer_norm(folder: Path, place: str, values: Mapping[str, Any]) -> nn.Module:
    size = values.get("dimension")
    if not isinstance(size, int) or size < 1:
        raise SpecError(f"{folder / place / 'config.json'}: got dimension {size!r}; expected a number.")
    return _weighted(folder, place, LayerNorm(size))


def _weighted(folder: Path, place: str, step: nn.Module, names: Mapping[str, str] | None = None) -> nn.Module:
    """A step with the weights of its folder: all of them, or those with names here, by the step's own names."""
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
        tensors = load_file(path)
        own = names or {name: name for name in tensors}
        step.load_state_dict({own[name]: one.float() for name, one in tensors.items() if name in own})
    except (SafetensorError, RuntimeError, OSError) as err:
        raise SpecError(f"{path}: its weights cannot be loaded: {first_line(err)}") from err
    return step


_READERS = {
    "Pooling": _pooling,
    "Normalize": lambda folder, place, values: Normalise(),
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "SpladePooling": _splade,
    "SparseAutoEncoder": _auto_encoder,
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


def _settings(folder: Path) -> dict[str, Any]:
    """What `config_sentence_transformers.json` says, or, in PyLate's words, the settings of Stanford's ColBERT.

    Source: sentence-transformers' `MultiVectorEncoder._maybe_load_stanford_metadata`.
    """
    if (folder / SETTINGS).is_file() or not _is_stanford(folder):
        return _read(folder, SETTINGS)
    values = _read(folder, METADATA)
    return {
        "model_type": PYLATE,
        "query_prefix": f"{values.get('query_token_id') or '[unused0]'} ",
        "document_prefix": f"{values.get('doc_token_id') or '[unused1]'} ",
        "query_length": values.get("query_maxlen"),
        "document_length": values.get("doc_maxlen"),
        "attend_to_expansion_tokens": values.get("attend_to_mask_tokens"),
        "skiplist_words": None if values.get("mask_punctuation", True) else [],
    }


def _is_stanford(folder: Path) -> bool:
    """Whether the folder has no modules, and a ColBERT with its projection among the weights."""
    named = _read(folder, "config.json").get("architectures") or ()
    return "HF_ColBERT" in named and not (folder / "modules.json").is_file()


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


class SpladePooling(nn.Module):
    """One number for each word of the vocabulary, of the scores that a masked language model gives it at each token.

    Source: sentence-transformers' `SpladePooling` (SPLADE v2: Formal et al., 2021).
    """

    def __init__(self, strategy: str, *, twice: bool) -> None:
        super().__init__()
        self.strategy, self.twice = strategy, twice

    def forward(self, logits_BTV: torch.Tensor, attention_mask_BT: torch.Tensor) -> torch.Tensor:
        """`[B,T,V]` to `[B,V]`, of the tokens that a mask `[B,T]` keeps."""
        kept_BTV = torch.where(attention_mask_BT.to(torch.bool).unsqueeze(-1), logits_BTV, 0.0)
        if self.strategy == "max":  # the logarithm of the largest is the largest logarithm
            return self._activated(kept_BTV.amax(1))
        return self._activated(kept_BTV).sum(1)

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.log1p(torch.relu(x))
        return torch.log1p(x) if self.twice else x


class SparseAutoEncoder(nn.Module):
    """The features of a vector; the reader keeps the `active` largest of them.

    Source: sentence-transformers' `SparseAutoEncoder` (CSR: Wen et al., 2025). The names of weights are those of its
    files.
    """

    def __init__(self, size: int, features: int, active: int, *, normalise: bool) -> None:
        super().__init__()
        self.pre_bias = nn.Parameter(torch.zeros(size))
        self.encoder = nn.Linear(size, features, bias=False)
        self.latent_bias = nn.Parameter(torch.zeros(features))
        self.active, self.normalise = active, normalise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[B,size]` to `[B,features]`."""
        if self.normalise:  # in float32, as the sum of squares may overflow in half precision
            wide = x if x.dtype == torch.float64 else x.float()
            wide = wide - wide.mean(-1, keepdim=True)
            deviation = (wide.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()
            x = (wide / (deviation + 1e-5)).to(x.dtype)
        return torch.relu(self.encoder(x - self.pre_bias) + self.latent_bias)


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
