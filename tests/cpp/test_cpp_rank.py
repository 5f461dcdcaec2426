"""Pairs of texts in the C++ reader: the scores and the order of `predict` and `rank` in Python."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import c_binding as c
import cpp_builds
import numpy as np
import pytest
from cpp_builds import NEW, Build, onnxruntime_library
from cpp_consumers import PROJECT, built, consumer

from attnport_bundle import load

BUNDLING = Path(__file__).resolve().parents[1] / "bundling"
if str(BUNDLING) not in sys.path:
    sys.path.append(str(BUNDLING))  # where the models are that both readers are given

from small_embedders import Embedder, bundled, save_cross  # noqa: E402 - see above

PAIRS = [
    ("How far is it?", "It is ten miles."),
    ("How far is it?", "Ünïcode, and 漢字"),
    ("short", "word " * 90),
    ("word " * 90, "a " * 91),
    ("a " * 91, "word " * 90),
    ("word " * 90, "end"),
    ("", "x"),
    ("x", ""),
]


@pytest.fixture(scope="module", params=[1, 3], ids=["one score", "three classes"])
def reranker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross")
    model = save_cross(folder / "model", Embedder("word_pieces", "Bert"), request.param)
    return bundled(model, folder, ["ort_cpu"], lang=["python", "cpp"])


def scored(build: Build, app: Path, rows: Sequence[Sequence[str]]) -> subprocess.CompletedProcess[str]:
    given = "".join(" ".join(text.encode().hex() for text in row) + "\n" for row in rows)
    return build.run("rank_texts", app, "64", given=given)


def test_pairs_have_the_scores_and_the_order_of_python(cpp_build: Build, reranker: Path) -> None:
    with load(reranker, threads=1) as model:
        expected = model.predict(PAIRS, tokens=64)
        done = scored(cpp_build, reranker, PAIRS)
        shape, *values = done.stdout.splitlines()
        assert [int(size, 16) for size in shape.split()] == [*expected.shape], done.stderr
        found = np.array([float.fromhex(value) for value in values[: expected.size]], np.float32)
        assert np.abs(found - expected.reshape(-1)).max() < 1e-6
        if expected.ndim > 1:
            assert done.returncode == 2
            assert "rank: got the output" in done.stderr
            return
        assert done.returncode == 0, done.stderr
        ranked = [
            (int(at, 16), float.fromhex(score)) for at, score in (line.split() for line in values[expected.size :])
        ]
        wanted = [(one["corpus_id"], one["score"]) for one in model.rank(PAIRS[0][0], [pair[1] for pair in PAIRS])]
        assert [at for at, _ in ranked] == [at for at, _ in wanted]
        assert np.allclose([score for _, score in ranked], [score for _, score in wanted], atol=1e-6)


def test_single_texts_have_scores_of_their_own(cpp_build: Build, reranker: Path) -> None:
    texts = [pair[0] for pair in PAIRS]
    with load(reranker, threads=1) as model:
        expected = model.predict(iter(texts), tokens=64)
    _, *values = scored(cpp_build, reranker, [[text] for text in texts]).stdout.splitlines()
    found = np.array([float.fromhex(value) for value in values], np.float32)
    assert np.abs(found - expected.reshape(-1)).max() < 1e-6


def test_a_pair_that_does_not_fit_is_refused(cpp_build: Build, reranker: Path, made_bundle: Path) -> None:
    for app, rows, words in (
        (reranker, [["a", "b"], ["c"]], "others: got 1 texts; expected 2"),
        (reranker, [], "texts: got none"),
        (made_bundle, [["a", "b"]], "predict: got the outputs"),
    ):
        done = scored(cpp_build, app, rows)
        assert done.returncode == 2
        assert words in done.stderr


def test_the_c_interface_gives_scores(
    cpp_shared: Build, reranker: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNPORT_ONNXRUNTIME", str(onnxruntime_library()))
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    texts, others = zip(*PAIRS, strict=True)
    with load(reranker, threads=1) as model, c.Library(cpp_shared.library).open(reranker, threads=1) as opened:
        for given, second in ((PAIRS, others), (texts, None)):
            (found,) = opened.predict(texts, second).values()
            assert np.abs(found - model.predict(iter(given))).max() < 1e-6


@pytest.mark.slow
def test_the_first_program_of_the_page_gives_scores(reranker: Path) -> None:
    page = (reranker / "cpp" / "README.md").read_text("utf-8")
    program = re.findall(r"^    #include.*\n(?:    .*\n|\n)*?    }\n(?=\n)", page, re.MULTILINE)[0]
    code = re.sub(r"^    ", "", program, flags=re.MULTILINE)
    with cpp_builds.locked("consumer"):
        folder = consumer(
            "scores", reranker, PROJECT.format("set(BUILD_SHARED_LIBS OFF)\nadd_subdirectory(app/cpp)\n"), code
        )
        loose = ("-DCMAKE_CXX_FLAGS=-O0", "-DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON")
        done = built(folder, f"-DONNXRUNTIME_INCLUDE_DIR={cpp_builds.headers(NEW)}", *loose)
    assert re.match(r"document [01] [-.\d]+\ndocument [01] |2 texts, 3 classes", done.stdout), done.stderr
