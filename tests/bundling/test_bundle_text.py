"""Text for tokenizers of every kind: the ids, types and masks of transformers, whatever reads the file."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_files import KINDS, ODD, SENTENCES, save

from attnport.bundling.characters import character_table
from attnport_bundle.errors import BundleError, FeedError
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.text import Tokenizer, told

TEXTS = [*ODD, *SENTENCES[:40]]
LONGEST = 24


def contract(*names: str, longest: int = LONGEST) -> IO:
    inputs = tuple(TensorSpec(name, "int64", ("batch", "seq"), None) for name in names)
    masks = tuple(MaskSpec(("padding",), one) for one in names if "mask" in one)
    dims = (Dim("batch", 1, 2, 8), Dim("seq", 1, 8, longest))
    return IO(inputs, (TensorSpec("y", "float32", ("batch",), None),), dims, masks)


ALL = contract("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert importlib.util.find_spec("tokenizers") is None


def transformers_of(path: Path, kind: str, *, left: bool) -> Any:
    """The same file as transformers reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast
    return PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        padding_side="left" if left else "right",
        pad_token="[PAD]" if kind == "word_pieces" else "<pad>",
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
    )


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_become_what_transformers_makes_of_them(tmp_path: Path, kind: str, left: bool) -> None:
    path = save(tmp_path, kind, left=left)
    peer = transformers_of(path, kind, left=left)
    for texts in ([text] for text in TEXTS if text.strip() or kind != "bare_byte_pairs"):
        assert_same(path, peer, texts)
    assert_same(path, peer, TEXTS)
    assert_same(path, peer, TEXTS, prompt="query: ")


def assert_same(path: Path, peer: Any, texts: list[str], prompt: str = "") -> None:
    wanted = peer([prompt + text for text in texts], padding=True, truncation=True, max_length=LONGEST)
    got = Tokenizer(path, ALL).encode(texts, prompt=prompt)
    for name, values in wanted.items():
        assert got[name].tolist() == values, name
        assert got[name].dtype == np.int64


def test_another_side_or_limit_would_be_caught(tmp_path: Path) -> None:
    path = save(tmp_path, "byte_pairs")
    with pytest.raises(AssertionError):
        assert_same(path, transformers_of(path, "byte_pairs", left=True), TEXTS)
    peer = transformers_of(path, "byte_pairs", left=False)
    peer.backend_tokenizer.post_processor = KINDS["bare_byte_pairs"]().post_processor
    with pytest.raises(AssertionError):
        assert_same(path, peer, TEXTS[:1])


def test_word_pieces_are_the_same_with_the_package_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, "word_pieces")
    (tmp_path / "tokenizer.chars").write_text(character_table(path) or "")
    inputs = contract("input_ids", "attention_mask", "token_type_ids", "pooled_mask")
    for limit in (None, 3, 10):
        for prompt in ("", "query: ", "[SEP]", "word " * 40):
            with_package = Tokenizer(path, inputs, limit=limit).encode(TEXTS, prompt=prompt)
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, "tokenizers", None)
                own = Tokenizer(path, inputs, limit=limit)
                assert type(own._words).__name__ == "WordPiece"
                got = own.encode(TEXTS, prompt=prompt)
            assert {name: array.tolist() for name, array in got.items()} == {
                name: array.tolist() for name, array in with_package.items()
            }


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "word_pieces"])
@pytest.mark.usefixtures("without_the_package")
def test_other_kinds_name_the_line_of_pip_where_the_package_is_missing(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path, kind)
    with pytest.raises(BundleError, match=r"tokenizer\.json needs the package tokenizers: pip install tokenizers\.$"):
        Tokenizer(path, ALL)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b"[" * 100_000])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"tokenizer\.json is no tokenizer that the package tokenizers reads: "):
        Tokenizer(path, ALL)
    with pytest.raises(BundleError, match=r"none\.json is no tokenizer"):
        Tokenizer(tmp_path / "none.json", ALL)


def test_a_rule_that_cannot_be_applied_is_told_and_ends_no_process(tmp_path: Path) -> None:
    path = save(tmp_path, "byte_pairs")
    value = json.loads(path.read_text("utf-8"))
    value["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}  # fmt: skip
    path.write_text(json.dumps(value))
    tokenizer = Tokenizer(path, ALL)
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be applied to these texts: "):
        tokenizer.encode(["a" * 40 + "!"])
    with pytest.raises(KeyboardInterrupt), told(path, "is no tokenizer"):
        raise KeyboardInterrupt


def test_the_end_that_a_file_cuts_at_counts(tmp_path: Path) -> None:
    path = save(tmp_path, "byte_pairs")
    value = json.loads(path.read_text("utf-8"))
    value["truncation"]["direction"] = "Left"
    path.write_text(json.dumps(value))
    whole = Tokenizer(path, contract("input_ids", longest=500)).encode(["word " * 30])["input_ids"][0].tolist()
    assert Tokenizer(path, ALL, limit=9).encode(["word " * 30])["input_ids"].tolist() == [[0, *whole[-8:]]]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("kind", "around"), [("byte_pairs", 1), ("bare_byte_pairs", 0), ("ending", 0)])
