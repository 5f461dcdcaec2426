"""The search for a divergence ends at the first tensor of integers that is not equal."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import hashed_model
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnport.artifacts import ParityReport
from attnport.console.terminal import shown
from attnport.exporter.probing import tensors
from attnport.folder.workspace import change
from attnport.parities import Bisected, Finding
from attnport.parity.evaluate import Means
from attnport.verbs.check import CaseOptions, bisect, check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

SPEC = f"{hashed_model.__file__}:spec"


def saturate(folder: Path, key: str) -> None:
    """Holds a form's constants in int32, as a runtime would."""
    with change(folder) as edit:
        form = edit.manifest.forms[key]
        model = onnx.load(folder / form.file)
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.INT64:
                held = np.minimum(numpy_helper.to_array(tensor), 2**31 - 1)
                tensor.CopyFrom(numpy_helper.from_array(held, tensor.name))
        edit.path(form.file).write_bytes(model.SerializeToString())
        edit.manifest = dataclasses.replace(edit.manifest, forms={key: form})
        edit.finish("fuse", "changed")


def searched(folder: Path, runtimes: list[str]) -> Bisected:
    found = bisect(folder, check(folder, runtimes), CaseOptions(), Means())
    assert found.parity.verdict == "FAIL"
    return found


def assert_names_the_product(found: Bisected, runtime: str) -> None:
    (result,) = found.findings
    assert (result.subject, result.reason) == (runtime, "")
    assert (result.module, result.between) == ("bias", ("Mul",))
    difference = result.readings[runtime].reason
    assert difference.startswith("int64: ")
    assert "elements differ, first 2147483647 instead of 2654435761; integers must be exact" in difference
    verdicts = {name: error.verdict for name, error in result.readings.items()}
    assert (verdicts["torch_eager"], verdicts[runtime]) == ("PASS", "FAIL")
    printed = " ".join(shown(found).split())
    assert f"{runtime} goes wrong in bias" in printed
    assert f"{result.tensor}, made by Mul ({difference})" in printed


@pytest.mark.slow
def test_the_product_that_does_not_fit_is_named_and_not_the_table_after_it(tmp_path: Path) -> None:
    export(SPEC, tmp_path / "hashed")
    fuse(tmp_path / "hashed", targets=["ort_cpu"])
    saturate(tmp_path / "hashed", "ort_cpu")
    found = searched(tmp_path / "hashed", ["ort_cpu"])
    assert_names_the_product(found, "ort_cpu")
    assert "itself is wrong" in found.findings[0].notes[-1]


@pytest.mark.slow
def test_openvino_which_holds_integers_in_int32_is_found_out(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    export(SPEC, tmp_path / "hashed")
    fuse(tmp_path / "hashed", targets=["openvino"])
    found = searched(tmp_path / "hashed", ["openvino"])
    assert_names_the_product(found, "openvino")
    assert "the runtime is wrong" in found.findings[0].notes[-1]


def test_integers_made_of_floats_are_not_exact() -> None:
    """An argmax may change by a rounding, and what is made of it; a size of a tensor of floats may not."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], keepdims=0),
        helper.make_node("Add", ["best", "ids"], ["moved"]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mul", ["ids", "shape"], ["product"]),
        helper.make_node("Equal", ["product", "ids"], ["same"]),
        helper.make_node("Cast", ["product"], ["floats"], to=TensorProto.FLOAT),
    ]
    given = {"x": TensorProto.FLOAT, "ids": TensorProto.INT64}
    kinds = dict.fromkeys(("best", "moved", "shape", "product"), TensorProto.INT64)
    kinds |= {"same": TensorProto.BOOL, "floats": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, [3]) for name, kind in given.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
    )
    made = tensors(ir.from_proto(helper.make_model(graph)))
    assert [name for name, tensor in made.items() if tensor.exact] == ["shape", "product", "same"]
    assert [name for name, tensor in made.items() if tensor.floating] == ["floats"]


@pytest.mark.parametrize(("count", "told"), [(12, "made by op0, op1,"), (20, "made by 8 operators, then op8, op9,")])
def test_the_operators_nearest_to_the_wrong_tensor_are_never_left_out(count: int, told: str) -> None:
    found = Finding("r", tensor="t", between=tuple(f"op{place}" for place in range(count)))
    printed = " ".join(shown(Bisected(ParityReport("FAIL", {}, {}), (found,))).split())
    assert told in printed
    assert f"op{count - 2}, op{count - 1} fine before it" in printed
