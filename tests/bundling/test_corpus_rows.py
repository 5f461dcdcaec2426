"""Bundles over rows, without Ray: bad rows are named, others have what the model gives them alone, in their order."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_attention as tiny

from attnport_bundle import Model, corpus, load
from attnport_bundle.corpus import Embed, Run
from attnport_bundle.errors import BundleError, FeedError

LENGTHS = (5, 1, 9, 3, 9, 2)


def rows(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Token ids of different lengths, and a column that the model does not take."""
    draw = np.random.default_rng(0)
    ids = np.empty(len(lengths), dtype=object)
    ids[:] = [draw.integers(0, 50, length) for length in lengths]
    return {"ids": ids, "key": np.arange(len(lengths))}


def alone(model: Model, ids: Any) -> dict[str, Any]:
    return {name: array[0] for name, array in model.run(ids=np.asarray([ids]), **model.masks([len(ids)])).items()}


def test_each_row_has_what_the_model_gives_it_alone(app: Path, model: Model) -> None:
    given = rows()
    found = Run(app)(given)
    assert list(found["error"]) == [""] * len(LENGTHS)
    assert found["key"].tolist() == list(range(len(LENGTHS)))
    for at, length in enumerate(LENGTHS):
        for name, expected in alone(model, given["ids"][at]).items():
            assert found[name][at].shape == expected.shape
            np.testing.assert_allclose(found[name][at], expected, rtol=1e-4, atol=1e-5)
        assert len(found["hidden"][at]) == length


def test_a_mask_that_is_a_column_counts(app: Path, model: Model) -> None:
    given = rows((4, 6))
    given["attention_mask"] = np.empty(2, dtype=object)
    given["attention_mask"][:] = [np.array([1, 1, 0, 0]), np.ones(6, np.int64)]
    found = Run(app)(given)
    np.testing.assert_allclose(
        found["hidden"][0][:2], alone(model, given["ids"][0][:2])["hidden"], rtol=1e-4, atol=1e-5
    )
    given["attention_mask"][1] = np.ones(5, np.int64)
    assert Run(app)(given)["error"].tolist() == ["", "attention_mask: got seq=5; expected 6, as in ids."]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.array([3, 99]), "expected 0 to"),
        (np.array([1.5]), "got float64; expected int64"),
        (None, "got None; expected an array of rank 1"),
        (np.array([[1, 2]]), "got rank 2; expected an array of rank 1"),
        (["a", "b"], "expected int64"),
        ([1, None], "expected an array of rank 1"),
        (np.arange(2000) % 50, "ids: got seq=2000; expected 1 to 16."),
        (np.array([], np.int64), "ids: got seq=0; expected 1 to 16."),
    ],
)
@pytest.mark.parametrize("at", [0, 3, 5])
def test_a_bad_row_costs_itself_alone(app: Path, bad: Any, said: str, at: int) -> None:
    given, fine = rows(), Run(app)(rows())
    given["ids"][at] = bad
    found = Run(app)(given)
    assert said in found["error"][at]
    for other in set(range(len(LENGTHS))) - {at}:
        assert found["error"][other] == ""
        np.testing.assert_allclose(found["hidden"][other], fine["hidden"][other], rtol=1e-4, atol=1e-5)


