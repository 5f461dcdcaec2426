"""`embed` of a bundle gives the vectors of sentence-transformers: prompts, limits, sides, poolings are the model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_embedders import PROMPTS, Embedder, bundled, expected, save
from tokenizer_files import SENTENCES

from attnport_bundle import FeedError, Model, load

pytestmark = pytest.mark.slow

TEXTS = [*SENTENCES[:12], "", "word " * 60, "  Ünïcödé\n", "a"]
EMBEDDERS = {
    "BERT": Embedder("word_pieces", "Bert", "cls", default="query"),
    "INSTRUCTOR": Embedder("word_pieces", "Bert", include_prompt=False),
    "RoBERTa": Embedder("byte_pairs", "Roberta"),
    "XLM-RoBERTa": Embedder("unigram", "XLMRoberta", include_prompt=False),
    "Qwen3-Embedding": Embedder("ending", "Qwen2", "lasttoken", left=True),
}


@pytest.fixture(scope="module", params=EMBEDDERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Embedder, Path, Path]:
    folder, embedder = tmp_path_factory.mktemp("embedder"), EMBEDDERS[request.param]
    save(embedder, folder / "model")
    return embedder, folder / "model", bundled(folder / "model", folder)


def largest_difference(model: Model, wanted: np.ndarray[Any, Any], prompt: str | None) -> float:
    got = model.embed(TEXTS, prompt=prompt, tokens=64)
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max())


@pytest.mark.parametrize("form", ["ort_cpu", "openvino"])
def test_vectors_are_those_of_sentence_transformers(made: tuple[Embedder, Path, Path], form: str) -> None:
    embedder, folder, app = made
    default = PROMPTS[embedder.default] if embedder.default else ""
    with load(app, form=form) as model:
        assert dict(model.prompts) == PROMPTS
        assert model.default_prompt_name == embedder.default
        for name, text in ((None, default), ("", ""), ("document", ""), ("query", PROMPTS["query"])):
            assert largest_difference(model, expected(embedder, folder, TEXTS, text), name) < 1e-4
        wrong = expected(embedder, folder, TEXTS, "Find\nanother: ")
        assert largest_difference(model, wrong, "query") > 1e-2
        with pytest.raises(FeedError, match="prompt: got 'passage'; expected the name of one: 'query', 'document'"):
            model.embed(TEXTS, prompt="passage")


def test_the_manifest_and_the_page_have_the_prompts(made: tuple[Embedder, Path, Path]) -> None:
    embedder, _, app = made
    manifest = json.loads((app / "bundle.json").read_text("utf-8"))
    assert manifest["prompts"] == {"named": PROMPTS, "default": embedder.default or ""}
    assert manifest["text_limit"] == embedder.longest
    page = (app / "README.md").read_text("utf-8")
    assert '- `prompt="query"`: `"Find\\nan answer: "`' in page
    assert f"longer than {embedder.longest} tokens" in page
    assert ("pip install tokenizers" in page) is (embedder.tokenizer != "word_pieces")
