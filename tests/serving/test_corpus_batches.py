"""The same rows as a dict of arrays, as a DataFrame and as an Arrow table: the same columns come to each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from small_embedder import bundle_of

from attnport_bundle.corpus import Embed, Run

TEXTS = ["the ferry leaves", None, "with letters and bread", "at dawn"]
WIDTH = 64


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory)


@pytest.fixture(scope="module")
def embed(app: Path) -> Embed:
    return Embed(app, threads=1)


def test_vectors_are_the_same_and_a_missing_one_is_null(embed: Embed) -> None:
    keys = [4, 3, 2, 1]
    arrays = embed({"key": np.array(keys), "text": np.array(TEXTS, dtype=object)})
    frame = embed(pandas.DataFrame({"key": keys, "text": TEXTS}))
    table = embed(pyarrow.table({"key": keys, "text": TEXTS}))
    assert arrays["embedding"].shape == (4, WIDTH)
    assert np.isnan(arrays["embedding"][1]).all()
    assert frame["embedding"][1] is None
    assert table["embedding"].null_count == 1
    for at in (0, 2, 3):
        assert frame["embedding"][at].tolist() == arrays["embedding"][at].tolist()
        assert table["embedding"][at].as_py() == arrays["embedding"][at].tolist()
    for found in (arrays, frame, table.to_pydict()):
        assert list(found) == ["key", "text", "embedding", "error"]
        assert list(found["key"]) == keys
        assert [bool(error) for error in found["error"]] == [False, True, False, False]
    assert frame.index.equals(pandas.RangeIndex(4))


@pytest.mark.parametrize("texts", [TEXTS, [None, None], [], ["a"]])
def test_the_schema_is_the_same_whatever_the_rows_are(embed: Embed, texts: list[Any]) -> None:
    given = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string())})
    expected = {
        "text": pyarrow.string(),
        "embedding": pyarrow.list_(pyarrow.float32(), WIDTH),
        "error": pyarrow.string(),
    }
    assert embed(given).schema == pyarrow.schema(expected)


def test_text_that_a_library_has_its_own_type_for_is_text(embed: Embed) -> None:
    frame = pandas.DataFrame({"text": pandas.array(["a", pandas.NA, "b"], dtype="string")}, index=[7, 8, 9])
    found = embed(frame)
    assert [bool(error) for error in found["error"]] == [False, True, False]
    assert list(found.index) == [7, 8, 9]
    dictionary = pyarrow.table({"text": pyarrow.array(["a", None, "b"]).dictionary_encode()})
    assert [bool(error) for error in embed(dictionary)["error"].to_pylist()] == [False, True, False]


def test_lists_of_different_lengths_are_rows_of_each_kind(app: Path) -> None:
    ids = [[101, 7592, 102], [101, 102], None, [101, 99999999, 102]]
    types = [[0] * len(row) if row else None for row in ids]
    objects = {"input_ids": np.empty(4, object), "token_type_ids": np.empty(4, object)}
    objects["input_ids"][:], objects["token_type_ids"][:] = ids, types
    run = Run(app, threads=1)
    table = run(pyarrow.table({"input_ids": ids, "token_type_ids": types}))
    hidden = pyarrow.list_(pyarrow.list_(pyarrow.float32(), WIDTH))
    assert table.schema.field("last_hidden_state").type == hidden
    arrays, frame = run(objects), run(pandas.DataFrame({"input_ids": ids, "token_type_ids": types}))
    for found in (arrays["error"], frame["error"], table["error"].to_pylist()):
        assert [bool(error) for error in found] == [False, False, True, True]
    for at, length in ((0, 3), (1, 2)):
        rows = [found["last_hidden_state"][at] for found in (arrays, frame)] + [table["last_hidden_state"][at].as_py()]
        for row in rows:
            assert np.shape(row) == (length, WIDTH)
            np.testing.assert_allclose(row, arrays["last_hidden_state"][at], atol=1e-6)
    assert table["last_hidden_state"].null_count == 2
