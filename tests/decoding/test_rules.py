"""Rules of a generation config: given to a call or kept in the contract, they lead to the tokens of transformers."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoders import END, Once, continued
from encoder_decoders import answered, pair, sounds
from representatives import representatives

import attnport
from attnport.errors import FeedError
from attnport.sources.hf.decoding import rules_of
from attnport_bundle.decoding.generate import NO_TOKEN, Options, _Beams
from attnport_bundle.errors import UsageError
from attnport_bundle.format.decoder import Rules

PROMPTS = [[5, 17, 60, 3], [44], [9, 9, 30, 71, 12, 50, 2]]
NEW = 16
ENDS = [END, 7]
NAMES = {
    "suppress": "suppress_tokens",
    "suppress_first": "begin_suppress_tokens",
    "bad_words": "bad_words_ids",
    "forced_first": "forced_bos_token_id",
    "forced_last": "forced_eos_token_id",
    "min_tokens": "min_new_tokens",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "beams": "num_beams",
    "renormalize": "renormalize_logits",
}
"""The names of rules in transformers, where they differ."""


def of_transformers(rules: dict[str, Any]) -> dict[str, Any]:
    return {NAMES.get(name, name): value[0] if name == "forced_first" else value for name, value in rules.items()}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Once:
    return Once(tmp_path_factory)


@pytest.fixture(scope="module")
def usual(artifacts: Once) -> dict[int, list[list[int]]]:
    """What follows without a rule, by the number of beams; a test takes the tokens of it that a rule is about."""
    artifact = attnport.open(artifacts("gpt2"))
    return {beams: artifact.generate(PROMPTS, max_tokens=NEW, beams=beams, stop=[END]) for beams in (1, 3)}


RULES: dict[str, Any] = {
    "repetition": lambda texts: {"repetition_penalty": 1.7},
    "repetition made likely": lambda texts: {"repetition_penalty": 0.8},
    "ngrams of 1": lambda texts: {"no_repeat_ngram": 1},
    "ngrams of 3": lambda texts: {"no_repeat_ngram": 3},
    "never": lambda texts: {"suppress": sorted({text[1] for text in texts})},
    "not at first": lambda texts: {"suppress_first": sorted({text[0] for text in texts})},
    "words": lambda texts: {"bad_words": [[texts[0][2]], texts[1][:2], texts[2][1:4], [END]]},
    "words, as probabilities": lambda texts: {"bad_words": [[texts[0][2]], texts[1][:2]], "renormalize": True},
    "first": lambda texts: {"forced_first": [31], "suppress_first": sorted({text[0] for text in texts})},
    "last": lambda texts: {"forced_last": ENDS[:1]},
    "length": lambda texts: {"min_length": 11, "stop": sorted({text[3] for text in texts})},
    "tokens": lambda texts: {"min_tokens": 6, "stop": sorted({text[3] for text in texts})},
    "early": lambda texts: {"early_stopping": True, "length_penalty": 2.0, "stop": sorted({texts[0][1], texts[1][2]})},
    "all": lambda texts: {
        "repetition_penalty": 1.3, "no_repeat_ngram": 2, "suppress": [texts[0][1]], "suppress_first": [texts[1][0]],
        "bad_words": [[texts[2][2]], texts[0][2:4]], "min_tokens": 5, "forced_last": [END],
        "stop": [END, texts[0][3]],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "beams"),
    representatives(itertools.product(RULES, [1, 3]), [*((name, 1) for name in RULES), ("all", 3), ("early", 3)]),
)
def test_a_rule_leads_to_the_tokens_of_transformers(
    artifacts: Once, usual: dict[int, list[list[int]]], name: str, beams: int
) -> None:
    rules = {"stop": [END], **RULES[name](usual[beams])}
    folder = artifacts("gpt2")
    found = attnport.open(folder).generate(PROMPTS, max_tokens=NEW, beams=beams, **rules)
    theirs = of_transformers({key: value for key, value in rules.items() if key != "stop"})
    theirs |= {"eos_token_id": rules["stop"], "num_beams": beams}
    assert found == continued(folder.parent / "weights", PROMPTS, NEW, **theirs)
    if beams > 1 or name != "early":
        without = attnport.open(folder).generate(PROMPTS, max_tokens=NEW, beams=beams, stop=rules["stop"])
        assert found != without, "the rule decides nothing here, so that the test shows nothing"


def test_drawn_tokens_keep_to_the_rules(artifacts: Once) -> None:
    artifact = attnport.open(artifacts("gpt2"))
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 3.0, "seed": 3, "stop": [], "suppress_first": [1]}
    texts = artifact.generate(PROMPTS, no_repeat_ngram=1, suppress=range(2, 70), forced_last=[END], **options)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert text[-1] == END
        assert text[0] != 1
        assert not set(text) & {*range(2, 70), *prompt}
        assert len(set(text[:-1])) == len(text[:-1])  # what is forced may be a repetition


CONFIG: dict[str, Any] = {
    "suppress": [3, 90],
    "suppress_first": [1, END],
    "bad_words": [[4], [8, 9]],
    "forced_last": [END],
    "min_length": 6,
    "repetition_penalty": 1.2,
    "no_repeat_ngram": 3,
    "beams": 2,
    "length_penalty": 2.0,
    "early_stopping": True,
    "renormalize": True,
}


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The artifacts of a model whose generation config has a rule of every kind; made once."""
    made: dict[str, tuple[Path, Path]] = {}

    def of(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            rules = CONFIG | ({"forced_first": [33]} if kind in ("bart", "marian") else {})
            made[kind] = pair(kind, tmp_path_factory.mktemp(kind), **of_transformers(rules))
        return made[kind]

    return of


@pytest.mark.parametrize("kind", representatives(("t5", "bart", "marian", "whisper"), ("bart",)))
@pytest.mark.parametrize("beams", [None, 1])
def test_the_contract_keeps_what_a_generation_config_says(configured: Any, kind: str, beams: int | None) -> None:
    decoder, encoder = map(attnport.open, configured(kind))
    rules = decoder.manifest.io.rules
    assert rules
    assert (rules.suppress, rules.bad_words, rules.beams, rules.min_length) == ((3, 90), ((4,), (8, 9)), 2, 6)
    prompts: Any = {"input_features": sounds(3)} if kind == "whisper" else PROMPTS
    given = sounds(3) if kind == "whisper" else PROMPTS
    found = decoder.generate(prompts, encoder=encoder, max_tokens=20, beams=beams)
    theirs = {} if beams is None else {"num_beams": beams}
    if kind == "whisper":  # whose own generate takes the end off
        assert [text[-1] for text in found] == [END] * 3
        found = [text[:-1] for text in found]
    assert found == answered(decoder.folder.parent / "weights", kind, given, 20, **theirs)


def test_a_call_says_otherwise(configured: Any) -> None:
    decoder, encoder = map(attnport.open, configured("bart"))
    options: dict[str, Any] = {"encoder": encoder, "max_tokens": 9}
    assert [text[0] for text in decoder.generate(PROMPTS, **options)] == [33] * 3
    first = [text[0] for text in decoder.generate(PROMPTS, forced_first=[], **options)]
    assert first != [33] * 3
    forced = decoder.generate(PROMPTS, beams=1, **options)
    begun = decoder.generate(PROMPTS, beams=1, start=[2, 33], **options | {"max_tokens": 8})
    assert begun == [text[1:] for text in forced]  # behind two tokens, none is forced
    plain = {"encoder": encoder, "beams": 1, "max_tokens": 9, "temperature": 1e-9}
    drawn = decoder.generate(PROMPTS, **{**options, "temperature": 1e-9})  # by one beam, where none are asked for
    assert drawn == decoder.generate(PROMPTS, **plain)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"beams": 0}, "beams: got 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: got 0.0"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram: got -1"),
        ({"suppress": [-1]}, "suppress: got"),
        ({"bad_words": [[]]}, "bad_words: got"),
        ({"suppress": range(101)}, NO_TOKEN),
        ({"suppress": range(101), "beams": 2}, NO_TOKEN),
        ({"suppress": range(101), "temperature": 1.0}, NO_TOKEN),
    ],
)
def test_rules_that_mean_nothing_or_leave_nothing_are_refused(
    artifacts: Once, rules: dict[str, Any], said: str
) -> None:
    with pytest.raises(FeedError, match=said):
        attnport.open(artifacts("gpt2")).generate(PROMPTS, max_tokens=9, **rules)


