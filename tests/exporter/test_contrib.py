"""ONNX Runtime's own operators: computed by PyTorch, and written in ONNX's, against ONNX Runtime itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from contrib_nodes import NODES

from attnport.exporter.passes.foreign import prepare
from attnport.sources.onnx_module import OnnxModule


def run(model: ir.Model, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray[Any, Any]] = session.run(None, feeds)
    return found


@pytest.mark.parametrize("name", NODES)
def test_pytorch_computes_what_onnx_runtime_computes(name: str) -> None:
    node = NODES[name]
    model = ir.from_proto(node.model())
    expected = run(model, node.feeds)
    names = [str(value.name) for value in model.graph.outputs]
    module = OnnxModule(model, {name: name for name in node.feeds}, {name: name for name in names})
    got = module(**{name: torch.from_numpy(array) for name, array in node.feeds.items()})
    for output, wanted in zip(names, expected, strict=True):
        np.testing.assert_allclose(got[output].numpy(), wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", NODES)
def test_written_in_onnx_s_operators_it_computes_the_same(name: str) -> None:
    node = NODES[name]
    expected = run(ir.from_proto(node.model()), node.feeds)
    ready = prepare(ir.from_proto(node.model()))
    domains = {inner.domain for inner in ready.graph}
    assert ("com.microsoft" in domains) == node.stays
    for got, wanted in zip(run(ready, node.feeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)
