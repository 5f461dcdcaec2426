"""Attention weights of an exported model, read at the softmax of its decomposed form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnport.folder.workspace import open_folder
from attnport.runtimes.base import physical_cores

FORM = "onnx_18"
"""The target whose form has the softmax as a node of its own."""

Array = np.ndarray[Any, Any]


class Weights:
    """The probabilities of every attention of an artifact folder, on ONNX Runtime.

    The form's anchors name the nodes of each attention: the product of queries and keys, the softmax, the product with
    the values. The softmax's output becomes an output of the graph; nothing else is changed.
    """

    def __init__(self, folder: Path) -> None:
        import onnx
        import onnxruntime as ort

        form = open_folder(folder).forms[FORM]
        graph = onnx.load_model(folder / form.file)
        outputs = {node.name: node.output[0] for node in graph.graph.node}
        self._names = {attention: outputs[anchors[1]] for attention, anchors in form.anchors.items()}
        del graph.graph.output[:]
        graph.graph.output.extend(
            onnx.helper.make_empty_tensor_value_info(name) for name in self._names.values()
        )  # fmt: skip
        options = ort.SessionOptions()
        options.intra_op_num_threads = physical_cores()
        self._session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def of(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """By attention, [B, H, S, T].

        Raises:
            ValueError: a row does not sum to 1.
        """
        taken = {one.name: feeds[one.name] for one in self._session.get_inputs()}
        found = dict(zip(self._names, self._session.run(list(self._names.values()), taken), strict=True))
        for attention, weights_BHST in found.items():
            summing_to_one(attention, weights_BHST)
        return found


def summing_to_one(attention: str, weights_BHST: Array) -> None:
    """Raises ValueError for weights with a row that does not sum to 1."""
    off = float(np.abs(weights_BHST.sum(axis=-1) - 1).max())
    if off > 1e-5:
        raise ValueError(f"{attention}: a row of weights sums to 1 within {off:.1e}; expected 1e-5.")