def test_tokens_that_no_vocabulary_has_change_nothing(artifacts: Once) -> None:
    artifact = attnport.open(artifacts("gpt2"))
    far = {"suppress": [10**9], "suppress_first": [101], "bad_words": [[10**9], [5, 101]]}
    assert artifact.generate(PROMPTS, max_tokens=6, **far) == artifact.generate(PROMPTS, max_tokens=6)


def test_a_least_number_of_new_tokens_takes_the_place_of_a_least_length() -> None:
    rules = Rules(min_length=50)
    assert rules.changed(min_tokens=3) == Rules(min_tokens=3)
    assert rules.changed(min_tokens=0) == Rules()
    assert rules.changed(min_tokens=3, min_length=9) == Rules(min_tokens=3)
    assert rules.changed(beams=3) == Rules(min_length=50, beams=3)


@pytest.mark.parametrize(("least", "length"), [(None, 9), (0, 0), (4, 0)])
def test_so_it_does_in_a_generation_config_even_if_it_is_none(least: int | None, length: int) -> None:
    config = SimpleNamespace(min_length=9, min_new_tokens=least)
    rules = rules_of(SimpleNamespace(generation_config=config), 101)
    assert (rules.min_length, rules.min_tokens) == (length, least or 0)


def test_the_last_step_does_not_end_a_search_early() -> None:
    """What it cuts may be better than a text that ends there; early stopping is about steps that do not come."""
    beams = _Beams(Options(max_tokens=2, stop=[9], rules=Rules(beams=2, early_stopping=True)))
    beams.grow(np.array([-1.0, -1.2, -1.5, -3.0]), np.array([0, 0, 0, 0]), np.array([9, 5, 6, 7]))
    assert not beams.settled()
    beams.grow(np.array([-1.3, -1.4, -2.0, -3.0]), np.array([0, 0, 1, 1]), np.array([4, 9, 4, 5]))
    assert beams.best() == [5, 4]


