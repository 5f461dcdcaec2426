"""`predict` and `rank` of a bundle give the scores of sentence-transformers' cross-encoders, of pairs of texts."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_embedders import Embedder, bundled, save_cross
from tokenizer_files import SENTENCES

from attnport_bundle import FeedError, Model, load

PAIRS = [
    *zip(SENTENCES[:8], SENTENCES[8:16], strict=True),
    ("short", "word " * 60),
    ("word " * 60, "a " * 60),
    ("", "x"),
]


def expected(folder: Path, longest: int, texts: Any, labels: int) -> np.ndarray[Any, Any]:
    """What `predict` of sentence-transformers gives, one at a time, so that there is no padding."""
    import torch
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=False).eval()
    rows = []
    for each in texts:
        given = each if isinstance(each, tuple) else (each,)
        with torch.no_grad():
            logits = model(**tokenizer(*given, truncation=True, max_length=longest, return_tensors="pt")).logits[0]
        rows.append((torch.sigmoid(logits[0]) if labels == 1 else logits).numpy())
    return np.stack(rows)


@pytest.fixture(
    scope="module", params=[("word_pieces", "Bert", 1), ("byte_pairs", "Roberta", 3)], ids=["BERT", "RoBERTa"]
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    kind, model, labels = request.param
    folder = tmp_path_factory.mktemp("cross")
    save_cross(folder / "model", Embedder(kind, model), labels)
    return folder / "model", bundled(folder / "model", folder, ["ort_cpu"]), labels


def limit_of(model: Model) -> int:
    return model.manifest.text_limit or next(dim.max for dim in model.io.dims if dim.name == "seq")


def test_scores_are_those_of_a_cross_encoder(made: tuple[Path, Path, int]) -> None:
    folder, app, labels = made
    with load(app) as model:
        texts = [*PAIRS, "a text alone"]
        got = model.predict(iter(texts), tokens=64)
        wanted = expected(folder, limit_of(model), texts, labels)
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() < 1e-4
        assert np.abs(got - model.predict([*((b, a) for a, b in PAIRS), "another"])).max() > 1e-3
        with pytest.raises(FeedError, match="neither scores nor logits"):
            model.embed(["a text"])


def test_the_reader_of_its_own_cuts_pairs_as_the_package(
    made: tuple[Path, Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, app, labels = made
    if labels != 1:
        return  # byte pairs are read by the package alone
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tokenizers" else found(name))
    with load(app) as model:
        assert type(model._text()._words).__name__ == "WordPiece"
        assert np.abs(model.predict(PAIRS) - expected(folder, limit_of(model), PAIRS, labels)).max() < 1e-4


def test_documents_are_ranked_by_their_scores(made: tuple[Path, Path, int]) -> None:
    _, app, labels = made
    documents = list(SENTENCES[:6])
    with load(app) as model:
        if labels > 1:
            with pytest.raises(FeedError, match=r"rank: got \(6, 3\); expected one score for each document"):
                model.rank("a query", documents)
            return
        scores = model.predict([("a query", document) for document in documents])
        ranked = model.rank("a query", documents, top_k=4)
        assert [each["corpus_id"] for each in ranked] == list(np.argsort(-scores))[:4]
        best = model.rank("a query", documents, 1, True, batch_size=8, show_progress_bar=False)
        assert best == [{**ranked[0], "text": documents[ranked[0]["corpus_id"]]}]
        assert [each["score"] for each in ranked] == pytest.approx(sorted(scores, reverse=True)[:4], abs=1e-6)
        with pytest.raises(FeedError, match="top_k: got 0"):
            model.rank("a query", documents, top_k=0)


def test_one_logit_of_a_plain_classifier_is_scored_as_a_cross_encoder_does(tmp_path: Path) -> None:
    folder = save_cross(tmp_path / "model", Embedder("word_pieces", "Bert"), 1)
    (folder / "config_sentence_transformers.json").unlink()  # nothing says what it is
    with load(bundled(folder, tmp_path, ["ort_cpu"])) as model:
        assert [spec.name for spec in model.io.outputs] == ["logits"]
        wanted = expected(folder, limit_of(model), PAIRS, 1)
        got = model.predict(PAIRS)
        assert got.shape == wanted.shape == (len(PAIRS),)
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        logits = model.predict(PAIRS, activation_fn="Identity")
        np.testing.assert_allclose(1 / (1 + np.exp(-logits)), wanted, atol=1e-4)
        assert model.rank("a", ["b", "c"])[0]["score"] < 1


def test_one_pair_has_one_score_and_no_document_no_rank(made: tuple[Path, Path, int]) -> None:
    with load(made[1]) as model:
        scores = model.predict(PAIRS[:2])
        assert model.predict(PAIRS[0]) == pytest.approx(scores[0], abs=1e-5)
        assert model.predict(list(PAIRS[0])) == pytest.approx(scores[0], abs=1e-5)
        with pytest.raises(FeedError, match=r"texts\[0\]: got \('a', 'b', 'c'\)"):
            model.predict(["a", "b", "c"])
        assert model.rank("a query", []) == []


def test_a_prompt_stands_before_the_first_text_of_a_pair(made: tuple[Path, Path, int], tmp_path: Path) -> None:
    folder, app, _ = made
    named = tmp_path / "model"
    shutil.copytree(folder, named)
    settings = {"model_type": "CrossEncoder", "prompts": {"ask": "who: "}, "default_prompt_name": "ask"}
    (named / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with load(app) as model, load(bundled(named, tmp_path, ["ort_cpu"])) as prompted:
        wanted = model.predict([(f"who: {a}", b) for a, b in PAIRS])
        np.testing.assert_allclose(prompted.predict(PAIRS), wanted, atol=1e-5)
        np.testing.assert_allclose(model.predict(PAIRS, prompt="who: "), wanted, atol=1e-5)
        np.testing.assert_allclose(prompted.predict(PAIRS, prompt=""), model.predict(PAIRS), atol=1e-5)


def test_another_activation_is_applied(made: tuple[Path, Path, int]) -> None:
    _, app, labels = made
    with load(app) as model:
        logits = model.predict(PAIRS, activation_fn="Identity", batch_size=4)
        assert logits.shape == ((len(PAIRS),) if labels == 1 else (len(PAIRS), labels))
        sigmoid = type("Sigmoid", (), {})()  # as torch's module is called
        np.testing.assert_allclose(model.predict(PAIRS, activation_fn=sigmoid), 1 / (1 + np.exp(-logits)), rtol=1e-5)
        shares = model.predict(PAIRS, apply_softmax=True)
        if labels > 1:
            expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            np.testing.assert_allclose(shares, expected, rtol=1e-5)
        with pytest.raises(FeedError, match="activation_fn: got 'Tanh'; expected Sigmoid, Identity or None"):
            model.predict(PAIRS, activation_fn="Tanh")
        with pytest.raises(FeedError, match="predict: got an unknown argument 'top_k'"):
            model.predict(PAIRS, top_k=3)


@pytest.mark.parametrize("wrong", [3, ("a",), ("a", "b", "c"), ("a", 3), ["a", None], ("a", "\ud800")])
def test_what_is_no_text_and_no_pair_is_refused_by_its_number(made: tuple[Path, Path, int], wrong: Any) -> None:
    with load(made[1]) as model, pytest.raises(FeedError, match=r"texts\[1\]: got"):
        model.predict([("a", "text"), wrong])


def test_the_page_of_the_bundle_scores_texts(made: tuple[Path, Path, int]) -> None:
    _, app, labels = made
    page = (app / "README.md").read_text("utf-8")
    assert ("model.rank(" in page) is (labels == 1)
    assert ("model.predict(" in page) is (labels == 3)
    assert "model.embed(" not in page
    assert ("predict(texts, apply_softmax=True)` gives probabilities" in page) is (labels == 3)
    assert ("logits, unless the model's config names an activation" in page) is (labels == 3)
    with load(app) as model:
        if labels == 3:  # as the page says
            np.testing.assert_allclose(model.predict(PAIRS, apply_softmax=True).sum(1), 1, atol=1e-6)
            ((one, *_),) = model.predict(PAIRS[:1], activation_fn="Sigmoid")
            assert 0 < one < 1
