"""Tokens as transformers' own `generate` makes them, with every kind of cache, mask and position."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoders import END, KINDS, QUICK, Once, continued, exported, saved
from representatives import representatives

import attnport
from attnport.errors import FeedError
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle.decoding.generate import Options, _chosen
from attnport_bundle.format.decoder import Rules

PROMPTS = [[5, 17, 60, 3], [44], [9, 9, 30, 71, 12, 50, 2]]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Once:
    return Once(tmp_path_factory)


@pytest.mark.parametrize("kind", representatives(KINDS, QUICK))
def test_greedy_tokens_of_prompts_of_several_lengths_are_those_of_transformers(artifacts: Once, kind: str) -> None:
    folder = artifacts(kind)
    found = attnport.open(folder).generate(PROMPTS, max_tokens=20)
    assert found == continued(folder.parent / "weights", PROMPTS, 20)


@pytest.mark.parametrize(("kind", "beams", "penalty"), [("gpt2", 3, 1.0), ("llama", 4, 0.0), ("llama", 2, 2.0)])
def test_beam_search_finds_what_transformers_finds(artifacts: Once, kind: str, beams: int, penalty: float) -> None:
    folder = artifacts(kind)
    options: dict[str, Any] = {"length_penalty": penalty}
    found = attnport.open(folder).generate(PROMPTS, max_tokens=12, beams=beams, **options)
    assert found == continued(folder.parent / "weights", PROMPTS, 12, num_beams=beams, **options)


def test_the_last_position_of_a_table_is_used_and_none_behind_it(artifacts: Once) -> None:
    folder = artifacts("gpt2")  # it has 64 positions, and the last new token needs none
    prompt = [int(token) for token in np.arange(60) % 90 + 2]
    found = attnport.open(folder).generate([prompt], max_tokens=5, stop=[])
    assert found == continued(folder.parent / "weights", [prompt], 5, eos_token_id=None)
    with pytest.raises(FeedError, match="60 tokens and 6 new ones"):
        attnport.open(folder).generate([prompt], max_tokens=6)


def test_places_in_a_table_of_pairs_are_used_and_none_behind_it(tmp_path: Path) -> None:
    """GPT-Neo takes positions, and has a table of which place sees which."""
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
    config = transformers.GPTNeoConfig(
        vocab_size=95, max_position_embeddings=32, window_size=8, bos_token_id=1, eos_token_id=2, **sizes
    )
    torch.manual_seed(0)
    transformers.GPTNeoForCausalLM(config).eval().save_pretrained(tmp_path / "weights")
    export(f"hf:{tmp_path / 'weights'}", tmp_path / "out", part="with-past")
    report = check(tmp_path / "out", ["ort_cpu"])
    assert report.runtimes["ort_cpu"].verdict == "PASS", report.runtimes["ort_cpu"].reason
    prompt = [int(token) for token in np.arange(28) % 90 + 3]
    found = attnport.open(tmp_path / "out").generate([prompt], max_tokens=2, stop=[])
    assert found == continued(tmp_path / "weights", [prompt], 2, eos_token_id=None)


def test_draws_are_those_of_their_seed_and_a_text_ends_behind_what_stops_it(artifacts: Once) -> None:
    artifact = attnport.open(artifacts("llama"))
    draws = [artifact.generate(PROMPTS[:1], max_tokens=12, temperature=2.0, seed=seed)[0] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    stop = draws[0][5]
    told: list[int] = []
    ended = artifact.generate(PROMPTS[:1], max_tokens=12, temperature=2.0, seed=1, stop=[stop],
                              on_token=lambda row, token: told.append(token))[0]  # fmt: skip
    assert ended == told == draws[0][: draws[0].index(stop) + 1]


@pytest.mark.slow
def test_a_text_ends_where_the_model_itself_ends_it(tmp_path: Path) -> None:
    weights = saved("llama", tmp_path / "weights")
    end = continued(weights, PROMPTS[:1], 6)[0][3]
    config = weights / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token_id": [END, end]}))
    expected = continued(weights, PROMPTS, 12)
    assert expected[0][-1] == end
    assert len(expected[0]) < 12
    folder = tmp_path / "out"
    export(f"hf:{weights}", folder, part="with-past")
    fuse(folder, targets=["ort_cpu"])
    artifact = attnport.open(folder)
    assert artifact.generate(PROMPTS, max_tokens=12) == expected
    assert [len(text) for text in artifact.generate(PROMPTS, max_tokens=12, stop=[])] == [12, 12, 12]


def test_a_text_comes_back_as_text_and_in_pieces(artifacts: Once) -> None:
    artifact = attnport.open(artifacts("llama"))
    told: list[str] = []
    text = artifact.generate("ab c", max_tokens=9, on_token=lambda row, piece: told.append(piece))
    ids = artifact.generate([[65, 66, 0, 67]], max_tokens=9)[0]
    assert text == "".join(told) == "".join(chr(32 + one) if one < 95 else f"<{one}>" for one in ids)
    assert artifact.generate(["ab c", "q"], max_tokens=9)[0] == text


def test_one_text_that_ends_a_text_is_one_token_and_not_its_letters(artifacts: Once) -> None:
    artifact = attnport.open(artifacts("llama"))
    ids = artifact.generate([[65, 66, 0, 67]], max_tokens=9)[0]
    last = next(one for one in ids if one < 95)
    stop = chr(32 + last)
    found = artifact.generate("ab c", max_tokens=9, stop=stop)
    assert found == artifact.generate("ab c", max_tokens=9, stop=[stop])
    assert len(found) < len(artifact.generate("ab c", max_tokens=9, stop=[]))


@pytest.mark.slow
def test_a_prompt_may_be_longer_than_a_pass_takes(artifacts: Once, tmp_path: Path) -> None:
    folder = exported("llama", tmp_path, dims=["seq=1:1:3"])
    found = attnport.open(folder).generate(PROMPTS, max_tokens=5)
    assert found == attnport.open(artifacts("llama")).generate(PROMPTS, max_tokens=5)


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        ([[1] * 50], {"max_tokens": 30}, "the model keeps at most 63"),
        ([[]], {}, "without a token"),
        ([[500]], {}, "expected 0 to 100"),
        ([[1.5]], {}, "lists of token ids"),
        ([1, 2], {}, "lists of token ids"),
        (["ab", [1]], {}, "texts and token ids"),
        ([[1]], {"temperature": -1.0}, "temperature: got -1.0"),
        ([[1]], {"temperature": 1.0, "beams": 2}, "beam search draws nothing"),
        ("ab", {"stop": ["nothing"]}, "no token of the model's tokenizer"),
        ("ab", {"stop": "ab"}, "stop: got 'ab', which is no token of the model's tokenizer"),
        ([[1]], {"stop": 5}, "stop: got 5; expected a list of tokens or ids"),
        ([[1]], {"stop": [2.5]}, "stop: got 2.5; expected tokens, or ids of 0 or more"),
        ([[-1]], {}, "prompts: got -1; expected texts alone, or lists of token ids of 0 or more"),
        ([[10**30]], {}, "prompts: got 10"),
        (5, {}, "prompts: got 5; expected texts, or lists of token ids"),
        (b"ab", {}, "prompts: got b'ab'"),
        ([[1]], {"max_token": 5}, "max_token: generate has no such option; it has bad_words, beams, "),
        ([[1]], {"max_tokens": "5"}, "max_tokens: got '5'; expected 1 or more"),
        ([[1]], {"seed": -1}, "seed: got -1; expected 0 or more"),
        ([[1]], {"context": [1]}, "context: got .*; expected an array for each input by its name"),
        ([[1]], {"as_text": "no"}, "as_text: got 'no'; expected True or False"),
        ([[1]], {"on_token": 5}, "on_token: got 5; expected a function"),
    ],
)
def test_what_cannot_be_generated_is_an_error_that_says_why(
    artifacts: Once, prompts: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(FeedError, match=said):
        attnport.open(artifacts("gpt2")).generate(prompts, **options)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32)).repeat(20_000, 0)
    draw = np.random.default_rng(0)
    for options, expected in (
        (Options(temperature=1.0), [0.5, 0.25, 0.125, 0.125]),
        (Options(temperature=1.0, top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Options(temperature=1.0, top_p=0.6), [2 / 3, 1 / 3, 0, 0]),
        (Options(temperature=1.0, top_p=0.5), [1, 0, 0, 0]),
        (Options(temperature=0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
    ):
        counts = np.bincount(_chosen(logits, options, draw), minlength=4) / len(logits)
        np.testing.assert_allclose(counts, expected, atol=0.015)


@pytest.mark.slow
def test_attnports_own_decoders_generate_token_by_token_what_one_pass_says(tmp_path: Path) -> None:
    export("gpt_decoder", tmp_path / "out")
    fuse(tmp_path / "out", targets=["ort_cpu"])
    artifact = attnport.open(tmp_path / "out")
    prompt = [3, 141, 59]
    found = artifact.generate([prompt], max_tokens=6)[0]
    with artifact.open() as running:
        for at in range(6):
            ids = np.array([prompt + found[:at]])
            past = np.zeros((1, 2, 4, 1, 16), np.float32)
            out = running.run(input_ids=ids, past_keys=past, past_values=past, cache_mask=np.zeros((1, 1), np.int64))
            assert int(out["logits"][0, -1].argmax()) == found[at]


@pytest.mark.slow
def test_a_model_without_a_cache_says_how_to_export_one(tmp_path: Path) -> None:
    export("bert_encoder", tmp_path / "out")
    fuse(tmp_path / "out", targets=["ort_cpu"])
    with pytest.raises(FeedError, match=r"it has no cache.*--with-past"):
        attnport.open(tmp_path / "out").generate([[1, 2]])


def test_beams_that_end_early_do_not_stop_the_others() -> None:
    from attnport_bundle.decoding.generate import _Beams

    one = _Beams(Options(max_tokens=5, stop=(9,), rules=Rules(beams=2)))
    one.grow(np.array([-0.1, -0.2, -0.3, -0.4]), np.array([0, 0, 0, 0]), np.array([9, 1, 2, 3]))
    assert one.texts == [[1], [2]]
    assert not one.settled()
    one.grow(np.array([-0.25, -5.0, -6.0, -7.0]), np.array([0, 0, 1, 1]), np.array([9, 4, 9, 5]))
    assert one.settled()
    assert one.best() == [9]
    assert list(itertools.chain(*one.texts)) == [1, 4, 2, 5]