def test_it_does_not_do_so_in_transformers(artifacts: Once) -> None:
    folder = artifacts("gpt2")
    options: dict[str, Any] = {"early_stopping": True}
    for new in (2, 3, 5):
        found = attnport.open(folder).generate(PROMPTS, max_tokens=new, beams=3, stop=[91], **options)
        theirs = {"eos_token_id": [91], "num_beams": 3, **options}
        assert found == continued(folder.parent / "weights", PROMPTS, new, **theirs)


@pytest.mark.parametrize("power", [1e308, -1e308])
def test_a_length_penalty_beyond_what_floats_hold_is_no_error(artifacts: Once, power: float) -> None:
    found = attnport.open(artifacts("gpt2")).generate(PROMPTS, max_tokens=4, beams=3, length_penalty=power)
    assert all(0 < len(text) <= 4 for text in found)


@pytest.mark.parametrize("new", [1, 3])
def test_every_token_may_be_an_end(artifacts: Once, new: int) -> None:
    found = attnport.open(artifacts("gpt2")).generate(PROMPTS, max_tokens=new, beams=3, stop=range(101))
    assert [len(text) for text in found] == [1, 1, 1]


@pytest.mark.parametrize(
    "given", [{"suppress": ["</s>"]}, {"forced_first": 31}, {"bad_words": [5]}, {"min_tokens": "3"}], ids=str
)
def test_a_rule_of_another_type_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"^{next(iter(given))}: got .*; expected "):
        Rules().changed(**given)
