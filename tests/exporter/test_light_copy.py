"""Large graphs are lowered and proved without all of their weights in memory."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from written_graphs import written

from attnport.exporter import storage
from attnport.exporter.precision.plan import apply_plan
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

SIDE = 512
MEGABYTE = 1 << 20


def of_layers(count: int) -> onnx.ModelProto:
    """A projection of the input and two of its result in each layer, every one with weights of its own."""
    body, weights = "", {}
    rng = np.random.default_rng(0)
    for layer in range(count):
        source = f"h{layer - 1}" if layer else "x"
        body += f"a{layer} = MatMul({source}, w{layer}) "
        body += f"q{layer} = MatMul(a{layer}, q_w{layer}) k{layer} = MatMul(a{layer}, k_w{layer}) "
        body += f"h{layer} = Sub(q{layer}, k{layer}) "
        weights |= {name: rng.standard_normal((SIDE, SIDE)).astype(np.float32)
                    for name in (f"w{layer}", f"q_w{layer}", f"k_w{layer}")}  # fmt: skip
    body += f"y = Identity(h{count - 1})"
    return written(body, f"float[N,{SIDE}] x", f"float[N,{SIDE}] y", **weights)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    place = tmp_path / "model" / "model.onnx"
    place.parent.mkdir()
    storage.save_exported(ir.from_proto(of_layers(6)), place, "weights.bin")
    return place


def test_layers_share_weights_and_projections_of_one_input_do_not(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "LARGE_BYTES", 0)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    graph = onnx.load(storage.light_copy(model, scratch))
    onnx.checker.check_model(graph, full_check=True)
    assert len(graph.graph.initializer) == 2
    read = {node.output[0]: node.input[1] for node in graph.graph.node if node.op_type == "MatMul"}
    assert len(read) == 18
    assert all(read[f"q{layer}"] != read[f"k{layer}"] for layer in range(6))
    assert sum(file.stat().st_size for file in scratch.iterdir()) < 2 * 4 * SIDE * SIDE + 8192
    assert len(storage.load(model).graph.initializers) == 18


def test_a_model_whose_weights_are_few_is_proved_as_it_is(model: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert storage.light_copy(model, scratch) == model
    assert not list(scratch.iterdir())


def test_a_cast_holds_one_weight_at_a_time(model: Path) -> None:
    tracemalloc.start()
    graph = storage.load(model)
    assert apply_plan(graph, "fp16")
    storage.save_form(graph, model.parent / "model.half.onnx", "half.bin")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (model.parent / "half.bin").stat().st_size > 8 * MEGABYTE
    assert peak < 4 * MEGABYTE
    stored = onnx.load(model.parent / "model.half.onnx").graph.initializer
    halves = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in stored}
    for tensor in of_layers(6).graph.initializer:
        np.testing.assert_array_equal(halves[tensor.name], onnx.numpy_helper.to_array(tensor).astype(np.float16))


def written_at(file: Path) -> tuple[int, int]:
    return file.stat().st_ino, file.stat().st_mtime_ns


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light") / "out"
    export("llama_decoder", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ort_cpu", "openvino", "onnx_18", "tensorrt_rtx"])
def test_the_proof_is_that_of_the_model_itself(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    tables = []
    for large in (storage.LARGE_BYTES, 0):
        monkeypatch.setattr(storage, "LARGE_BYTES", large)
        folder = Path(shutil.copytree(exported, tmp_path / str(large)))
        before = written_at(folder / "weights.bin")
        tables.append(fuse(folder, targets=[target]).targets[target])
        assert written_at(folder / "weights.bin") == before
        assert not list(folder.glob("proof*"))
    own, light = tables
    assert own.fused == own.attentions > 0
    assert [(item.attention, item.kernel, item.fused) for item in light.items] == [
        (item.attention, item.kernel, item.fused) for item in own.items
    ]
    assert light.proved_by == own.proved_by
