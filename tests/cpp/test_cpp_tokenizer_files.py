"""Tokenizer files that the C++ reader refuses, as Python's does."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpp_builds import Build
from cpp_texts import TEXT, changed, run

from attnport.bundling.characters import character_table
from attnport_bundle.errors import is_printable


def nested(value: Any, *keys: str | int) -> Any:
    for key in keys:
        value = value[key]
    return value


def of_one_hash(count: int) -> list[str]:
    """Texts of 16 ASCII letters that have one hash in libstdc++, whose seed is fixed (MurmurHash64A).

    The first half is drawn; the second one brings the state back to where all others are.
    """
    factor, seed, shift = 0xC6A4A7935BD1E995, 0xC70F6907, np.uint64(47)

    def mixed(block: Any, by: int) -> Any:
        block = block * np.uint64(by)
        return (block ^ block >> shift) * np.uint64(by)

    random, found = np.random.default_rng(0), np.empty((0, 2), np.uint64)
    while len(found) < count:
        first = random.integers(97, 123, (1 << 21, 8), dtype=np.uint8).view(np.uint64).ravel()
        state = (np.uint64(seed ^ 16 * factor % 2**64) ^ mixed(first, factor)) * np.uint64(factor)
        second = mixed(state ^ np.uint64(1), pow(factor, -1, 2**64))
        is_ascii = second & np.uint64(0x8080808080808080) == 0
        found = np.concatenate([found, np.stack([first, second], 1)[is_ascii]])
    return [pair.tobytes().decode("ascii") for pair in found[:count]]


SINGLE = ("post_processor", "single")
FILES: dict[str, Callable[[Any], None]] = {
    "byte pairs": lambda value: value["model"].update(type="BPE"),
    "another template": lambda value: value["post_processor"].update(type="ByteLevel"),
    "two texts": lambda value: value["post_processor"].update(single=value["post_processor"]["pair"]),
    "a template of text": lambda value: value["post_processor"].update(single="A"),
    "a place without a type": lambda value: nested(value, *SINGLE, 0, "SpecialToken").pop("type_id"),
    "a token in normalised text": lambda value: value["added_tokens"][0].update(normalized=True),
    "a token that takes spaces": lambda value: value["added_tokens"][1].update(lstrip=True),
    "tokens as an object": lambda value: value.update(added_tokens={"a": 1}),
    "a token that is a number": lambda value: value["added_tokens"].insert(2, 7),
    "a token with a control character": lambda value: value["added_tokens"][0].update(content="a\x07"),
    "a token of half a pair": lambda value: value["added_tokens"][0].update(content="a\ud800"),
    "a token of 1001 characters": lambda value: value["added_tokens"][0].update(content="é" * 1001),
    "no unknown token": lambda value: value["model"].update(unk_token="?'?"),
    "no model": lambda value: value.pop("model"),
    "no vocabulary": lambda value: value["model"].pop("vocab"),
    "a special token without ids": lambda value: value["post_processor"].update(special_tokens={}),
    "special ids as text": lambda value: nested(value, "post_processor", "special_tokens", "[CLS]").update(ids=["1"]),
    "special tokens as numbers": lambda value: nested(value, "post_processor", "special_tokens", "[CLS]").update(
        tokens=[1]
    ),
    "a model of nothing": lambda value: value.update(model=None),
    "a list of pieces": lambda value: value["model"].update(vocab=["the"]),
    "text as an id": lambda value: value["model"]["vocab"].update(the="7"),
    "a long piece without an id": lambda value: value["model"]["vocab"].update({"ü\x07'" * 40: None}),
    "half an id": lambda value: value["model"]["vocab"].update(the=7.5),
    "an id below zero": lambda value: value["added_tokens"][0].update(id=-1),
    "an id of no integer type": lambda value: value["added_tokens"][0].update(id=1 << 70),
    "an id that is too large": lambda value: value["model"]["vocab"].update(the=1 << 40),
    "a special id that is too large": lambda value: nested(value, "post_processor", "special_tokens", "[CLS]").update(
        ids=[1 << 31]
    ),
    "a type id that is too large": lambda value: nested(value, *SINGLE, 0, "SpecialToken").update(type_id=1 << 40),
    "padding as a list": lambda value: value.update(padding=[7]),
    "padding without an id": lambda value: value["padding"].pop("pad_id"),
    "padding with text": lambda value: value["padding"].update(pad_id="0"),
    "texts cut at their beginning": lambda value: value["truncation"].update(direction="Left"),
    "padding before the text": lambda value: value["padding"].update(direction="Left"),
    "truncation as a long list": lambda value: value.update(truncation=[7] * 99),
    "a list as the model": lambda value: value.update(model=[7]),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_not_berts_way_is_refused(cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path, name: str) -> None:
    assert_refused(cpp_build, changed(minilm_tokenizer, tmp_path, FILES[name]))


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"model": {}}', b"[" * 100_000, b'{"a": 1, "a": 2}'])
def test_a_file_that_is_no_tokenizer_is_refused(cpp_build: Build, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    assert_refused(cpp_build, tmp_path / "tokenizer.json")
    for other in (tmp_path / "none.json", tmp_path):
        done = cpp_build.run("tokenize", other, f"{TEXT} 1 9")
        assert (done.returncode, done.stderr.startswith(f"error: {other} is not read here: ")) == (2, True)


def assert_refused(build: Build, path: Path) -> None:
    """No bundle has a table of characters for the file, and C++ refuses it: which file, what is wrong, how to go on."""
    assert character_table(path) is None
    done = build.run("tokenize", path, f"{TEXT} 1 9")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path} is not read here: ")
    assert done.stderr.endswith(" give it the ids of your own by Options::tokenize, in C attnport_options.tokenize.\n")
    assert is_printable(done.stderr.removesuffix("\n"))


def test_links_are_followed(cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(minilm_tokenizer)
    (tmp_path / "link.chars").symlink_to(minilm_tokenizer.with_suffix(".chars"))
    assert run(cpp_build, "tokenize", tmp_path / "link.json", "input_ids,mask int64 batch,seq 1 9", texts=["a"]) == [
        "input_ids int64 1 3: 101 1037 102;mask int64 1 3: 1 1 1;"
    ]


def test_pieces_of_one_hash_are_read_as_fast_as_others(
    cpp_build: Build, minilm_tokenizer: Path, tmp_path: Path
) -> None:
    pieces = of_one_hash(120_000)
    assert len(set(pieces)) > 119_000
    more = {piece: 1000 + number for number, piece in enumerate(pieces)}
    path = changed(minilm_tokenizer, tmp_path, lambda value: value["model"]["vocab"].update(more))
    cpp_build.program("tokenize")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert run(cpp_build, "tokenize", path, f"{TEXT} 1 512", texts=["the"])
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before  # not the time that others' builds take
    assert spent < 12  # 2 s; a hash table took 23 s
