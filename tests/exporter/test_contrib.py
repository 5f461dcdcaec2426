"""ONNX Runtime's own operators: computed by PyTorch, and written in ONNX's, against ONNX Runtime itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from contrib_nodes import CACHED, COMPUTED, LEFT, NODES, QKV, Array, B, D, E, H, Node, S, T, _floats, heads, same
from onnx.reference import ReferenceEvaluator

from attnport.exporter.imported import prepare
from attnport.runtimes._reference_ops import contrib_ops, name_outputs
from attnport.sources.onnx_module import OnnxModule


def run(model: ir.Model, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray[Any, Any]] = session.run(None, feeds)
    return found


EVERY = NODES | CACHED


def computed(model: ir.Model, feeds: dict[str, Array]) -> list[Array]:
    """Its outputs, by PyTorch."""
    names = [str(value.name) for value in model.graph.outputs]
    module = OnnxModule(model, {name: name for name in feeds}, {name: name for name in names})
    got = module(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    return [got[name].numpy() for name in names]


def by_evaluator(node: Node) -> list[Array]:
    """Its outputs, by ONNX's reference evaluator."""
    model = node.model()
    name_outputs(model)
    found: list[Array] = ReferenceEvaluator(model, new_ops=contrib_ops()).run(None, node.feeds)
    return found


def written(node: Node, model: ir.Model | None = None) -> ir.Model:
    """A node's graph in ONNX's operators."""
    ready = prepare(ir.from_proto(node.model()) if model is None else model)
    assert {inner.domain for inner in ready.graph} == {""}
    return ready


@pytest.mark.parametrize("name", EVERY | COMPUTED)
def test_pytorch_computes_what_onnx_runtime_computes(name: str) -> None:
    node = (EVERY | COMPUTED)[name]
    model = ir.from_proto(node.model())
    same(node, computed(model, node.feeds), run(model, node.feeds))


@pytest.mark.parametrize("name", ["embed_norm", "heads_past_causal_mask_added", "step_lengths", "whole_present"])
def test_the_reference_evaluator_computes_what_onnx_runtime_computes(name: str) -> None:
    node = EVERY[name]
    same(node, by_evaluator(node), run(ir.from_proto(node.model()), node.feeds))


def test_the_reference_evaluator_hides_keys_of_padding_from_queries_of_padding() -> None:
    """As the kernels without a cache do; lowered forms rely on it."""
    node = replace(CACHED["prompt_padded_without_cache"], lengths=(), outputs=(0,))
    same(node, by_evaluator(node), run(ir.from_proto(node.model()), node.feeds))


@pytest.mark.parametrize("name", EVERY)
def test_written_in_onnx_s_operators_it_computes_the_same(name: str) -> None:
    node = EVERY[name]
    same(node, run(written(node), node.feeds), run(ir.from_proto(node.model()), node.feeds))


@pytest.mark.parametrize("name", COMPUTED | LEFT)
def test_what_is_not_understood_stays_as_it_is(name: str) -> None:
    node = (COMPUTED | LEFT)[name]
    ready = prepare(ir.from_proto(node.model()))
    assert [inner.op_type for inner in ready.graph if inner.domain] == [node.operator]


@pytest.mark.parametrize("name", LEFT)
def test_what_pytorch_cannot_compute_is_refused(name: str) -> None:
    node = LEFT[name]
    with pytest.raises(RuntimeError, match="NotImplementedError"):
        computed(ir.from_proto(node.model()), node.feeds)


def test_an_attribute_that_is_not_known_is_not_left_out_of_the_numbers() -> None:
    node = next(iter(EVERY.values()))
    model = node.model()
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("turned_twice", 1))
    ready = prepare(ir.from_proto(model))
    assert [inner.op_type for inner in ready.graph if inner.domain] == [node.operator]
    with pytest.raises(RuntimeError, match=f"{node.operator} with turned_twice"):
        computed(ir.from_proto(model), node.feeds)


def test_rows_of_padding_alone_are_not_compared() -> None:
    node = CACHED["prompt_padded"]
    wanted = run(ir.from_proto(node.model()), node.feeds)
    got = [array.copy() for array in wanted]
    got[0][1, 3:] = 9
    same(node, got, wanted)
    got[0][1, 2] = 9
    with pytest.raises(AssertionError):
        same(node, got, wanted)


