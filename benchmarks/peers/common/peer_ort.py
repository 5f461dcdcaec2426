"""ONNX Runtime sessions of peers. NumPy and onnxruntime alone: it is used in their environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def options(threads: int) -> Any:
    """All optimisations; threads that wait do not spin, as another side has its turn then."""
    import onnxruntime

    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads, found.inter_op_num_threads = threads, 1
    found.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    found.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return found


def session_run(file: Path, threads: int) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Runs a file with those inputs that it has."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), options(threads), providers=["CPUExecutionProvider"])
    inputs = {one.name for one in session.get_inputs()}
    outputs = [one.name for one in session.get_outputs()]

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: array for name, array in feeds.items() if name in inputs}
        return dict(zip(outputs, session.run(None, given), strict=True))

    return run


def pooled(hidden_BSE: Array, mask_BS: Array) -> Array:
    """The mean of the real tokens, of length 1: what sentence-transformers' pooling and normalisation give."""
    weights = mask_BS.astype(hidden_BSE.dtype)
    mean = np.einsum("bse,bs->be", hidden_BSE, weights) / np.maximum(weights.sum(1, keepdims=True), 1e-9)
    return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


def output_of(model: Mapping[str, Any], outputs: Mapping[str, Array], feeds: Mapping[str, Array]) -> Array:
    """The output compared, of those that a tool's own export has."""
    if model["output"] in outputs:
        return outputs[model["output"]]
    hidden = outputs["last_hidden_state"]
    return pooled(hidden, feeds["attention_mask"]) if "attention_mask" in feeds else hidden