def test_what_is_not_the_fault_of_the_rows_is_raised(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BundleError):
        Run(tmp_path / "nowhere")(rows())
    with pytest.raises(FeedError, match="column 'ids': the rows have key"):
        Run(app)({"key": np.arange(3)})
    with pytest.raises(FeedError, match="column 'error' is there already"):
        Run(app)({**rows(), "error": np.arange(len(LENGTHS))})
    with pytest.raises(FeedError, match="output 'logits': the model has hidden"):
        Run(app, outputs=["logits"])(rows())
    with pytest.raises(FeedError, match="ids: got float64; expected int64"):
        Run(app)({"ids": np.ones((3, 4))})
    with pytest.raises(FeedError, match=r"batch: got builtins\.list"):
        Run(app)([1, 2])
    with pytest.raises(FeedError, match="tokens: got 0"):
        Run(app, tokens=0)(rows())
    run = Run(app)
    run(rows())
    monkeypatch.setattr(Model, "map", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(rows())


def test_a_bundle_whose_file_changed_is_refused(app: Path) -> None:
    weights = next(app.glob("*.onnx"))
    weights.write_bytes(weights.read_bytes() + b"\0")
    with pytest.raises(BundleError, match="changed: got"):
        Run(app)(rows())


def test_files_are_compared_once_and_only_when_rows_come(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(folder: Any, **options: Any) -> Model:
        opened.append(options)
        return load(folder, **options)

    monkeypatch.setattr("attnport_bundle.model.load", counted)
    run = Run(app, threads=1)
    assert opened == []
    for _ in range(3):
        run(rows())
    assert opened == [{"threads": 1, "form": None, "require_signature": None}]
    again = pickle.loads(pickle.dumps(run))  # as an engine sends it, also after it was used
    assert again(rows())["error"].tolist() == [""] * len(LENGTHS)
    assert len(opened) == 2


def test_threads_are_the_cpus_that_ray_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(resources: dict[str, float], connected: bool = True) -> int | None:
        context = SimpleNamespace(get_assigned_resources=lambda: resources)
        ray = SimpleNamespace(is_initialized=lambda: connected, get_runtime_context=lambda: context)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return corpus._cpus_of_ray()

    assert pretend({"CPU": 2.0}) == 2
    assert pretend({"CPU": 0.5}) == 1
    assert pretend({}) is None
    assert pretend({"CPU": 2.0}, connected=False) is None
    monkeypatch.delitem(sys.modules, "ray")
    assert corpus._cpus_of_ray() is None
    assert "ray" not in sys.modules


def test_no_rows_and_only_bad_ones_have_the_same_columns(app: Path) -> None:
    empty = Run(app, outputs=["pooled"])({"ids": np.empty(0, dtype=object)})
    assert {name: column.shape for name, column in empty.items()} == {"ids": (0,), "pooled": (0, tiny.E), "error": (0,)}
    bad = Run(app, outputs=["pooled"])({"ids": np.array([None, None], dtype=object)})
    assert [bool(error) for error in bad["error"]] == [True, True]
    assert bad["pooled"].shape == (2, tiny.E)
    assert np.isnan(bad["pooled"]).all()


class Embedder:
    """Stands for an open embedder: a text's vector is its length; it takes no text with an x, and at most `most`."""

    error: type[Exception] = RuntimeError
    io = SimpleNamespace(outputs=(SimpleNamespace(name="vector", dtype="float32", dims=("batch", 2)),))

    def __init__(self, most: int = 100, broken: bool = False) -> None:
        self.most, self.broken, self.calls = most, broken, 0

    def embed(self, texts: list[str], **limits: Any) -> Any:
        self.calls += 1
        if self.broken or len(texts) > self.most or any("x" in text for text in texts):
            raise self.error("no")
        return np.array([[len(text)] * 2 for text in texts], np.float32)


def embed(model: Embedder, **options: Any) -> Embed:
    made = Embed("app", **options)
    made._opened = model  # type: ignore[assignment]
    return made


def test_rows_without_text_are_named_and_never_run() -> None:
    texts = ["a", None, "bbb", 7, b"bytes", float("nan"), "", "dd"]
    found = embed(Embedder())({"text": np.array(texts, dtype=object)})
    assert [bool(error) for error in found["error"]] == [False, True, False, True, True, True, False, False]
    assert found["error"][1] == "text: got None; expected text."
    assert found["embedding"].dtype == np.float32
    assert np.isnan(found["embedding"][[1, 3, 4, 5]]).all()
    assert found["embedding"][[0, 2, 6, 7], 0].tolist() == [1, 3, 0, 2]


class Unsaid(Exception):
    """An object, and an error, that cannot be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("not printed")

    __str__ = __repr__


def test_what_cannot_be_printed_costs_itself_alone(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "got a Unsaid that cannot be printed; expected"
    texts = np.array(["a", Unsaid(), "b"], dtype=object)
    assert embed(Embedder())({"text": texts})["error"].tolist() == ["", f"text: {said} text.", ""]
    given = rows()
    given["ids"][3] = Unsaid()
    errors = Run(app)(given)["error"].tolist()
    assert [at for at, error in enumerate(errors) if error] == [3]
    assert said in errors[3]
    monkeypatch.setattr(Embedder, "error", Unsaid)
    assert embed(Embedder())({"text": np.array(["a", "x"])})["error"].tolist() == ["", "Unsaid"]


def test_several_poisoned_texts_cost_a_few_runs_and_no_other_text() -> None:
    texts = [f"{at}" for at in range(1000)]
    for at in (0, 500, 501, 999):
        texts[at] = "x"
    model = Embedder()
    found = embed(model, column="words", output="v", error="why")({"words": np.array(texts)})
    assert [at for at, error in enumerate(found["why"]) if error] == [0, 500, 501, 999]
    assert found["why"][0] == "RuntimeError: no"
    assert found["v"][1:500, 0].tolist() == [len(text) for text in texts[1:500]]
    assert model.calls < 90


def test_a_batch_too_large_for_the_model_is_run_in_parts() -> None:
    found = embed(Embedder(most=3))({"text": np.array(["a"] * 10)})
    assert found["error"].tolist() == [""] * 10


def test_a_model_that_runs_nothing_ends_the_job() -> None:
    with pytest.raises(RuntimeError, match="no"):
        embed(Embedder(broken=True))({"text": np.array(["a", "b"])})
    with pytest.raises(FeedError, match="column 'text': the rows have title"):
        embed(Embedder())({"title": np.array(["a"])})
