"""fastembed with the weights as a custom model from local files: its session and its pooling, without tokenising."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = "fastembed"
FROM = "optimum_onnx"
"""The peer whose export it takes."""
VARIANTS = {"": "fp32"}


def imports() -> None:
    """What is imported before memory counts."""
    import fastembed  # noqa: F401


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Its files, with the graph that optimum exported, as those that fastembed publishes are made."""
    source = folder.parents[1] / FROM / "O1" / "plain" / "model.onnx"
    if not source.exists():
        raise FileNotFoundError("the export of the side optimum_onnx O1 is not there")
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


def embedder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[list[str], int], Any]:
    """`embed`, which keeps the order of the texts in its batches."""
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
