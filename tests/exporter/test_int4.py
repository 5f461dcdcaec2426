"""Linear layers with weights of 4 bits: rounded as they say, and computed so by every runtime that reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from linear_graphs import WIDTH, Array, graph, run, weights
from onnx import numpy_helper, parser

from attnport.exporter.precision import integers
from attnport.exporter.precision.integers import BLOCK, Packed, layers, pack, pack_all, write_int4

pytest.importorskip("onnxruntime")
__all__ = ["weights"]  # a fixture


@pytest.fixture
def tokens() -> Array:
    return np.random.default_rng(1).normal(size=(20, WIDTH)).astype(np.float32)


def rounded(packed: Packed, width: int) -> Array:
    """The weight that is stored, float32 `[width, N]`."""
    whole = packed.whole if packed.bits == 8 else np.stack([packed.whole & 15, packed.whole >> 4], axis=-1)
    whole = whole.reshape(*packed.scales.shape, BLOCK)
    blocks = (whole.astype(np.float32) - (1 << packed.bits - 1)) * packed.scales[..., None]
    weight: Array = blocks.reshape(len(blocks), -1)[:, :width].T
    return weight


def expected(weights: dict[str, Array], tokens: Array, of_last: int = 4) -> Array:
    """What the graph computes with the rounded weights, in float64."""
    first = rounded(pack(weights["w"], 4), WIDTH).astype(np.float64)
    last = rounded(pack(weights["gemm"].T, of_last), 48).astype(np.float64)
    y: Array = np.maximum(tokens @ first + weights["bias"], 0) @ last + weights["shift"]
    return y


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("width", [1, 31, 32, 48, 96])
def test_a_weight_is_at_most_a_few_steps_from_what_it_was(width: int, bits: int) -> None:
    weight = np.random.default_rng(width).normal(size=(width, 70)).astype(np.float32)
    packed = pack(weight, bits)
    blocks = -(-width // BLOCK)
    assert packed.whole.shape == (70, blocks, BLOCK * bits // 8)
    step = np.repeat(np.abs(packed.scales), BLOCK, axis=1)[:, :width].T
    off = np.abs(rounded(packed, width) - weight)
    assert (off <= 1.01 * step).all()  # a whole step only where another weight is as large as the largest
    assert float(np.linalg.norm(off) / np.linalg.norm(weight)) < {4: 0.1, 8: 0.008}[bits]


def test_zeros_and_parts_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.zeros((64, 10), np.float32)
    weight[40, 3] = 2.0
    for bits in (4, 8):
        at_once = pack(weight, bits)
        np.testing.assert_array_equal(rounded(at_once, 64), weight)
        with monkeypatch.context() as patch:
            patch.setattr(integers, "_ROWS", 3)
            np.testing.assert_array_equal(pack(weight, bits).whole, at_once.whole)


def test_layers_that_share_a_weight_share_what_is_packed_of_it() -> None:
    weight = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32)
    text = f"""<ir_version: 10, opset_import: ["" : 23]> g (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y)
        {{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }}"""
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    for at, node in enumerate(proto.graph.node):
        node.name = f"node{at}"
    model = ir.from_proto(proto)
    write_int4(model, pack_all(model))
    assert len(model.graph.initializers) == 2
    model = ir.from_proto(proto)
    write_int4(model, pack_all(model), [layers(model)[1].name])
    assert len(model.graph.initializers) == 4


def test_a_graph_computes_with_the_rounded_weights(weights: dict[str, Array], tokens: Array, tmp_path: Path) -> None:
    model = graph(weights)
    write_int4(model, pack_all(model))
    assert [node.op_type for node in model.graph] == ["MatMulNBits", "Add", "Relu", "MatMulNBits", "Add"]
    found, wanted = run(model, tokens, tmp_path)["y"], expected(weights, tokens)
    assert float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) < 0.01  # activations are rounded too


def test_openvino_reads_it(weights: dict[str, Array], tokens: Array, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    model = graph(weights)
    write_int4(model, pack_all(model))
    ir.save(model, tmp_path / "model.onnx")
    core = openvino.Core()
    made = core.compile_model(core.read_model(tmp_path / "model.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found, wanted = made({"x": tokens})["y"], expected(weights, tokens)
    assert float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) < 0.01


def test_a_table_of_embeddings_is_a_layer_where_it_is_read_transposed(tokens: Array, tmp_path: Path) -> None:
    table = np.random.default_rng(2).normal(size=(80, WIDTH)).astype(np.float32)
    x = ir.Value(name="x", shape=ir.Shape(["tokens", WIDTH]), type=ir.TensorType(ir.DataType.FLOAT))
    stored = ir.Value(name="table", const_value=ir.tensor(table, name="table"), shape=ir.Shape(table.shape),
                      type=ir.TensorType(ir.DataType.FLOAT))  # fmt: skip
    turned = ir.node("Transpose", [stored], {"perm": [1, 0]}, name="turned")
    last = ir.node("MatMul", [x, turned.outputs[0]], name="last")
    for node, name in ((turned, "t"), (last, "y")):
        node.outputs[0].name, node.outputs[0].dtype = name, ir.DataType.FLOAT
    model = ir.Model(
        ir.Graph([x], [last.outputs[0]], nodes=[turned, last], initializers=[stored], opset_imports={"": 21}),
        ir_version=10,
    )
    assert layers(model)[0].weights == table.size
    write_int4(model, pack_all(model))
    assert [node.op_type for node in model.graph] == ["MatMulNBits"]
    found, wanted = run(model, tokens, tmp_path)["y"], tokens @ rounded(pack(table.T, 4), WIDTH)
    assert float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) < 0.01


def test_a_kept_layer_has_8_bits(weights: dict[str, Array], tokens: Array, tmp_path: Path) -> None:
    model = graph(weights)
    last = layers(model)[-1].name
    write_int4(model, pack_all(model), kept=[last])
    products = [node for node in model.graph if node.op_type == "MatMulNBits"]
    assert [node.attributes["bits"].as_int() for node in products] == [4, 8]
    found, wanted = run(model, tokens, tmp_path)["y"], expected(weights, tokens, 8)
    assert float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) < 0.01
    openvino = pytest.importorskip("openvino")
    ir.save(model, tmp_path / "kept.onnx")
    core = openvino.Core()
    made = core.compile_model(core.read_model(tmp_path / "kept.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = made({"x": tokens})["y"]
    assert float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) < 0.01
