"""Commands in a bundle's provenance tell how it was made, and nothing of where."""

from __future__ import annotations

import pytest

from attnport.bundling.commands import without_folders


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("bert_encoder", "bert_encoder"),
        ("package.module:factory", "package.module:factory"),
        ("hf:sentence-transformers/all-MiniLM-L6-v2", "hf:sentence-transformers/all-MiniLM-L6-v2"),
        ("hf:/home/alice/models/mini", "hf:mini"),
        ("/home/alice/model.py:make", "model.py:make"),
        ("~/private/model.py:make", "model.py:make"),
        ("~alice/private/model.py:make", "model.py:make"),
        ("../alice/model.py:make", "model.py:make"),
        ("./model.py:make", "model.py:make"),
        ("private/alice/model.py:make", "model.py:make"),
        ("C:\\Users\\alice\\model.py:make", "model.py:make"),
        ("hf:../alice/mini", "hf:mini"),
    ],
)
def test_folders_are_cut_and_names_stay(source: str, told: str) -> None:
    assert without_folders(source) == told
