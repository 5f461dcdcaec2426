"""The C++ reader's tokenizer against the Python reader's: one answer for every text, one refusal for every file."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpp_builds import Build
from cpp_texts import TEXT, changed, run

from attnport_bundle.errors import BundleError, FeedError
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.text import Characters, Tokenizer, Tokens, WordPiece

ROOT = Path(__file__).parents[2]
SENTENCES = (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()
CODES = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
HARD = (
    "Ünïcödé naïve café", "日本語 テスト 한국어 각", "a\u200bb\u00adc", "İstanbul ǅ ß ﬁ ΣΑΣ", "x" * 150,
    "emoji 😀👍🏽 ok",
    "don't—stop…", "\t a\r\nb\x00c\x0bd\x85e", "á̂ e\u0301", "１２３ Ⅷ ²", "[CLS] hi [MASK][SEP]x[PAD", "", " ",
    "\ufffd", "$5+`~^|<=>", "𠀀𪜀", "a\u2028b\u3000c", "\x1c\x1f", "[UNK]unaffable[UNK]", "नमस्ते दुनिया", "שָׁלוֹם עולם",
    "مرحبًا بالعالم", "สวัสดีชาวโลก", "Ελληνικά Ώ ώ", "Привет, мир! Ёё", "გამარჯობა ᲓᲔᲓᲐ", "ᏣᎳᎩ ꮳꮃꭹ", "𝔘𝔫𝔦 𐐀𐐁",
    "한\u1100\u1161\u11a8",
    "[MASK]" * 5, "[[MASK]]", "[MASK [MASK]", "é" * 100, "é" * 101, "😀" * 100 + "a", "\U0001d15e\U0001d165\u302e",
    "\u302e\U0001d165a\u302e\u0e31\U0001d165", "ཱི ཱོ", "ﬀ ŉ ẖ", "\ufeffbom", "\U000e0001tag\U000f0000", "ᵃ ª", "١٢٣ 四",
)  # fmt: skip


def characters(path: Path) -> Characters:
    return Characters(path.with_suffix(".chars").read_bytes())


def differing_words(build: Build, path: Path, texts: list[str]) -> list[str]:
    """The texts of which the characters become other words than in Python."""
    becomes = characters(path)
    wanted = ([word for word in text.translate(becomes).split(" ") if word] for text in texts)
    got = run(build, "words", path.with_suffix(".chars"), texts=texts)
    return [
        text
        for text, line, words in zip(texts, got, wanted, strict=True)
        if [bytes.fromhex(word).decode() for word in line.split()] != words
    ]


def differing_ids(build: Build, path: Path, texts: list[str], longest: int = 512) -> list[str]:
    """The texts whose ids or type ids are not those of Python."""
    ours = WordPiece(path, characters(path))
    got = run(build, "tokenize", path, f"{TEXT} 1 {longest}", texts=texts)
    return [text for text, line in zip(texts, got, strict=True) if line != row(ours.encode(text, longest))]


def row(tokens: Tokens) -> str:
    size = len(tokens.ids)
    columns = {"input_ids": tokens.ids, "token_type_ids": tokens.type_ids, "mask": [1] * size}
    return "".join(f"{name} int64 1 {size}: {' '.join(map(str, values))};" for name, values in columns.items())


def random_texts(count: int) -> list[str]:
    """Of words, of any characters at all, and of those that decomposition moves and takes apart."""
    rng = random.Random(6)
    marks = [chr(code) for code in CODES if unicodedata.category(chr(code)).startswith("M")]
    movable = [char for char in marks if unicodedata.combining(char) and unicodedata.category(char) != "Mn"]
    composed = [chr(code) for code in CODES if unicodedata.normalize("NFD", chr(code)) != chr(code)]
    kinds: tuple[Any, ...] = (marks, movable, composed, CODES, "abc .,[]#", ("[MASK]", "[CLS]", " the", "unaff", "##s"))
    found = []
    for _ in range(count):
        picked = (rng.choice(rng.choice(kinds)) for _ in range(rng.randrange(24)))
        found.append("".join(chr(one) if isinstance(one, int) else one for one in picked))
    return found


def test_real_sentences_and_hard_ones_give_the_ids_of_python(cpp_build: Build, minilm_tokenizer: Path) -> None:
    texts = [*SENTENCES, *HARD]
    assert differing_ids(cpp_build, minilm_tokenizer, texts) == []
    assert differing_words(cpp_build, minilm_tokenizer, texts) == []


def test_random_texts_give_the_words_and_ids_of_python(cpp_build: Build, minilm_tokenizer: Path) -> None:
    texts = random_texts(4000)
    assert differing_words(cpp_build, minilm_tokenizer, texts) == []
    assert differing_ids(cpp_build, minilm_tokenizer, texts) == []


@pytest.mark.slow
def test_every_character_gives_the_words_of_python_alone_and_in_a_word(
    cpp_build: Build, minilm_tokenizer: Path
) -> None:
    assert differing_words(cpp_build, minilm_tokenizer, [chr(code) for code in CODES]) == []
    assert differing_words(cpp_build, minilm_tokenizer, [f"a{chr(code)}b" for code in CODES]) == []


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
def test_the_rules_of_the_file_are_followed(
    cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path, change: dict[str, bool]
) -> None:
    edited = changed(minilm_tokenizer, tmp_path, lambda value: value["normalizer"].update(change))
    texts = [*HARD, *random_texts(500)]
    assert differing_words(cpp_build, edited, texts) == []
    assert differing_ids(cpp_build, edited, texts) == []


def test_a_difference_is_seen(cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path) -> None:
    edited = changed(minilm_tokenizer, tmp_path, lambda value: value["normalizer"].update(lowercase=False))
    plain = run(cpp_build, "words", minilm_tokenizer.with_suffix(".chars"), texts=HARD)
    other = run(cpp_build, "words", edited.with_suffix(".chars"), texts=HARD)
    assert [one == its for one, its in zip(plain, other, strict=True)].count(False) > 3


def test_a_character_that_becomes_two_is_looked_up_once_more(cpp_build: Build, tmp_path: Path) -> None:
    lines = "20 20 space", "21 21 apart", "41 42 + 20", "43 43 = 21 64 20 41", "44 44 removed", "61 61 - 20", ""
    (tmp_path / "x.chars").write_text("\n".join(lines))
    (line,) = run(cpp_build, "words", tmp_path / "x.chars", texts=["xAB CyD!a"])
    words = [bytes.fromhex(word).decode() for word in line.split()]
    assert words == ["xab", "!", "d", "Ay", "!", "A"]


@pytest.mark.parametrize(
    "lines",
    ["41", "41 5A", "41 5A up", "5A 41 apart", "41 5a apart", "41 5A + 20 20", "41 5A =", "41 5A - 42",
     "41 110000 apart", "41 41 = 110000", "10FFFF 10FFFF + 1", "41 5A apart\n50 60 apart", "41 5A apart 20",
     "0x41 5A apart"],
)  # fmt: skip
def test_a_table_that_says_something_else_is_refused(cpp_build: Build, tmp_path: Path, lines: str) -> None:
    (tmp_path / "x.chars").write_text(f"{lines}\n")
    done = cpp_build.run("words", tmp_path / "x.chars")
    assert (done.returncode, "is not read here: line " in done.stderr) == (2, True)


def test_long_texts_are_cut_as_in_python(cpp_build: Build, minilm_tokenizer: Path) -> None:
    texts = [" ".join(SENTENCES[:40]), "[MASK]" * 200, "x" * 300_000, ". " * 1000]
    for longest in (2, 3, 17):
        assert differing_ids(cpp_build, minilm_tokenizer, texts, longest) == []
    done = cpp_build.run("tokenize", minilm_tokenizer, f"{TEXT} 1 1", given="61\n")
    assert (done.returncode, done.stderr.startswith("error: got 1 positions")) == (2, True)


def test_added_tokens_are_found_leftmost_and_longest_first(
    cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path
) -> None:
    def change(value: Any) -> None:
        like = value["added_tokens"][0]
        more = [("ab", 7), ("abc", 8), ("bcd", 9), ("é", 10), ("ab", 11), ("", 12)]
        value["added_tokens"] += [{**like, "content": content, "id": index} for content, index in more]
        value["model"]["vocab"] |= {"\u200d\x07": 30522, "x" * 1001: 30523, "": 30525}

    edited = changed(minilm_tokenizer, tmp_path, change)
    texts = ["abcd", "xabd", "bcdab", "aé[PAD]ab", "ababab abc", "x" * 100]
    assert differing_ids(cpp_build, edited, texts) == []
    assert differing_ids(cpp_build, minilm_tokenizer, texts) == []


@pytest.mark.parametrize(
    "change",
    [
        {"max_input_chars_per_word": 3},
        {"max_input_chars_per_word": -1},
        {"continuing_subword_prefix": ""},
        {"unk_token": "the"},
    ],
)
def test_the_model_of_the_file_is_followed(
    cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    edited = changed(minilm_tokenizer, tmp_path, lambda value: value["model"].update(change))
    assert differing_ids(cpp_build, edited, [*SENTENCES[:20], "☃ 😀😀😀 😀😀😀😀 ☃"]) == []


NOT_UTF8 = (b"a\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"[CLS]\xe2\x82", b"\xc0\x80")


def test_bytes_that_are_no_utf8_are_refused(cpp_build: Build, minilm_tokenizer: Path) -> None:
    got = run(cpp_build, "tokenize", minilm_tokenizer, f"{TEXT} 1 9", texts=[*NOT_UTF8, "a"])
    assert [line.startswith("refused: texts[0]: ") for line in got] == [True] * 6 + [False]
    (line,) = run(cpp_build, "tokenize", minilm_tokenizer, f"{TEXT} 1 9", "together", texts=["a", b"b\xff"])
    assert line.startswith("refused: texts[1]: ")


@pytest.mark.slow
def test_any_bytes_are_refused_or_read_and_no_sanitizer_minds(cpp_build: Build, minilm_tokenizer: Path) -> None:
    rng = random.Random(7)
    texts: list[bytes] = [rng.randbytes(rng.randrange(40)) for _ in range(2000)]
    for text in random_texts(2000):
        data = bytearray(text.encode())
        if data and rng.random() < 0.5:
            data[rng.randrange(len(data))] = rng.randrange(256)
        texts.append(bytes(data))
    got = run(cpp_build, "tokenize", minilm_tokenizer, f"{TEXT} 1 64", texts=texts)
    for text, line in zip(texts, got, strict=True):
        assert line.startswith("refused: ") is not is_utf8(text)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def contract(text: str) -> IO:
    """What `tokenize.cpp` makes of its second argument."""
    names, dtype, axes, least, most = text.split()
    dims = tuple(int(axis) if axis.isdigit() else axis for axis in axes.split(","))
    inputs = tuple(TensorSpec(name, dtype, dims, None) for name in names.split(","))
    masks = tuple(
        MaskSpec(("padding",), one.name, "keep", "upper_left", 0, "mask", None) for one in inputs if "mask" in one.name
    )
    named = (Dim("batch", 1, 2, 8), Dim("seq", int(least), int(least), int(most)))
    return IO(inputs, (TensorSpec("y", "float32", ("batch",), None),), named, masks)


def shown(feeds: dict[str, np.ndarray[Any, Any]]) -> str:
    return "".join(f"{name} {array.dtype} {numbers(array.shape)}: {values(array)};" for name, array in feeds.items())


def values(array: np.ndarray[Any, Any]) -> str:
    return numbers((array.view(np.uint16) if array.dtype == np.float16 else array).ravel())


def numbers(listed: Iterable[Any]) -> str:
    return " ".join(f"{int(number)}" for number in listed)


CONTRACTS = (
    f"{TEXT} 4 12",
    "input_ids,attention_mask,token_type_ids int32 batch,seq 4 12",
    "mask,input_ids int64 batch,6 4 12",
    *(f"input_ids,mask {dtype} batch,seq 4 12" for dtype in ("float16", "float32", "float64", "bool")),
    "input_ids,token_type_ids,mask,mask_too int64 batch,seq 9 12",
)


@pytest.mark.parametrize("text", CONTRACTS)
def test_texts_become_every_input_that_the_contract_names(cpp_build: Build, minilm_tokenizer: Path, text: str) -> None:
    texts = ["the cat", "a cat sat on it", "a " * 99, ""]
    for some in (texts[:1], texts[:2], texts):
        wanted = shown(Tokenizer(minilm_tokenizer, contract(text)).encode(some))
        assert run(cpp_build, "tokenize", minilm_tokenizer, text, "together", texts=some) == [wanted]


@pytest.mark.parametrize("change", [{"pad_id": 7}, None])
def test_padding_takes_the_files_own_id(
    cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path, change: dict[str, int] | None
) -> None:
    edited = changed(
        minilm_tokenizer, tmp_path, lambda value: value.update(padding=change and value["padding"] | change)
    )
    wanted = shown(Tokenizer(edited, contract(f"{TEXT} 6 9")).encode(["a"]))
    assert run(cpp_build, "tokenize", edited, f"{TEXT} 6 9", texts=["a"]) == [wanted]


@pytest.mark.parametrize("text", ["pixels int64 batch,seq", "input_ids,pixels int64 batch,9", "input_ids int32 batch"])
def test_a_model_that_reads_no_text_says_so(cpp_build: Build, minilm_tokenizer: Path, text: str) -> None:
    with pytest.raises(BundleError):
        Tokenizer(minilm_tokenizer, contract(f"{text} 4 12"))
    done = cpp_build.run("tokenize", minilm_tokenizer, f"{text} 4 12")
    assert done.returncode == 2
    assert "does not read text" in done.stderr


def test_texts_that_cannot_be_fed_are_refused(cpp_build: Build, minilm_tokenizer: Path) -> None:
    for text, texts in (("input_ids int64 batch,seq 4 12", ["a", "two words here"]), (f"{TEXT} 4 12", [])):
        with pytest.raises(FeedError):
            Tokenizer(minilm_tokenizer, contract(text)).encode(texts)
        (line,) = run(cpp_build, "tokenize", minilm_tokenizer, text, "together", texts=texts)
        assert line.startswith("refused: ")


def test_a_text_that_is_longer_than_memory_is_refused(cpp_shared: Build, minilm_tokenizer: Path) -> None:
    # Under AddressSanitizer the program is ended for allocating this much, so only the plain build is used.
    huge = cpp_shared.run("tokenize", minilm_tokenizer, f"{TEXT} {1 << 50} {1 << 50}", given="61\n")
    assert (huge.returncode, huge.stderr) == (2, "error: there is no memory for 1 texts at this model's length.\n")
