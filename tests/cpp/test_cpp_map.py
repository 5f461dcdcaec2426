"""Many items and a limit of memory in the C++ reader: the calls, the results and the words are Python's."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import c_binding as c
import numpy as np
import pytest
from cpp_builds import Build, onnxruntime_library

import attnport_bundle as reader
from attnport_bundle import batches
from attnport_bundle.errors import FeedError

BUNDLING = Path(__file__).resolve().parents[1] / "bundling"
if str(BUNDLING) not in sys.path:
    sys.path.append(str(BUNDLING))  # where the cases are that both readers are given

from limited_memory import CASES, IO_OF_ROWS, MB, Case, Process, shapes_and_outputs  # noqa: E402 - see above

TEXTS = ["a cat", "the quick brown fox jumps", "", "hello " * 200, "Ünïcode", "x"] * 4


def made_up(count: int) -> dict[str, Case]:
    """Cases at random, many of which a limit is too low for."""
    chance = random.Random(7)
    return {
        f"made_up_{number}": Case(
            tuple(chance.choice([0, 1, 5, 30, 64, 65, 200, 512]) for _ in range(chance.randint(1, 60))),
            chance.choice([None, 101 * MB, 110 * MB, 150 * MB, 400 * MB]),
            chance.choice([1, 64, 1000, 5000]),
            first=chance.choice([0, 3 * MB]),
            rate=chance.choice([0, 1, 5000, 40_000]),
            passing=chance.choice([0, 0, MB]),
            creep=chance.choice([0, 0, MB // 2]),
            gives_back=chance.choice([False, True]),
            times=chance.choice([1, 3]),
            left=chance.choice([False, True]),
            least=(step := chance.choice([1, 1, 3])) * chance.choice([0, 1, 1, 4]),
            step=step,
        )
        for number in range(count)
    }


def line(case: Case) -> str:
    numbers = dataclasses.asdict(case) | {"lengths": ",".join(map(str, case.lengths))}
    order = (
        "lengths",
        "limit",
        "tokens",
        "base",
        "first",
        "rate",
        "passing",
        "creep",
        "gives_back",
        "times",
        "least",
        "step",
    )
    numbers["gives_back"] = int(case.gives_back)
    said = " ".join("-" if numbers[name] is None else str(numbers[name]) for name in order)
    return f"{said} left" if case.left else said


def of_python(case: Case) -> str:
    shapes, outputs = shapes_and_outputs(case)
    said = "".join(f"{rows}x{size} " for rows, size in shapes) + "| "
    if isinstance(outputs, str):
        return said + outputs
    values: dict[str, Any] = {name: array.astype(int).ravel().tolist() for name, array in outputs.items()}
    return said + " ".join("".join(f"{value}," for value in values[name]) for name in ("rows", "vector"))


def test_calls_results_and_words_are_pythons(cpp_build: Build) -> None:
    cases = CASES | made_up(60)
    expected = {name: of_python(case) for name, case in cases.items()}
    done = cpp_build.run("map_calls", given="".join(f"{line(case)}\n" for case in cases.values()))
    assert done.returncode == 0, done.stderr
    assert dict(zip(cases, done.stdout.splitlines(), strict=True)) == expected
    assert 10 < sum("max_memory" in said for said in expected.values()) < len(expected) - 20


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("fewer", "items: got {'ids': 1, 'mask': 2}; expected the same number for every input, at least one."),
        ("narrow", "seq: got {'ids': 4, 'mask': 5}; expected the same size for every input."),
        ("cuda", "input 'ids': got a tensor on cuda; map takes tensors on the cpu."),
        ("nowhere", "input 'ids': got no memory for 10 elements."),
    ],
)
def test_inputs_that_do_not_fit_are_refused(cpp_build: Build, wrong: str, says: str) -> None:
    done = cpp_build.run("map_calls", given=f"{line(Case((5, 3)))} {wrong}\n")
    assert done.stdout == f"| {says}\n", done.stderr
    python = {"fewer": ((1, 5), (2, 5)), "narrow": ((2, 4), (2, 5))}.get(wrong)
    if python is not None:
        feeds = {name: np.ones(shape, np.int64) for name, shape in zip(("ids", "mask"), python, strict=True)}
        with pytest.raises(FeedError) as refused:
            batches.mapped(Process(Case(())).run, IO_OF_ROWS, feeds)
        assert str(refused.value) == says


def embed(build: Build, app: Path, form: str, texts: list[str], *numbers: str) -> subprocess.CompletedProcess[str]:
    given = "".join(text.encode().hex() + "\n" for text in texts)
    return build.run("embed_texts", app, form, *numbers, given=given)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ort_cpu", "openvino"])
def test_vectors_of_texts_are_pythons_bit_for_bit(cpp_build: Build, form: str, minilm_app: Path) -> None:
    with reader.load(minilm_app, form=form, threads=1) as model:
        expected = model.embed(TEXTS, tokens=100)
        assert np.allclose(model.embed(TEXTS[:6], max_memory="4GB"), expected[:6], atol=1e-5)
    done = embed(cpp_build, minilm_app, form, TEXTS, "100", "0")
    assert done.returncode == 0, done.stderr
    found = np.array([[float.fromhex(value) for value in row.split()] for row in done.stdout.splitlines()])
    assert np.array_equal(found.astype(np.float32), expected)


@pytest.fixture
def library(cpp_shared: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> c.Library:
    monkeypatch.setenv("ATTNPORT_ONNXRUNTIME", str(onnxruntime_library()))
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    return c.Library(cpp_shared.library)


def test_the_c_interface_maps_as_python_does(library: c.Library, made_bundle: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50, (70, 9))
    feeds = {"ids": ids, "attention_mask": (np.arange(9) < np.arange(70)[:, None] % 9 + 1).astype(np.int64)}
    with reader.load(made_bundle, threads=1) as model, library.open(made_bundle, threads=1) as opened:
        for tokens, limit in ((0, 0), (20, 0), (20, 1 << 33)):
            expected = model.map(feeds, tokens=tokens or 1024, max_memory=limit or None)
            found = opened.map(feeds, tokens, limit)
            assert {name: array.tobytes() for name, array in found.items()} == {
                name: array.tobytes() for name, array in expected.items()
            }
        for tokens, limit, words in ((-1, 0, "tokens: got -1"), (0, -1, "max_memory: got -1"), (0, 1, "process holds")):
            with pytest.raises(c.Failed, match=words):
                opened.map(feeds, tokens, limit)


@pytest.mark.slow
def test_the_c_interface_embeds_as_python_does(library: c.Library, minilm_app: Path) -> None:
    with reader.load(minilm_app, threads=1) as model, library.open(minilm_app, threads=1) as opened:
        (found,) = opened.embed(TEXTS, 100).values()
        assert found.tobytes() == model.embed(TEXTS, tokens=100).tobytes()
        for texts, words in (([], "texts: got none"), (["a", None], "a text")):
            with pytest.raises(c.Failed, match=words):
                opened.embed(texts)


@pytest.mark.slow
def test_texts_and_limits_that_do_not_fit_are_refused(cpp_build: Build, minilm_app: Path, app: Path) -> None:
    for folder, texts, numbers, words in (
        (minilm_app, [], ("100", "0"), "texts: got none; expected one or more.\n"),
        (minilm_app, ["a"], ("0", "0"), "tokens: got 0; expected 1 or more.\n"),
        (minilm_app, ["a"], ("100", "-1"), "max_memory: got -1; expected 1 byte or more.\n"),
    ):
        done = embed(cpp_build, folder, "ort_cpu", texts, *numbers)
        assert (done.returncode, done.stderr) == (2, words)
    done = embed(cpp_build, minilm_app, "ort_cpu", ["a"], "100", "10000000")
    assert done.returncode == 2
    assert done.stderr.startswith("max_memory: the process holds ")
    assert done.stderr.endswith("; the limit is 10.00 MB.\n")
    done = embed(cpp_build, app, "ort_cpu", ["a"], "100", "0")
    assert done.returncode == 2
    assert "embed: got the outputs" in done.stderr or "no tokenizer" in done.stderr


@pytest.mark.slow
def test_a_text_that_is_no_utf8_is_named_by_its_place_among_all(cpp_build: Build, minilm_app: Path) -> None:
    given = "61\n" * 1030 + "ff\n"
    done = cpp_build.run("embed_texts", minilm_app, "ort_cpu", "1024", "0", given=given)
    assert done.returncode == 2
    assert done.stderr.startswith("texts[1030]: got ")
