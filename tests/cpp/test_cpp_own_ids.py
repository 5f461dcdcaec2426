"""Text for tokenizers that the C++ reader does not read: ids of the application's, the vectors of Python's `embed`."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import c_binding as c
import numpy as np
import pytest
from cpp_builds import Build, onnxruntime_library
from tokenizers import Tokenizer

from attnport_bundle import load

BUNDLING = Path(__file__).resolve().parents[1] / "bundling"
if str(BUNDLING) not in sys.path:
    sys.path.append(str(BUNDLING))  # where the models are that both readers are given

from small_embedders import PROMPTS, Embedder, bundled, save  # noqa: E402 - see above

pytestmark = pytest.mark.slow

TEXTS = ["How far is it?", "", "word " * 60, "Ünïcode", "x"] * 3
EMBEDDERS = {
    "pads at the left": Embedder("ending", "Qwen2", "lasttoken", left=True),
    "leaves its prompt out": Embedder("unigram", "XLMRoberta", include_prompt=False, default="query"),
}
BERT = Embedder("word_pieces", "Bert", include_prompt=False)


@pytest.fixture(scope="module", params=EMBEDDERS)
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    return bundled(save(EMBEDDERS[request.param], folder / "model"), folder, ["ort_cpu"])


def tokenizer_of(app: Path) -> Tokenizer:
    made = Tokenizer.from_file(str(app / "tokenizer.json"))
    made.no_padding()
    made.no_truncation()
    return made


def given(app: Path, prompt: str) -> str:
    """What own_ids.cpp is told: the ids of each text with its prompt, and those of the prompt."""
    made = tokenizer_of(app)

    def line(text: str) -> str:
        return f"{text.encode().hex()} {' '.join(map(str, made.encode(text).ids))}\n"

    return "".join([*(line(prompt + text) for text in TEXTS), f"#{line(prompt)}"])


def vectors(printed: str) -> np.ndarray[Any, Any]:
    rows = [[float.fromhex(value) for value in row.split()] for row in printed.splitlines()]
    return np.array(rows).astype(np.float32)


def test_vectors_of_an_applications_ids_are_pythons_bit_for_bit(app: Path, cpp_build: Build) -> None:
    with load(app, form="ort_cpu", threads=1) as model:
        for prompt in (None, "", "query", "document"):
            name = prompt if prompt is not None else model.default_prompt_name or ""
            text = given(app, PROMPTS.get(name, ""))
            more = () if prompt is None else (prompt,)
            done = cpp_build.run("own_ids", app, "ort_cpu", "0", *more, given=text)
            assert done.returncode == 0, done.stderr
            assert np.array_equal(vectors(done.stdout), model.embed(TEXTS, prompt=prompt)), prompt


def test_errors_say_what_to_do(app: Path, cpp_build: Build) -> None:
    done = cpp_build.run("embed_texts", app, "ort_cpu", "1024", given="61\n")
    assert done.returncode == 2
    assert "Options::tokenize" in done.stderr
    done = cpp_build.run("own_ids", app, "ort_cpu", "30", "", given=given(app, ""))
    assert (done.returncode, done.stderr) == (
        2, "texts[2]: the application's tokenizer gave 30 ids; expected at most 24.\n")  # fmt: skip
    done = cpp_build.run("own_ids", app, "ort_cpu", "0", "passage", given=given(app, ""))
    assert (done.returncode, done.stderr) == (
        2, "prompt: got 'passage'; expected the name of one: document, query. Put a prompt of your own before the "
           "texts.\n")  # fmt: skip


def test_the_c_interface_takes_a_function_too(
    app: Path, cpp_shared: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNPORT_ONNXRUNTIME", str(onnxruntime_library()))
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    library, made = c.Library(cpp_shared.library), tokenizer_of(app)
    counts: list[int] = []

    def tokenize(user: int, text: bytes, ids: Any, longest: int) -> int:
        assert user == 7
        made.enable_truncation(longest)
        found = made.encode(text.decode()).ids
        for at, number in enumerate(found):  # a pointer takes no slice
            ids[at] = number
        return counts.pop() if counts else len(found)

    function = c.TOKENIZE(tokenize)
    with (
        load(app, form="ort_cpu", threads=1) as model,
        library.open(app, threads=1, form=b"ort_cpu", tokenize=function, tokenize_user=ctypes.c_void_p(7)) as opened,
    ):
        for prompt in (None, "", "query"):
            (found,) = opened.embed(TEXTS, prompt=prompt).values()
            assert np.array_equal(found, model.embed(TEXTS, prompt=prompt))
        for wrong in (-1, 25):
            counts.append(wrong)
            with pytest.raises(c.Failed, match=f"tokenize gave {wrong}; expected 0 to 24 ids"):
                opened.embed(["a"])


def test_prompts_of_berts_tokenizers_are_put_there_and_left_out(
    cpp_shared: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNPORT_ONNXRUNTIME", str(onnxruntime_library()))
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    app, library = bundled(save(BERT, tmp_path / "model"), tmp_path, ["ort_cpu"]), c.Library(cpp_shared.library)
    with load(app, threads=1) as model, library.open(app, threads=1) as opened:
        for prompt in (None, "query", "document"):
            (found,) = opened.embed(TEXTS, prompt=prompt).values()
            assert np.array_equal(found, model.embed(TEXTS, prompt=prompt))
        assert np.abs(model.embed(TEXTS, prompt="query") - model.embed(TEXTS)).max() > 1e-2