def test_a_prompt_is_not_pooled_where_the_model_asks(tmp_path: Path, kind: str, around: int, left: bool) -> None:
    """The tokens that stand before every text count as the prompt's, and those behind it do not."""
    path = save(tmp_path, kind, left=left)
    tokenizer = Tokenizer(path, contract("input_ids", "attention_mask", "pooled_mask"))
    prompt, texts = "query: ", ["a cat", "", "the cat sat on it"]
    alone = KINDS[kind]().encode(prompt, add_special_tokens=False).ids
    feeds = tokenizer.encode(texts, prompt=prompt)
    for mask, pooled in zip(feeds["attention_mask"].tolist(), feeds["pooled_mask"].tolist(), strict=True):
        begin, count = mask.index(1), around + len(alone)
        assert pooled[:begin] == mask[:begin]
        assert not any(pooled[begin : begin + count])
        assert pooled[begin + count :] == mask[begin + count :]
    without = tokenizer.encode(texts)
    assert np.array_equal(without["pooled_mask"], without["attention_mask"])
    long = tokenizer.encode(["a"], prompt="word " * 90)  # nothing but the prompt is left
    assert long["attention_mask"].sum() == LONGEST
    assert long["pooled_mask"].sum() == (kind != "bare_byte_pairs")


def test_lengths_cannot_say_that_padding_stands_before_a_text(tmp_path: Path) -> None:
    path = save(tmp_path, "unigram", left=True)
    inputs = (TensorSpec("input_ids", "int64", ("batch", "seq")), TensorSpec("lengths", "int64", ("batch",)))
    io = IO(inputs, ALL.outputs, ALL.dims, (MaskSpec(("padding",), "lengths", carries="lengths", keys="seq"),))
    feeds = Tokenizer(path, io).encode(["a", "a cat sat"])
    assert feeds["input_ids"][0, feeds["lengths"][0] :].tolist() == [1] * (feeds["lengths"][1] - feeds["lengths"][0])


def test_a_text_of_no_token_is_padding_alone(tmp_path: Path) -> None:
    feeds = Tokenizer(save(tmp_path, "bare_byte_pairs"), ALL).encode(["", "a"])
    assert feeds["attention_mask"].tolist() == [[0], [1]]
    assert Tokenizer(save(tmp_path, "bare_byte_pairs"), ALL).encode([""])["attention_mask"].tolist() == [[0]]


def test_what_is_no_text_is_refused_by_its_number(tmp_path: Path) -> None:
    tokenizer = Tokenizer(save(tmp_path, "byte_pairs"), ALL)
    for wrong, words in (
        (None, r"texts\[1\]: got None; expected text, or a pair of texts\."),
        (7, r"texts\[1\]: got 7; expected text, or a pair of texts\."),
        (b"a", r"texts\[1\]: got b'a'; expected text, or a pair of texts\."),
        ("a\ud800", r"texts\[1\]: got half of a surrogate pair; expected text\."),
    ):
        with pytest.raises(FeedError, match=words):
            tokenizer.encode(["a", wrong])  # type: ignore[list-item]
    with pytest.raises(FeedError, match=r"texts\[2001\]: got None"):
        tokenizer.encode(["a", None], 2000)  # type: ignore[list-item]


class Unsaid:
    """An object that cannot be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("not printed")


def test_what_cannot_be_printed_is_refused_as_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(
        FeedError, match=r"texts\[1\]: got a Unsaid that cannot be printed; expected text, or a pair of texts\."
    ):
        Tokenizer(save(tmp_path, "byte_pairs"), ALL).encode(["a", Unsaid()])  # type: ignore[list-item]


def test_texts_padded_beyond_the_places_that_a_caller_has_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(save(tmp_path, "byte_pairs"), ALL)
    texts = ["a " * LONGEST, *["a"] * 9]
    assert tokenizer.encode(texts, places=10 * LONGEST)["input_ids"].shape == (10, LONGEST)
    with pytest.raises(FeedError, match=rf"got 10 texts, padded to {LONGEST} tokens each; expected at most"):
        tokenizer.encode(texts, places=10 * LONGEST - 1)


def test_tokens_around_a_text_need_room(tmp_path: Path) -> None:
    path = save(tmp_path, "byte_pairs")
    with pytest.raises(BundleError, match="got 1 positions; expected 2 or more for the tokens around a text"):
        Tokenizer(path, ALL, limit=1)
    assert Tokenizer(path, ALL, limit=2).encode(["a cat"])["input_ids"].tolist() == [[0, 2]]
    assert Tokenizer(path, ALL, limit=9999).encode(["a " * 99])["input_ids"].shape == (1, LONGEST)
