"""Many items in the C++ reader: the calls and the results are Python's."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import c_binding as c
import numpy as np
import pytest
from cpp_builds import Build, onnxruntime_library

import attnport_bundle as reader
from attnport_bundle import batches
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec

TEXTS = ["a cat", "the quick brown fox jumps", "", "hello " * 200, "Ünïcode", "x"] * 4
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """Items to run. Padding stands at the `left` or right; a batch has `least` items or more, in steps of `step`."""

    lengths: tuple[int, ...]
    tokens: int = 1024
    left: bool = False
    least: int = 1
    step: int = 1

    @property
    def io(self) -> IO:
        most = 64 // self.step * self.step
        return IO(
            (TensorSpec("ids", "int64", ("batch", "seq")), TensorSpec("mask", "int64", ("batch", "seq"))),
            (TensorSpec("rows", "float32", ("batch", "seq", 2)), TensorSpec("vector", "float32", ("batch", 3))),
            (Dim("batch", self.least, max(self.least, self.step), most, self.step), Dim("seq", 1, 8, 512)),
            (MaskSpec(("padding",), "mask"),),
        )

    @property
    def line(self) -> str:
        lengths = ",".join(map(str, self.lengths))
        return f"{lengths} {self.tokens} {self.least} {self.step}{' left' if self.left else ''}"

    @property
    def feeds(self) -> Arrays:
        size = max(self.lengths)
        mask = (np.arange(size)[None, :] < np.array(self.lengths)[:, None]).astype(np.int64)
        mask = mask[:, ::-1].copy() if self.left else mask
        return {"ids": np.arange(1, mask.size + 1).reshape(mask.shape) % 1000 * mask, "mask": mask}


MIXED = (3, 90, 7, 64, 64, 1, 0, 200)
CASES = [
    Case(MIXED, tokens=128),
    Case(MIXED * 20),
    Case(MIXED * 20, left=True),
    Case((9, 9, 9), tokens=16, left=True),
    Case((3, 90, 7, 64, 0, 1, 200, 200, 5), tokens=128, least=4),
    Case((3, 90, 7, 64, 0, 1, 200, 200, 5), tokens=700, least=3, step=3),
    Case((3, 90), tokens=700, least=0, step=4, left=True),
    Case((3, 90, 7) * 30, least=64),
    Case((300, 2, 3), tokens=64),
    Case((512,) * 64),
]


def made_up(count: int) -> list[Case]:
    chance = random.Random(7)
    return [
        Case(
            tuple(chance.choice([0, 1, 5, 30, 64, 65, 200, 512]) for _ in range(chance.randint(1, 60))),
            chance.choice([1, 64, 1000, 5000]),
            left=chance.choice([False, True]),
            least=(step := chance.choice([1, 1, 3])) * chance.choice([0, 1, 1, 4]),
            step=step,
        )
        for _ in range(count)
    ]


def of_python(case: Case) -> str:
    shapes: list[tuple[int, ...]] = []

    def run(**feeds: np.ndarray[Any, Any]) -> Arrays:
        ids, mask = feeds["ids"], feeds["mask"]
        shapes.append(ids.shape)
        vector = np.repeat((ids * mask).sum(1)[:, None], 3, 1).astype(np.float32)
        return {"rows": np.stack([ids, mask], -1).astype(np.float32), "vector": vector}

    found = batches.mapped(run, case.io, case.feeds, case.tokens)
    values = {name: array.astype(int).ravel().tolist() for name, array in found.items()}
    said = "".join(f"{rows}x{size} " for rows, size in shapes) + "| "
    return said + " ".join("".join(f"{value}," for value in values[name]) for name in ("rows", "vector"))


def test_calls_and_results_are_pythons(cpp_build: Build) -> None:
    cases = [*CASES, *made_up(40)]
    done = cpp_build.run("map_calls", given="".join(f"{case.line}\n" for case in cases))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [of_python(case) for case in cases]


@pytest.mark.parametrize("wrong", ["fewer", "narrow", "cuda", "nowhere"])
def test_inputs_that_do_not_fit_are_refused_before_a_call(cpp_build: Build, wrong: str) -> None:
    done = cpp_build.run("map_calls", given=f"{Case((5, 3)).line} {wrong}\n")
    assert done.stdout.startswith("| "), done.stderr
    assert "ids" in done.stdout


def test_a_vector_is_embedded_and_not_beside_a_score_of_a_reranker(cpp_build: Build) -> None:
    done = cpp_build.run("map_calls", given="".join(f"{Case((5, 3)).line} {word}\n" for word in ("vector", "scores")))
    name, refused = done.stdout.splitlines()
    assert name == "vector"
    assert "embed: got the outputs" in refused
    assert "scores=float32[batch]" in refused


def embed(build: Build, app: Path, form: str, texts: list[str], tokens: int = 100) -> subprocess.CompletedProcess[str]:
    given = "".join(text.encode().hex() + "\n" for text in texts)
    return build.run("embed_texts", app, form, str(tokens), given=given)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["ort_cpu", "openvino"])
def test_vectors_of_texts_are_pythons_bit_for_bit(cpp_build: Build, form: str, minilm_app: Path) -> None:
    with reader.load(minilm_app, form=form, threads=1) as model:
        expected = model.embed(TEXTS, tokens=100)
    done = embed(cpp_build, minilm_app, form, TEXTS)
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
        for tokens in (0, 20):
            expected = model.map(feeds, tokens=tokens or 1024)
            found = opened.map(feeds, tokens)
            assert {name: array.tobytes() for name, array in found.items()} == {
                name: array.tobytes() for name, array in expected.items()
            }
        with pytest.raises(c.Failed, match="tokens: got -1"):
            opened.map(feeds, -1)


@pytest.mark.slow
def test_the_c_interface_embeds_as_python_does(library: c.Library, minilm_app: Path) -> None:
    with reader.load(minilm_app, threads=1) as model, library.open(minilm_app, threads=1) as opened:
        (found,) = opened.embed(TEXTS, 100).values()
        assert found.tobytes() == model.embed(TEXTS, tokens=100).tobytes()
        for texts, words in (([], "texts: got none"), (["a", None], "a text")):
            with pytest.raises(c.Failed, match=words):
                opened.embed(texts)


@pytest.mark.slow
def test_texts_that_do_not_fit_are_refused(cpp_build: Build, minilm_app: Path, app: Path) -> None:
    for folder, texts, tokens in ((minilm_app, [], 100), (minilm_app, ["a"], 0), (app, ["a"], 100)):
        done = embed(cpp_build, folder, "ort_cpu", texts, tokens)
        assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_a_text_that_is_no_utf8_is_named_by_its_place_among_all(cpp_build: Build, minilm_app: Path) -> None:
    done = cpp_build.run("embed_texts", minilm_app, "ort_cpu", "1024", given="61\n" * 1030 + "ff\n")
    assert done.returncode == 2
    assert done.stderr.startswith("texts[1030]: got ")
