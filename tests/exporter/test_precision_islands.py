"""Islands of float32 in a graph of half precision: what stays, the casts at the borders, the parts to choose from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from running import captured
from written_graphs import written

from attnport.artifacts import AUTO
from attnport.errors import ExportError, UsageError
from attnport.exporter import storage
from attnport.exporter.builder import clean_up
from attnport.exporter.capture import capture
from attnport.exporter.precision.parts import add_largest, parts_of
from attnport.exporter.precision.plan import apply_plan
from attnport.exporter.targets import base
from attnport.models.base import get

FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def graph(body: str, outputs: str = "float[N] y", **consts: Any) -> ir.Model:
    return ir.from_proto(written(body, "float[N] x", outputs, **consts))


def typed(model: ir.Model, *islands: str) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The model with the islands written into it, and the type of every tensor."""
    apply_plan(model, AUTO, islands)
    clean_up(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    made = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    values = (*made.value_info, *made.output, *made.input)
    return proto, {value.name: value.type.tensor_type.elem_type for value in values}


def run(proto: onnx.ModelProto, x: list[float]) -> Any:
    dtype = np.float16 if proto.graph.input[0].type.tensor_type.elem_type == HALF else np.float32
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(proto).run(None, {"x": np.array(x, dtype)})[0]


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_without_islands_the_plan_is_fp16() -> None:
    models = [graph("a = Mul(x, k) y = Exp(a)", k=np.float32([3])) for _ in range(2)]
    apply_plan(models[0], AUTO)
    apply_plan(models[1], "fp16")
    assert ir.to_proto(models[0]) == ir.to_proto(models[1])


def test_an_island_computes_in_float32_what_fp16_cannot_hold() -> None:
    body = "a = Neg(x) b = Mul(a, a) c = Sqrt(b) y = Neg(c)"
    proto, _ = typed(graph(body))
    assert run(proto, [300.0])[0] == -np.inf
    proto, types = typed(graph(body), "node_1", "node_2")
    assert run(proto, [300.0])[0] == -300
    assert (types["a"], types["b"], types["c"], types["y"]) == (HALF, FLOAT, FLOAT, HALF)
    assert ops(proto) == ["Neg", "Cast", "Mul", "Sqrt", "Cast", "Neg"]


def test_a_value_that_several_nodes_of_islands_read_is_cast_once_and_never_back_and_forth() -> None:
    # The first island's result goes to the second and to a node in half precision between them.
    body = "a = Neg(x) b = Exp(a) c = Neg(b) d = Add(b, a) e = Mul(d, b) f = Sub(e, a) y = Add(f, c)"
    proto, types = typed(graph(body), "node_1", "node_3", "node_4", "node_5")
    casts = [node for node in proto.graph.node if node.op_type == "Cast"]
    assert len({(node.input[0], node.attribute[0].i) for node in casts}) == len(casts)
    made = {node.output[0]: node for node in proto.graph.node}
    assert not [node for node in casts if node.input[0] in made and made[node.input[0]].op_type == "Cast"]
    assert len(casts) == 3  # a to float32, b and f to half
    assert types["c"] == HALF
    assert all(types[name] == FLOAT for name in "bdef")


def test_a_constant_that_an_island_shares_is_not_rounded_in_it() -> None:
    body = "a = Add(x, eps) b = Add(a, eps) y = Sub(b, x)"
    proto, _ = typed(graph(body, eps=np.float32([1e-12])), "node_0")
    found = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    assert found["eps/fp32"].dtype == np.float32
    assert found["eps/fp32"][0] == np.float32(1e-12)
    assert found["eps"].dtype == np.float16


def test_a_constant_of_an_island_alone_stays_as_it_is() -> None:
    proto, _ = typed(
        graph("c = Constant<value_float=0.1>() a = Mul(x, c) y = Mul(a, w)", w=[np.float32(0.1)]), "node_1"
    )
    kinds = {each.dims[0] if each.dims else 0: each.data_type for each in proto.graph.initializer}
    assert kinds == {0: FLOAT, 1: HALF}


def test_inputs_and_outputs_that_touch_islands_alone_are_float32() -> None:
    proto, types = typed(graph("a = Mul(x, x) y = Add(a, a)"), "node_0", "node_1")
    assert (types["x"], types["y"]) == (FLOAT, FLOAT)
    assert ops(proto) == ["Mul", "Add"]
    assert run(proto, [1000.0])[0] == 2e6
    _, types = typed(graph("a = Mul(x, x) b = Neg(x) y = Add(a, b)"), "node_0")
    assert (types["x"], types["y"]) == (HALF, HALF)


def test_an_output_of_an_island_that_others_read_stays_float32_under_its_name() -> None:
    proto, types = typed(graph("y = Mul(x, x) z = Neg(y)", outputs="float[N] y, float[N] z"), "node_0")
    assert (types["y"], types["z"]) == (FLOAT, HALF)
    assert [value.name for value in proto.graph.output] == ["y", "z"]


def test_a_node_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ExportError, match="no node 'gone'"):
        apply_plan(graph("y = Neg(x)"), AUTO, ["gone"])


