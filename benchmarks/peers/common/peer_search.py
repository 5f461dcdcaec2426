"""What the libraries of search give, as rows."""

from __future__ import annotations

from typing import Any

import numpy as np


def rows(found: Any) -> Any:
    """Scores, vectors, or the vectors of all tokens one below the other, of what a library gave."""
    if isinstance(found, list) and hasattr(found[0], "ndim") and found[0].ndim == 2:
        return np.concatenate(found)
    if hasattr(found, "dense"):  # attnport's sparse vectors
        return found.dense()
    return found.to_dense().numpy() if hasattr(found, "to_dense") else np.asarray(found)


def encoder(model: Any, kind: str) -> Any:
    """What encodes texts, or gives the scores of pairs, with a model of sentence-transformers or its like."""
    if kind == "rerank":
        return lambda texts, batch: model.predict([tuple(each) for each in texts], batch_size=batch)
    return lambda texts, batch: model.encode_document(texts, batch_size=batch)
