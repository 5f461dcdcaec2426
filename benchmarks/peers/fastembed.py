"""fastembed with the weights as a custom model from local files: its session and its pooling, without tokenising."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT = "fastembed"
FROM = "optimum_onnx"
"""The peer whose export it takes."""
VARIANTS = {"": "fp32"}
WORDS = 30522
"""The vocabulary of BERT."""


def variants(model: Mapping[str, Any]) -> dict[str, str]:
    """All, but none of a multi-vector encoder, of which no other side makes a file."""
    return {} if model.get("kind") == "tokens" else VARIANTS


def imports() -> None:
    """What is imported before memory counts."""
    import fastembed  # noqa: F401


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Its files, with the graph that optimum exported, as those that fastembed publishes are made."""
    made_by = Path("sentence_transformers/onnx/onnx") if "kind" in model else Path(FROM, "O1", "plain")
    source = folder.parents[1] / made_by / "model.onnx"
    if not source.exists():
        raise FileNotFoundError(f"the export {made_by} is not there")
    shutil.copy(source, folder / "model.onnx")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(Path(model["folder"]) / name, folder / name)


def _model(model: Mapping[str, Any], folder: Path, threads: int) -> Any:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local/model", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="local/model"),
        dim=model["width"], model_file="model.onnx",
    )  # fmt: skip
    return TextEmbedding("local/model", specific_model_path=str(folder), threads=threads)


def _of_search(kind: str, folder: Path, threads: int) -> Callable[[list[Any], int], Any]:
    """A reranker, or a sparse encoder under the name of one that it knows."""
    if kind == "rerank":
        from fastembed.common.model_description import ModelSource
        from fastembed.rerank.cross_encoder import TextCrossEncoder

        TextCrossEncoder.add_custom_model("local/model", ModelSource(hf="local/model"), model_file="model.onnx")
        reranker = TextCrossEncoder("local/model", specific_model_path=str(folder), threads=threads)
        # It gives logits; the others give what the model's activation makes of them.
        return lambda texts, batch: [1 / (1 + math.exp(-one)) for one in reranker.rerank_pairs(texts, batch_size=batch)]
    from fastembed import SparseTextEmbedding

    known = "prithivida/Splade_PP_en_v1"
    sparse = SparseTextEmbedding(known, specific_model_path=str(folder), threads=threads)
    return lambda texts, batch: _Rows(list(sparse.embed(texts, batch_size=batch)), WORDS)


class _Rows(NamedTuple):
    """Sparse vectors."""

    found: list[Any]
    width: int

    def dense(self) -> Any:
        """All numbers."""
        import numpy as np

        whole = np.zeros((len(self.found), self.width), np.float32)
        for row, one in zip(whole, self.found, strict=True):
            row[one.indices] = one.values
        return whole


def embedder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[list[str], int], Any]:
    """`embed`, which keeps the order of the texts in its batches."""
    if "kind" in model:
        return _of_search(model["kind"], folder, threads)
    made = _model(model, folder, threads)
    return lambda texts, batch: list(made.embed(texts, batch_size=batch))


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """Calls what `embed` calls behind its tokenizer."""
    from fastembed.common.onnx_model import OnnxOutputContext

    embedder = _model(model, folder, threads).model
    names = {one.name for one in embedder.model.get_inputs()}

    def run(feeds: Any) -> Any:
        given = {name: array for name, array in feeds.items() if name in names}
        hidden = embedder.model.run(None, given)[0]
        made = OnnxOutputContext(hidden, feeds["attention_mask"], feeds["input_ids"])
        import numpy as np

        return np.asarray(list(embedder._post_process_onnx_output(made)))

    return run
