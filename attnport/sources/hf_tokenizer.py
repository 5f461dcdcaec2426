"""A model's tokenizer, as transformers loads it: its file, and the inputs that it makes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnport.errors import first_line
from attnport.optional import require
from attnport.sources.hf_files import find, never_asking

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
_ENDLESS = 1 << 31
"""transformers says 10**30 where it knows no limit."""


@dataclass(frozen=True)
class TokenizerOf:
    """What is known of a model's tokenizer.

    Attributes:
        file: `tokenizer.json`, or its text; None where there is none.
        makes: The names of the inputs that it makes.
        known: Whether a tokenizer lies beside the weights; else `makes` is that of the class for the model's type.
        note: What a user should know of it, or "".
        longest: The most tokens of a text that it makes unless it is told otherwise; None = as many as there are.
    """

    file: Path | str | None
    makes: tuple[str, ...]
    known: bool
    note: str = ""
    longest: int | None = None


def read_tokenizer(place: str, config: Any, *, lower: bool = False) -> TokenizerOf:
    """The tokenizer of a folder or a hub id; none of its own Python code is run.

    What is written is the tokenizer as transformers sets it up, since `tokenizer_config.json` changes what is in
    `tokenizer.json`: special tokens, and the side and the token of padding. Where transformers cannot load it, the file
    is taken as it is.

    Args:
        place: The folder or the id.
        config: The model's config.
        lower: Texts are in lower case, as sentence-transformers' `do_lower_case` has it.
    """
    file = find(place, FILE)
    if file is None and find(place, CONFIG) is None:
        return TokenizerOf(None, _usual_inputs(config.model_type), known=False)
    try:
        with never_asking(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer: Any = require("transformers").AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            backend = tokenizer.backend_tokenizer
    except Exception as err:  # of a dozen types: a damaged file, a package that is missing, code of its own
        note = (
            f"transformers cannot load the tokenizer ({first_line(err)}); {FILE} is taken as it is, and its inputs are "
            f"taken to be the usual ones of a {config.model_type}"
        )
        return TokenizerOf(file, _usual_inputs(config.model_type), known=False, note=note)
    names = tuple(tokenizer.model_input_names)
    if file is None and not any(find(place, name) for name in tokenizer.vocab_files_names.values()):
        return TokenizerOf(None, names, known=True)
    if tokenizer.pad_token_id is not None:
        backend.enable_padding(
            direction=tokenizer.padding_side,
            pad_id=tokenizer.pad_token_id,
            pad_type_id=tokenizer.pad_token_type_id,
            pad_token=tokenizer.pad_token,
        )
    if lower:
        _lower(backend)
    longest = int(tokenizer.model_max_length)
    return TokenizerOf(backend.to_str(pretty=True), names, known=True, longest=longest if longest < _ENDLESS else None)


def _usual_inputs(model_type: str) -> tuple[str, ...]:
    """What the tokenizer class of a model's type makes by default."""
    transformers = require("transformers")
    named = transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type)
    name = next((each for each in (named if isinstance(named, tuple | list) else (named,)) if each), "")
    try:
        return tuple(getattr(transformers, name).model_input_names)
    except (AttributeError, ImportError):  # there is no such class, or a package that it needs is not installed
        return tuple(transformers.PreTrainedTokenizerBase.model_input_names)


def _lower(backend: Any) -> None:
    from tokenizers import normalizers

    before = backend.normalizer
    if before is not None and any(mark in _state(before) for mark in ('"Lowercase"', '"lowercase":true')):
        return
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([before] if before is not None else [])])


def _state(normalizer: Any) -> str:
    state = normalizer.__getstate__()
    return (state.decode() if isinstance(state, bytes) else str(state)).replace(" ", "")
