"""sentence-transformers with its backends onnx and openvino: transformer, pooling and norm, without tokenising."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = "sentence_transformers"
VARIANTS = {"onnx": "fp32", "openvino": "fp32", "openvino bf16": "half"}


def variants(model: Mapping[str, Any]) -> dict[str, str]:
    """All, but none of a multi-vector encoder, which these backends do not have."""
    return {} if model.get("kind") == "tokens" else VARIANTS


def imports() -> None:
    """What is imported before memory counts."""
    import torch  # noqa: F401
    import transformers  # noqa: F401


def _model(source: str, variant: str, threads: int, export: bool, kind: str = "") -> Any:
    import sentence_transformers

    name = {"rerank": "CrossEncoder", "sparse": "SparseEncoder"}.get(kind, "SentenceTransformer")
    if variant == "onnx":
        from peer_ort import options

        backend, given = "onnx", {"provider": "CPUExecutionProvider", "session_options": options(threads)}
    else:
        from peer_openvino import refuse_bf16

        precision = "bf16" if "bf16" in variant else "f32"
        refuse_bf16(precision)
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
        backend, given = "openvino", {"ov_config": {**settings, "PERFORMANCE_HINT": "LATENCY"}}
    made = getattr(sentence_transformers, name)
    return made(source, backend=backend, model_kwargs={**given, "export": export}, device="cpu")


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Exports with the backend's own exporter and saves that."""
    _model(model["folder"], variant, 1, True, model.get("kind", "")).save_pretrained(str(folder))


def embedder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[list[str], int], Any]:
    """`encode`, `encode_document` or `predict`, which sort the texts by length."""
    import torch

    torch.set_num_threads(threads)
    made = _model(str(folder), variant, threads, False, model.get("kind", ""))
    if "kind" in model:
        from peer_search import encoder

        return encoder(made, model["kind"])
    return lambda texts, batch: made.encode(texts, batch_size=batch)


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """`forward` of the whole model."""
    import torch

    torch.set_num_threads(threads)
    made = _model(str(folder), variant, threads, False)

    def run(feeds: Any) -> Any:
        with torch.inference_mode():
            return made({name: torch.from_numpy(array) for name, array in feeds.items()})["sentence_embedding"].numpy()

    return run