BIAS = _floats(3 * E)
KERNELS_ON_CUDA = {
    "q, k and v": (heads(*(_floats(B, T, E) + shift for shift in (0, 1, 2)), outputs=(0,)), 3, False),
    "q, k and v with biases": (
        heads(*(_floats(B, T, E) + shift for shift in (0, 1, 2)), BIAS, outputs=(0,)), 3, True),
    "k and v": (heads(QKV[0], QKV[1], QKV[2] + 1, outputs=(0,)), 2, False),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS_ON_CUDA)
def test_packed_ones_which_no_kernel_on_cpu_takes_are_as_those_apart(name: str) -> None:
    apart, count, biased = KERNELS_ON_CUDA[name]
    flat = [array for array in apart.inputs[:3] if array is not None]
    together = np.stack([array.reshape(B, -1, H, D) for array in flat[-count:]], axis=3)
    inputs = (*flat[:-count], together, *(None, None, BIAS)[: 3 * biased])
    node = heads(*inputs, outputs=(0,))
    wanted = run(ir.from_proto(apart.model()), apart.feeds)
    same(node, computed(ir.from_proto(node.model()), node.feeds), wanted)
    same(node, run(written(node), node.feeds), wanted)


def few_bits(width: int, block: int, bits: int, zeros: str) -> tuple[Node, ir.Model]:
    """A product by a weight of `bits`, its inputs, and the graph with the weight as an initializer."""
    random = np.random.default_rng(width)
    count, blocks = 24, -(-width // block)
    packed = random.integers(0, 256, (count, blocks, block * bits // 8)).astype(np.uint8)
    whole = random.integers(0, 256, count * -(-blocks * bits // 8)).astype(np.uint8)
    middles = {"": None, "whole": whole, "float": _floats(count * blocks)}[zeros]
    node = Node("MatMulNBits", (_floats(B, S, width), packed, _floats(count * blocks), middles),
                {"K": width, "N": count, "bits": bits, "block_size": block})  # fmt: skip
    model = ir.from_proto(node.model())
    for value in list(model.graph.inputs)[1:]:
        value.const_value = ir.tensor(node.feeds[str(value.name)], name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return node, model


def test_one_weight_with_two_scales_is_two() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (float[N,32] x) => (float[N,3] y) {
        a = com.microsoft.MatMulNBits<K=32, N=3, bits=4, block_size=32>(x, w, one)
        b = com.microsoft.MatMulNBits<K=32, N=3, bits=4, block_size=32>(x, w, other) y = Sub(a, b) }"""
    proto = onnx.parser.parse_model(text)
    whole = np.random.default_rng(0).integers(0, 256, (3, 1, 16)).astype(np.uint8)
    for name, array in (("w", whole), ("one", _floats(3)), ("other", 3 * _floats(3))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    feeds = {"x": _floats(2, 32)}
    wanted, (got,) = run(ir.from_proto(proto), feeds), run(prepare(ir.from_proto(proto)), feeds)
    np.testing.assert_allclose(got, wanted[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("width", "block", "bits", "zeros"),
    [(64, 32, 4, ""), (96, 32, 4, "whole"), (50, 16, 4, "whole"), (64, 32, 8, "whole"), (64, 32, 4, "float")],
)
def test_a_weight_of_a_few_bits_becomes_one_of_floats(width: int, block: int, bits: int, zeros: str) -> None:
    node, model = few_bits(width, block, bits, zeros)
    wanted = run(ir.from_proto(node.model()), node.feeds)
    close = [array / np.abs(wanted[0]).max() for array in computed(ir.from_proto(node.model()), node.feeds)]
    np.testing.assert_allclose(close[0], wanted[0] / np.abs(wanted[0]).max(), atol=1e-6)
    got = run(written(node, model), {"in0": node.feeds["in0"]})
    np.testing.assert_allclose(got[0] / np.abs(wanted[0]).max(), wanted[0] / np.abs(wanted[0]).max(), atol=1e-6)
