"""The masks that a bundle's reader makes from lengths, and what it knows of the mask contract."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnport.bundling.readme import readme
from attnport_bundle import FeedError, IntegrityError, Model
from attnport_bundle.errors import UsageError
from attnport_bundle.feeds import check_feeds, padding_masks
from attnport_bundle.format.contract import CARRIES, IO, RANKS, Dim, MaskSpec, TensorSpec
from attnport_bundle.format.manifest import BundleIO, read


def test_padding_masks_from_lengths(model: Model) -> None:
    masks = model.masks([1, 3])
    assert masks["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert masks["attention_mask"].dtype == np.int64
    assert model.masks([2], size=4)["attention_mask"].tolist() == [[1, 1, 0, 0]]
    for lengths, size in (([], None), ([-1], None), ([5], 4), ([0], None)):
        with pytest.raises(FeedError, match="lengths"):
            model.masks(lengths, size)


def test_lengths_are_integers_in_a_list_or_an_array(model: Model) -> None:
    for lengths in (np.array([1, 3]), [np.int64(1), 3], np.array([1, 3], np.uint8)):
        assert model.masks(lengths)["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]  # type: ignore[arg-type]  # as from NumPy
    for wrong in ([5.5, 3.0], np.array([5.0]), np.array([[1, 3]]), ["2"], 3):
        with pytest.raises(FeedError, match=r"lengths: got .*; expected integers"):
            model.masks(wrong)  # type: ignore[arg-type]  # as a caller may have it
    with pytest.raises(FeedError, match=r"size: got 4\.5; expected integers"):
        model.masks([2], size=4.5)  # type: ignore[arg-type]  # as a caller may have it


@pytest.mark.parametrize(
    ("polarity", "dtype", "dims", "expected"),
    [
        ("hide", "bool", ("b", "t"), [[False, True]]),
        ("additive", "float32", ("b", 1, 1, "t"), [[[[0.0, -np.inf]]]]),
        ("keep", "bool", ("b", 1, "t", "t"), [[[[True, False], [True, False]]]]),
    ],
)
def test_padding_masks_of_other_meanings_and_shapes(polarity: Any, dtype: str, dims: Any, expected: Any) -> None:
    contract = IO(
        (TensorSpec("m", dtype, dims, None),),
        (TensorSpec("y", "float32", ("b",), None),),
        (Dim("b", 1, 1, 4), Dim("t", 1, 2, 9)),
        (MaskSpec(("padding",), "m", polarity, "upper_left", 0),),
    )
    mask = padding_masks(contract, [1], 2)["m"]
    assert mask.tolist() == expected
    assert check_feeds(contract, {"m": mask}) == {"b": 1, "t": 2}


def carried(tensor: TensorSpec, mask: MaskSpec) -> BundleIO:
    hidden = TensorSpec("x", "float32", ("b", "t"), None)
    return BundleIO((tensor, hidden), (hidden,), (Dim("b", 1, 1, 4), Dim("t", 1, 2, 9)), (mask,))


def test_lengths_go_in_as_they_are() -> None:
    mask = MaskSpec(("padding", "causal"), "n", "keep", "upper_left", 0, "lengths", "t")
    contract = carried(TensorSpec("n", "int32", ("b",), None), mask)
    made = padding_masks(contract, [1, 3], 4)["n"]
    assert (made.tolist(), made.dtype) == ([1, 3], np.int32)
    assert "`n` is padding and causal, a number of positions of `t` for each item" in readme("m", contract, None)
    assert "model.masks([2])  # the length of each item" in readme("m", contract, None)
    with pytest.raises(FeedError, match="lengths"):
        padding_masks(contract, [5], 4)


def test_ids_of_documents_are_one_document_an_item_with_zero_behind_it() -> None:
    mask = MaskSpec(("documents", "padding"), "ids", "keep", "upper_left", 0, "ids")
    contract = carried(TensorSpec("ids", "int64", ("b", "t"), None), mask)
    assert padding_masks(contract, [1, 3])["ids"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert "equal within a document, 0 for padding" in readme("m", contract, None)


@pytest.mark.parametrize("content", RANKS)
def test_the_readme_says_what_an_input_holds(content: str) -> None:
    keys = "t" if content == "lengths" else None
    mask = MaskSpec(CARRIES[content][:1], "n", carries=content, keys=keys)
    text = readme("m", carried(TensorSpec("n", "int64", ("b", "t")[: RANKS[content]]), mask), None)
    assert f"`n` is {CARRIES[content][0]}, " in text


def test_a_mask_that_says_more_than_padding_is_not_made_from_lengths() -> None:
    mask = MaskSpec(("padding", "causal"), "m", "keep", "upper_left", 0)
    contract = carried(TensorSpec("m", "bool", ("b", 1, "t", "t"), None), mask)
    with pytest.raises(FeedError, match="'m' also carries causal, not only padding; make it yourself for your items"):
        padding_masks(contract, [1], 2)
    assert "model.masks" not in readme("m", contract, None)


def test_a_mask_that_hides_is_all_zeros_in_the_readme_program() -> None:
    mask = MaskSpec(("explicit",), "m", "hide", "upper_left", 0)
    assert 'np.zeros((1, 2, 2), dtype="bool")' in readme(
        "m", carried(TensorSpec("m", "bool", ("b", "t", "t"), None), mask), None
    )


WRONG_MASKS = {
    "kind": ({"kinds": ("padding", "magic")}, "mask kind magic; expected one of none, padding"),
    "no kind": ({"kinds": ()}, "mask kind missing"),
    "window": ({"window": -1}, "got window -1"),
    "lengths of nothing": ({"carries": "lengths"}, "'n' holds lengths of no dim"),
    "keys of a mask": ({"keys": "t"}, "got keys='t'; only lengths count the keys of a dim"),
    "an unknown dim": ({"carries": "lengths", "keys": "u"}, "'n' counts 'u', which is no dim"),
    "a rank": ({"kinds": ("documents",), "carries": "ids"}, "carries ids, which have rank 2"),
    "no input": (
        {"kinds": ("global",), "carries": "marks", "input": None},
        "got marks without the input that holds them",
    ),
    "another input": ({"input": "y"}, "carried by 'y', which is no input"),
}


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_masks_that_make_no_sense_are_refused(name: str) -> None:
    change, words = WRONG_MASKS[name]
    right = {"kinds": ("padding",), "input": "n", "polarity": "keep", "alignment": "upper_left", "window": 0}
    with pytest.raises(UsageError, match=re.escape(words)):
        carried(TensorSpec("n", "int64", ("b",), None), MaskSpec(**{**right, **change})).check()  # type: ignore[arg-type]


def test_no_key_of_a_mask_may_be_left_out(app: Path) -> None:
    manifest = json.loads((app / "bundle.json").read_text())
    for key in ("carries", "keys", "window"):
        changed = json.loads(json.dumps(manifest))
        del changed["io"]["masks"][0][key]
        (app / "bundle.json").write_text(json.dumps(changed))
        with pytest.raises(IntegrityError, match=f"key '{key}' is missing"):
            read(app)


def test_a_model_without_a_padding_mask_says_so(model: Model) -> None:
    contract = dataclasses.replace(model.io, masks=())
    with pytest.raises(FeedError, match="takes no padding mask"):
        padding_masks(contract, [1])
