"""Rotary embeddings with caches of batch 1 are written out, and compute what the standard's operator computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from attnport.exporter.passes.rotary import write_out

B, H, S, D = 3, 2, 5, 8


def model(cache_batch: str | int | None, *, interleaved: int, part: int = 0) -> ir.Model:
    x = ir.Value(name="x", shape=ir.Shape(["batch", H, "seq", D]), type=ir.TensorType(ir.DataType.FLOAT))
    cache = [cache_batch, "seq", (part or D) // 2]
    cos, sin = (
        ir.Value(name=name, shape=ir.Shape(cache), type=ir.TensorType(ir.DataType.FLOAT)) for name in ("cos", "sin")
    )
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": part, "num_heads": H}
    node = ir.node("RotaryEmbedding", [x, cos, sin], attributes=attributes, name="rope")
    node.outputs[0].name, node.outputs[0].shape = "y", x.shape
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x, cos, sin], node.outputs, nodes=[node], opset_imports={"": 23}, name="g")
    return ir.Model(graph, ir_version=11)


def run(made: ir.Model, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    proto = ir.to_proto(made)
    onnx.checker.check_model(proto, full_check=True)
    found: np.ndarray[Any, Any] = ReferenceEvaluator(proto).run(None, feeds)[0]
    return found


def feeds(cache_batch: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    angles = random.standard_normal((1, S, D // 2)).repeat(cache_batch, 0)
    return {
        "x": random.standard_normal((B, H, S, D)).astype(np.float32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("cache_batch", [1, None])
def test_written_out_it_computes_what_the_operator_computes(cache_batch: int | None, interleaved: int) -> None:
    made = model(cache_batch, interleaved=interleaved)
    assert write_out(made) == 1
    assert "RotaryEmbedding" not in {node.op_type for node in made.graph}
    assert made.graph.outputs[0].name
    expected = run(model("batch", interleaved=interleaved), feeds(B))
    np.testing.assert_allclose(run(made, feeds(1)), expected, rtol=1e-6, atol=1e-6)
    assert not np.allclose(expected, feeds(1)["x"]), "nothing was turned, so nothing was compared"


def test_caches_that_the_standard_allows_stay() -> None:
    assert write_out(model("batch", interleaved=0)) == 0


def test_an_embedding_of_a_part_of_the_head_stays() -> None:
    assert write_out(model(1, interleaved=0, part=4)) == 0
