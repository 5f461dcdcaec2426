"""What a model of transformers says of how its tokens are chosen."""

from __future__ import annotations

from typing import Any

from attnport_bundle.format.decoder import Rules


def rules_of(model: Any, vocab: int) -> Rules:
    """The rules of a model's generation config, with transformers' own values where it has none."""
    how = model.generation_config

    def said(name: str, otherwise: Any) -> Any:
        found = getattr(how, name, None)
        return otherwise if found is None else found

    tokens = {
        ours: known_tokens(said(theirs, ()), vocab)
        for ours, theirs in (
            ("suppress", "suppress_tokens"),
            ("suppress_first", "begin_suppress_tokens"),
            ("forced_first", "forced_bos_token_id"),
            ("forced_last", "forced_eos_token_id"),
        )
    }
    words = [known_tokens(word, vocab) for word in said("bad_words_ids", ())]
    least = said("min_new_tokens", None)
    return Rules(
        **tokens,
        bad_words=tuple(word for word, given in zip(words, said("bad_words_ids", ()), strict=True)
                        if word and len(word) == len(given)),
        min_length=int(said("min_length", 0)) if least is None else 0,
        min_tokens=int(least or 0),
        repetition_penalty=float(said("repetition_penalty", 1.0)),
        no_repeat_ngram=int(said("no_repeat_ngram_size", 0)),
        beams=int(said("num_beams", 1)),
        length_penalty=float(said("length_penalty", 1.0)),
        early_stopping=said("early_stopping", False) is True,
        renormalize=said("renormalize_logits", False) is True,
    )  # fmt: skip


def known_tokens(given: Any, vocab: int) -> tuple[int, ...]:
    """One token id or several, without those that are none of the vocabulary's."""
    every = given if isinstance(given, list | tuple) else [given]
    return tuple(token for token in every if isinstance(token, int) and 0 <= token < vocab)
