"""The example of the C++ reader: semantic search, text in and text out, against the same in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cpp_builds import ROOT, Build

from attnport_bundle import load

SENTENCES = ROOT / "examples" / "sentences.txt"
QUESTIONS = ("I need something for my headache.", "Which train goes to the sea?", "How do I bake bread?")


def best(app: Path, question: str) -> list[tuple[float, str]]:
    sentences = SENTENCES.read_text("utf-8").splitlines()
    with load(app) as model:
        asked, *known = model.embed([question, *sentences])
    scores = np.stack(known) @ asked
    return [(float(scores[at]), sentences[at]) for at in np.argsort(-scores, kind="stable")[:3]]


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_the_answers_of_python(cpp_build: Build, minilm_app: Path, question: str) -> None:
    done = cpp_build.run("attnport-search", minilm_app, SENTENCES, question)
    assert done.returncode == 0, done.stderr
    answers = [line.split("  ", 1) for line in done.stdout.splitlines()]
    wanted = best(minilm_app, question)
    assert [sentence for _, sentence in answers] == [sentence for _, sentence in wanted]
    for (score, _), (its, _) in zip(answers, wanted, strict=True):
        assert float(score) == pytest.approx(its, abs=1e-4)
    assert wanted[0][0] > wanted[1][0]


def test_wrong_use_and_a_model_that_reads_no_text_are_exit_2(cpp_build: Build, app: Path, tmp_path: Path) -> None:
    for arguments in ((), (app, SENTENCES), (app, SENTENCES, "a"), (tmp_path, SENTENCES, "a"), (app, tmp_path, "a")):
        done = cpp_build.run("attnport-search", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(("usage: ", "error: "))
