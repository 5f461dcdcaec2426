"""sentence-transformers 6 in PyTorch, as `make embedders` installs it beside the project's own environment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = ""
CLASSES = {"rerank": "CrossEncoder", "sparse": "SparseEncoder", "tokens": "MultiVectorEncoder"}


def variants(model: Mapping[str, Any]) -> dict[str, str]:
    """Of models for search alone: others are run without their texts, by PyTorch itself."""
    return {"torch": "fp32"} if "kind" in model else {}


def embedder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[list[Any], int], Any]:
    """`encode_document` or `predict`, which sort the texts by length."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / ".venv" / "peers"))
    import sentence_transformers
    import torch
    from peer_search import encoder

    torch.set_num_threads(threads)
    made = getattr(sentence_transformers, CLASSES[model["kind"]])(model["folder"], device="cpu")
    return encoder(made, model["kind"])