@pytest.mark.parametrize("target", ["ort_cpu", "openvino", "onnx"])
def test_a_target_of_float32_takes_no_searched_plan(target: str) -> None:
    with pytest.raises(UsageError, match=f"target {target}: got precision 'auto'"):
        base.get(target).lower(graph("y = Neg(x)"), (), plan=AUTO, islands=())


def test_a_searched_plan_is_not_lowered_without_a_search() -> None:
    with pytest.raises(UsageError, match="searched when an engine is built") as told:
        base.get("tensorrt_rtx").lower(graph("y = Neg(x)"), (), plan=AUTO)
    assert told.value.hint == "Run: attnport build FOLDER --target tensorrt_rtx --precision auto"


def as_written(name: str) -> tuple[ir.Model, dict[str, tuple[str, ...]]]:
    found = captured(name)
    result = base.get("tensorrt_rtx").fuse_graph(found.model, found.attentions, plan=AUTO, masks=found.masks)
    return result.model, result.anchors


@pytest.mark.parametrize("name", ["masked_fill", "gqa"])
def test_no_part_has_a_node_of_an_attention(name: str) -> None:
    model, anchors = as_written(name)
    parts = parts_of(model, anchors)
    names = [node for part in parts for node in part.nodes]
    assert len(set(names)) == len(names)
    assert anchors
    assert not {anchor for nodes in anchors.values() for anchor in nodes} & set(names)
    assert len({part.name for part in parts}) == len(parts)
    assert Counter(op for part in parts for op in part.operators)["MatMul"] >= 1


def test_a_product_a_sum_and_the_rest_of_a_module_are_parts_of_their_own() -> None:
    body = "p = MatMul(x, w) b = Add(p, k) r = Reshape(b, s) g = Mul(r, r) h = Sqrt(g) y = Add(h, x)"
    consts = {"w": np.zeros((4, 4), np.float32), "k": np.zeros(4, np.float32), "s": np.array([-1])}
    parts = parts_of(graph(body, **consts), {})
    assert [part.operators for part in parts] == [("MatMul", "Add", "Reshape"), ("Mul", "Sqrt"), ("Add",)]
    assert [part.name for part in parts] == ["model: MatMul, Add, Reshape", "model: Mul, Sqrt", "model: Add"]
    assert parts[1].reads == ("r",)
    assert parts[1].makes == ("g", "h")
    assert parts[2].reads == ("h", "x")


def test_ranges_are_of_finite_numbers_only() -> None:
    model = graph("a = Mul(x, x) b = Log(z) y = Add(a, b)", z=np.float32([0.0]))
    outputs = add_largest(model, ["x", "a", "b", "gone"])
    assert list(outputs) == ["x", "a", "b"]
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    names = [value.name for value in proto.graph.output]
    with np.errstate(all="ignore"):
        found = dict(zip(names, ReferenceEvaluator(proto).run(None, {"x": np.float32([-300, 2, np.nan])}), strict=True))
        empty = dict(zip(names, ReferenceEvaluator(proto).run(None, {"x": np.float32([])}), strict=True))
    assert {name: float(found[output]) for name, output in outputs.items()} == {"x": 300, "a": 90000, "b": 0}
    assert float(empty[outputs["a"]]) == 0


def test_weights_are_cast_without_the_file_staying_mapped_for_each(tmp_path: Path) -> None:
    spec = get("bert_encoder", vocabulary=64, width=32, heads=2, hidden=64, layers=4, positions=32)
    storage.save_form(capture(spec.make(), spec.io).model, tmp_path / "model.onnx", "weights.bin")
    model = storage.load(tmp_path / "model.onnx")
    apply_plan(model, "fp16")
    storage.save_form(model, tmp_path / "half.onnx", "half.bin")
    mapped = Path("/proc/self/maps").read_text().count(str(tmp_path / "weights.bin"))
    assert sum(value.dtype == ir.DataType.FLOAT16 for value in model.graph.initializers.values()) > 40
    assert mapped < 10
