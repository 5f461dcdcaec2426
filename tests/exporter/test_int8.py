"""Linear layers in int8: near to float32, and only where a layer is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from linear_graphs import TOKENS, WIDTH, Array, graph, run, weights

from attnport.exporter.precision import integers
from attnport.exporter.precision.integers import Seen, layers, observe, observed, write_int8

onnxruntime = pytest.importorskip("onnxruntime")
__all__ = ["weights"]  # a fixture


@pytest.fixture
def tokens() -> Array:
    """One channel is a hundred times as large as the others, as in transformers."""
    values = np.random.default_rng(1).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    values[:, 3] *= 100
    return values


def seen(weights: Mapping[str, Array], tokens: Array, folder: Path) -> dict[str, Seen]:
    model = graph(weights)
    chosen = layers(model)
    names = observe(model, chosen)
    made = run(model, tokens, folder)
    return observed(chosen, {name: [made[name]] for name in names})


def error(model: ir.Model, weights: Mapping[str, Array], tokens: Array, folder: Path) -> float:
    expected = run(graph(weights), tokens, folder)["y"]
    return float(np.linalg.norm(run(model, tokens, folder)["y"] - expected) / np.linalg.norm(expected))


def test_what_is_seen_is_each_channels_range_and_mean(weights: dict[str, Array], tokens: Array, tmp_path: Path) -> None:
    found = seen(weights, tokens, tmp_path)["x"]
    np.testing.assert_allclose(found.least, tokens.min(0), rtol=1e-6)
    np.testing.assert_allclose(found.largest, tokens.max(0), rtol=1e-6)
    np.testing.assert_allclose(found.mean, tokens.mean(0), atol=1e-3)


def test_every_layer_is_an_integer_product_and_near_to_float32(
    weights: dict[str, Array], tokens: Array, tmp_path: Path
) -> None:
    model = graph(weights)
    write_int8(model, seen(weights, tokens, tmp_path))
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("QuantizeLinear") == 2
    assert "Gemm" not in kinds
    stored = [value.dtype for value in model.graph.initializers.values() if value.shape and len(value.shape) == 2]
    assert stored == [ir.DataType.INT8] * 2
    assert error(model, weights, tokens, tmp_path) < 0.02


@pytest.mark.parametrize("smoothing", [0.0, 0.75])
def test_a_large_channel_does_not_coarsen_the_others(
    weights: dict[str, Array], tokens: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoothing: float
) -> None:
    """Without smoothing the error of the small channels is many times as large."""
    small = dict(weights)
    small["w"] = weights["w"].copy()
    small["w"][3] *= 0.01  # the large channel counts for no more than the others
    monkeypatch.setattr(integers, "SMOOTHING", smoothing)
    if not smoothing:
        monkeypatch.setattr(integers, "_smoothing", lambda seen, weights: np.ones(len(seen.mean)))
    model = graph(small)
    write_int8(model, seen(small, tokens, tmp_path))
    assert (error(model, small, tokens, tmp_path) < 0.03) == bool(smoothing)


def test_the_bias_takes_the_mean_error_of_the_weights(
    weights: dict[str, Array], tokens: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted = tokens + 5  # rounding errors of weights then have one sign for all tokens
    corrected, plain = graph(weights), graph(weights)
    ranges = seen(weights, shifted, tmp_path)
    write_int8(corrected, ranges)
    write_int8(plain, {name: Seen(one.least, one.largest, one.mean * 0) for name, one in ranges.items()})
    expected = run(graph(weights), shifted, tmp_path)["y"].mean(0)

    def off(model: ir.Model) -> float:
        return float(np.abs(run(model, shifted, tmp_path)["y"].mean(0) - expected).mean())

    assert off(corrected) < off(plain) / 2


def test_a_kept_layer_stays_float32(weights: dict[str, Array], tokens: Array, tmp_path: Path) -> None:
    model = graph(weights)
    first, last = (layer.name for layer in layers(model))
    write_int8(model, seen(weights, tokens, tmp_path), kept=[last])
    assert [node.op_type for node in model.graph].count("QuantizeLinear") == 1
    assert any(node.name == "last" for node in model.graph)
    assert first != last


def test_a_gemm_that_scales_is_no_layer(weights: dict[str, Array]) -> None:
    assert [layer.nodes for layer in layers(graph(weights, alpha=0.5))] == [("first",)]


def test_products_that_read_the_same_share_a_layer(weights: dict[str, Array]) -> None:
    model = graph(weights)
    x = model.graph.inputs[0]
    second = ir.node("MatMul", [x, model.graph.initializers["w"]], name="second")
    second.outputs[0].name, second.outputs[0].dtype = "other", ir.DataType.FLOAT
    model.graph.insert_before(model.graph[0], second)
    assert layers(model)[0].nodes == ("second", "first")
    assert layers(model)[0].weights == 2 * WIDTH * 48


def test_a_large_table_that_is_read_by_rows_is_in_int8_and_near_to_float32() -> None:
    random = np.random.default_rng(2)
    tables = {"words": (4096, 64), "places": (16, 64), "both": (4096, 64)}
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (int64[N] ids, int64[N] at, float[N,64] x)'
        " => (float[N,64] y, float[N,M] z)"
        "{ a = Gather(words, ids) b = Gather(places, at) c = Gather(both, ids) t = Transpose(both) z = MatMul(x, t)"
        " d = Add(a, b) y = Add(d, c) }"
    )
    for name, shape in tables.items():
        values = random.normal(size=shape) * random.uniform(0.01, 100, (shape[0], 1))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
    feeds = {"ids": np.arange(40), "at": np.arange(40) % 16, "x": np.zeros((40, 64), np.float32)}

    def y(model: onnx.ModelProto) -> Array:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        found: Array = session.run(["y"], feeds)[0]
        return found

    model = ir.from_proto(proto)
    write_int8(model, {"x": Seen(np.zeros(64), np.ones(64), np.zeros(64))}, kept=[layers(model)[0].name])
    kinds = {name: value.dtype for name, value in model.graph.initializers.items()}
    assert ir.DataType.INT8 in {kind for name, kind in kinds.items() if name.startswith("words")}
    assert kinds["places"] == kinds["both"] == ir.DataType.FLOAT  # small; and a product reads it too
    words = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    off = np.abs(y(ir.to_proto(model)) - y(proto)).max(1)
    assert off.max() > 0
    assert (off <= np.abs(words[:40]).max(1) / 254 * 1.01).all()
