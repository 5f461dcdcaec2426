"""The example of the C++ reader: semantic search, text in and text out, against the same in Python."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpp_builds import ROOT, Build

from attnport_bundle import Tokenizer, load

SENTENCES = ROOT / "examples" / "sentences.txt"
QUESTIONS = ("I need something for my headache.", "Which train goes to the sea?", "How do I bake bread?")


def best(app: Path, question: str, top: int) -> list[tuple[float, str]]:
    """As the README has it, for more than one answer."""
    sentences = SENTENCES.read_text("utf-8").splitlines()
    with load(app) as model:
        tokenizer = Tokenizer(app / "tokenizer.json", model.io)
        texts = [*sentences, question]
        batches = [texts[at : at + 50] for at in range(0, len(texts), 50)]
        found: list[np.ndarray[Any, Any]] = [
            model.run(**tokenizer.encode(batch))["sentence_embedding"] for batch in batches
        ]
    embedding = np.concatenate(found)
    *known, asked = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    scores = np.stack(known) @ asked
    return [(float(scores[at]), sentences[at]) for at in np.argsort(-scores, kind="stable")[:top]]


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_the_answers_of_python(cpp_build: Build, minilm_app: Path, question: str) -> None:
    done = cpp_build.run("attnport-search", minilm_app, SENTENCES, question, "--top", "5")
    assert done.returncode == 0, done.stderr
    answers = [line.split("  ", 1) for line in done.stdout.splitlines()]
    wanted = best(minilm_app, question, 5)
    assert [sentence for _, sentence in answers] == [sentence for _, sentence in wanted]
    for (score, _), (its, _) in zip(answers, wanted, strict=True):
        assert float(score) == pytest.approx(its, abs=1e-4)
    assert wanted[0][0] > wanted[1][0]


@pytest.mark.slow
def test_three_answers_are_given_unless_asked_otherwise(cpp_build: Build, minilm_app: Path, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_bytes("Es regnet.\r\n\r\nÇa va ?\r\nfour\nfive".encode())
    assert len(cpp_build.run("attnport-search", minilm_app, tmp_path / "some.txt", "it rains").stdout.splitlines()) == 3
    every = cpp_build.run("attnport-search", minilm_app, tmp_path / "some.txt", "it rains", "--top", "9")
    assert sorted(line[8:] for line in every.stdout.splitlines()) == ["Es regnet.", "five", "four", "Ça va ?"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "question", "said"),
    [
        (None, "a", "error: cannot read "),
        (b"\n\r\n", "a", " has no sentences; expected one a line\n"),
        (b"a\nb\xff\n", "a", "error: texts[1]: got no UTF-8 at byte 1; expected text in UTF-8.\n"),
        (b"a\n", b"\xff", "error: texts[0]: got no UTF-8 at byte 0; expected text in UTF-8.\n"),
    ],
)
def test_what_is_no_text_is_an_error(
    cpp_build: Build, minilm_app: Path, tmp_path: Path, content: bytes | None, question: str | bytes, said: str
) -> None:
    if content is not None:
        (tmp_path / "some.txt").write_bytes(content)
    done = cpp_build.run("attnport-search", minilm_app, tmp_path / "some.txt", os.fsdecode(question))
    assert (done.returncode, said in done.stderr, done.stdout) == (2, True, "")


CHANGES: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "no bundle": (lambda app: (app / "bundle.json").unlink(), 2, "error: "),
    "a changed tokenizer": (
        lambda app: (app / "tokenizer.json").write_text("{}", "utf-8"),
        6,
        "tokenizer.json: changed",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_bundle_that_is_not_right_ends_as_the_selftest_does(
    cpp_build: Build, minilm_app: Path, tmp_path: Path, name: str
) -> None:
    change, code, said = CHANGES[name]
    app = shutil.copytree(minilm_app, tmp_path / "app")
    change(app)
    done = cpp_build.run("attnport-search", app, SENTENCES, "a")
    assert (done.returncode, said in done.stderr) == (code, True)


def test_a_model_that_reads_no_text_says_so(cpp_build: Build, app: Path) -> None:
    done = cpp_build.run("attnport-search", app, SENTENCES, "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {app} has no tokenizer.json, so " in done.stderr


@pytest.mark.parametrize("arguments", [(), ("app",), ("app", "file", "a", "--top"), ("app", "file", "a", "--top", "0")])
def test_wrong_use_shows_the_usage(cpp_build: Build, arguments: tuple[str, ...]) -> None:
    done = cpp_build.run("attnport-search", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'usage: attnport-search APP SENTENCES.txt "question" [--top N]\n'
