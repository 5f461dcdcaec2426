"""Sparse and multi-vector encoders, static tables and Routers, and the methods of sentence-transformers on a bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from small_search import (
    LENGTH,
    bundled,
    colbert,
    save_colbert,
    save_router,
    save_splade,
    save_static,
    splade,
)
from tokenizer_files import SENTENCES

from attnport.errors import SpecError
from attnport.verbs.export import export
from attnport_bundle import FeedError, IntegrityError, Model, load
from attnport_bundle.format.manifest import AnyText, Prompts
from attnport_bundle.search import prompt_of

TEXTS = [*SENTENCES[:70], "", "word " * 60, "Stop. Now, please.", "a"]


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("splade")
    save_splade(folder / "model", max_active_dims=30)
    return folder / "model", bundled(folder / "model", folder)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("colbert")
    save_colbert(folder / "model")
    return folder / "model", bundled(folder / "model", folder)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("static")
    table = save_static(folder / "model").numpy()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model" / "0_StaticEmbedding" / "tokenizer.json"))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    return bundled(folder / "model", folder), np.stack([table[one].mean(0) if one else np.zeros(8) for one in ids])


def largest(rows: Any, count: int) -> Any:
    """Rows with their so many largest numbers alone."""
    return np.where(rows >= np.sort(rows, axis=1)[:, -count, None], rows, 0)


def test_sparse_vectors_are_those_of_splade(sparse: tuple[Path, Path]) -> None:
    folder, app = sparse
    wanted = splade(folder, TEXTS)
    with load(app) as model:
        got = model.encode(TEXTS, batch_size=8)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got.dense(), largest(wanted, 30), atol=1e-4)
        few = model.encode_sparse(iter(TEXTS), max_active_dims=3)
        np.testing.assert_allclose(few.dense(), largest(wanted, 3), atol=1e-4)
        assert (np.diff(few.indptr) <= 3).all()
        np.testing.assert_allclose(model.similarity(got, few), got.dense() @ few.dense().T, rtol=1e-4)
        first = few.rows()[0]
        assert list(first.values()) == sorted(first.values(), reverse=True)
        tokenizer = tokenizers.Tokenizer.from_file(str(app / "tokenizer.json"))
        words = model.decode(few, top_k=2)[0]
        assert [tokenizer.token_to_id(word) for word, _ in words] == list(first)[:2]


@pytest.mark.parametrize("role", ["query", "document"])
def test_vectors_of_tokens_are_those_of_colbert(role: str, tokens: tuple[Path, Path]) -> None:
    folder, app = tokens
    before = "who: " if role == "query" else ""
    with load(app) as model:
        found = getattr(model, f"encode_{role}")(TEXTS)
        for text, got in zip(TEXTS, found, strict=True):
            wanted = colbert(folder, before + text, role, attend=False, fixed=True)
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, atol=1e-4)
        if role == "query":
            assert {len(one) for one in found} == {LENGTH}
        assert model.encode(TEXTS[0], task=role, prompt=before).shape == found[0].shape


def test_texts_are_as_alike_as_their_likest_tokens(tokens: tuple[Path, Path]) -> None:
    with load(tokens[1]) as model:
        queries, documents = model.encode_query(TEXTS[:3]), model.encode_document(TEXTS[:5])
        scores = model.similarity(queries, documents)
        assert scores.shape == (3, 5)
        for (at, other), got in np.ndenumerate(scores):
            assert got == pytest.approx((queries[at] @ documents[other].T).max(1).sum(), rel=1e-5)
        assert model.similarity(queries[0], documents[1]) == pytest.approx(scores[:1, 1:2])


@pytest.mark.slow
@pytest.mark.parametrize(("attend", "strategy"), [(True, "fixed"), (True, "min"), (False, "min")])
def test_queries_are_made_longer_as_the_folder_says(attend: bool, strategy: str, tmp_path: Path) -> None:
    save_colbert(tmp_path / "model", attend=attend, strategy=strategy)
    with load(bundled(tmp_path / "model", tmp_path)) as model:
        assert ("attended_mask" in {spec.name for spec in model.io.inputs}) is not attend
        for text, got in zip(TEXTS, model.encode_query(TEXTS, prompt=""), strict=True):
            wanted = colbert(tmp_path / "model", text, "query", attend=attend, fixed=strategy == "fixed")
            np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_a_router_is_a_model_for_each_of_its_ways(tmp_path: Path) -> None:
    weights = save_router(tmp_path / "model").numpy()
    with pytest.raises(SpecError, match="one of several models, by what a text is for: query, document"):
        export(f"hf:{tmp_path / 'model'}", tmp_path / "out")
    query, document = (bundled(tmp_path / "model", tmp_path, part) for part in ("query", "document"))
    inner = tmp_path / "model" / "document_0_Transformer"
    tokenizer = tokenizers.Tokenizer.from_file(str(inner / "tokenizer.json"))
    wanted = np.zeros((len(TEXTS), len(weights)), np.float32)
    for row, text in zip(wanted, TEXTS, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        row[ids] = weights[ids]
    with load(query) as asks, load(document) as answers:
        queries, documents = asks.encode_query(TEXTS), answers.encode_document(TEXTS)
        np.testing.assert_allclose(queries.dense(), wanted, rtol=1e-6)
        np.testing.assert_allclose(documents.dense(), splade(inner, TEXTS), atol=1e-4)
        np.testing.assert_allclose(asks.similarity(queries, documents), wanted @ documents.dense().T, rtol=1e-4)


@pytest.mark.parametrize("place", ["../elsewhere", "/etc"])
def test_a_router_leads_to_nothing_outside_of_its_folder(place: str, tmp_path: Path) -> None:
    save_router(tmp_path / "model")
    values = json.loads((tmp_path / "model" / "router_config.json").read_text())
    values["types"][place] = "a.Transformer"
    values["structure"]["query"] = [place]
    (tmp_path / "model" / "router_config.json").write_text(json.dumps(values))
    with pytest.raises(SpecError, match="outside the folder"):
        export(f"hf:{tmp_path / 'model'}", tmp_path / "out", part="query")


def test_a_table_gives_the_mean_of_a_texts_rows(static: tuple[Path, Any]) -> None:
    app, wanted = static
    with load(app) as model:
        np.testing.assert_allclose(model.embed(TEXTS), wanted, atol=1e-5)
        np.testing.assert_allclose(model.encode(TEXTS[3]), wanted[3], atol=1e-5)


def test_vectors_are_cut_and_normalised_as_sentence_transformers_does(static: tuple[Path, Any]) -> None:
    app, wanted = static
    with load(app) as model:
        cut = model.encode(TEXTS, batch_size=4, truncate_dim=5, normalize_embeddings=True, show_progress_bar=False)
        lengths = np.linalg.norm(wanted[:, :5], axis=1, keepdims=True)
        np.testing.assert_allclose(cut, wanted[:, :5] / np.maximum(lengths, 1e-12), atol=1e-5)
        vectors = model.encode(TEXTS[:4])
        alike = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(model.similarity(vectors, vectors[0]), alike @ alike[:1].T, atol=1e-6)
        assert model.embed_query(TEXTS[0]) == pytest.approx(wanted[0].tolist(), abs=1e-5)
        assert [len(one) for one in model.embed_documents(TEXTS[:3])] == [8, 8, 8]
        assert model.embed_documents([]) == []


@pytest.mark.parametrize("role", ["query", "document"])
def test_a_role_has_the_prompt_of_its_name_and_no_other_in_its_place(role: str) -> None:
    prompts = Prompts({"mine": AnyText("x: "), "passage": AnyText("p: ")}, "mine")
    assert prompt_of(prompts, role, None, None) == ""
    assert prompt_of(Prompts({role: AnyText("r: ")}), role, None, None) == "r: "
    assert prompt_of(prompts, "", None, None) == "x: "
    assert prompt_of(prompts, role, "passage", None) == "p: "
    assert prompt_of(prompts, role, "", "mine: ") == "mine: "


def refused(model: Model) -> dict[str, Any]:
    """What an embedder refuses, by a part of what is said."""
    return {
        "got the outputs .* of this embedder; expected scores or logits": lambda: model.predict(["a"]),
        r"encode_sparse: .* expected 'sparse_embedding', of a sparse encoder": lambda: model.encode_sparse("a"),
        r"texts\[1\]: got \('a', 'b'\); expected a text; pairs are for `predict`": lambda: model.encode(
            ["a", ("a", "b")]
        ),
        r"texts\[0\]: got \('a', 'b'\)": lambda: model.embed([("a", "b")]),  # type: ignore[list-item]  # a pair is refused
        "encode: got convert_to_tensor=True; expected False: .*torch.from_numpy": lambda: model.encode(
            "a", convert_to_tensor=True
        ),
        "encode: got output_value='token_embeddings'": lambda: model.encode("a", output_value="token_embeddings"),
        "encode: got precision='int8'": lambda: model.encode("a", precision="int8"),
        "encode: got an unknown argument 'normalise'": lambda: model.encode("a", normalise=True),
        "truncate_dim: got 0": lambda: model.encode("a", truncate_dim=0),
        "max_active_dims: got 3; expected None": lambda: model.encode("a", max_active_dims=3),
        "task: got 'passage'": lambda: model.encode("a", task="passage"),
        "prompt: got 'mine'; expected the name of one": lambda: model.encode("a", prompt_name="mine"),
        "texts: got none": lambda: model.encode([]),
        "texts: got 3; expected a text, or several": lambda: model.encode(3),  # type: ignore[arg-type]  # a number is refused
        "similarity: got vectors": lambda: model.similarity(np.ones((2, 3)), np.ones((2, 4))),
    }


def test_what_has_no_meaning_for_an_embedder_is_refused(static: tuple[Path, Any]) -> None:
    with load(static[0]) as model:
        for told, call in refused(model).items():
            with pytest.raises(FeedError, match=told):
                call()


def test_other_kinds_say_what_they_are(sparse: tuple[Path, Path], tokens: tuple[Path, Path]) -> None:
    with load(sparse[1]) as model:
        with pytest.raises(FeedError, match=r"embed: .* of this sparse encoder"):
            model.embed(["a"])
        with pytest.raises(FeedError, match=r"embed_query: .* of this sparse encoder"):
            model.embed_query("a")
        with pytest.raises(FeedError, match="no normalize_embeddings"):
            model.encode("a", normalize_embeddings=True)
        with pytest.raises(FeedError, match="expected two results of encode_sparse"):
            model.similarity(model.encode("a"), np.ones((1, 3)))
    with load(tokens[1]) as model:
        with pytest.raises(FeedError, match=r"embed: .* of this multi-vector encoder"):
            model.embed(["a"])
        with pytest.raises(FeedError, match="truncate_dim"):
            model.encode("a", truncate_dim=3)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"active": 0}, "got active 0; expected 1 or more"),
        ({"similarity": "best"}, "similarity: got 'best'"),
        ({"skipped": [-1]}, "a skipped token below 0"),
        ({"expansion": {"token": 1, "length": 1 << 40, "fixed": True, "attended": True}}, "length"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_a_changed_file_of_search_is_refused(
    change: dict[str, Any], told: str, sparse: tuple[Path, Path], tmp_path: Path
) -> None:
    app = tmp_path / "app"
    shutil.copytree(sparse[1], app)
    values = json.loads((app / "search.json").read_text())
    (app / "search.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(IntegrityError, match=r"search\.json"):
        load(app)
    with pytest.raises(IntegrityError, match=told):
        load(app, check_files=False)
