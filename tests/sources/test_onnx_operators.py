"""The operators of `onnx:` files against the cases that come with ONNX, each with inputs and results."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

from attnport.bodies import schema_of, write_out
from attnport.contrib import SCHEMAS
from attnport.sources.onnx_module import OnnxModule, is_known
from attnport.sources.operators.base import OPERATORS
from attnport.sources.operators.control import CONTROL

UNKNOWN_TYPES = ("uint16", "uint32", "uint64", "float16", "bfloat16")
"""Types that PyTorch computes little with, or that files are widened from."""
OLD = ("test_scan_sum",)


@functools.cache
def cases() -> dict[str, list[Any]]:
    found = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            operators = {node.op_type for node in case.model.graph.node if node.domain in ("", "ai.onnx")}
            operators |= {node.op_type for node in case.model.graph.node if node.op_type == "FlexAttention"}
            if len(case.model.graph.node) == 1 and len(operators) == 1:
                found[operators.pop()].append(case)
    return dict(found)


WITHOUT_CASES = {"Cast", "CastLike", "SimplifiedLayerNormalization"}
"""ONNX's cases of casts are of types that are left out here; the last is ONNX Runtime's, see test_contrib.py."""
KNOWN = sorted((OPERATORS.keys() | CONTROL.keys()) - WITHOUT_CASES)


@pytest.mark.parametrize("operator", KNOWN)
def test_an_operator_computes_what_onnx_says(operator: str) -> None:
    tried = [case for case in cases().get(operator, ()) if not _has_unknown_types(case)]
    assert tried
    for case in tried:
        model = ir.from_proto(case.model)
        names = [str(value.name) for value in model.graph.inputs]
        outputs = {str(value.name): str(value.name) for value in model.graph.outputs}
        for inputs, expected in case.data_sets:
            module = OnnxModule(model, {name: name for name in names}, outputs)
            feeds = {name: torch.from_numpy(np.array(value)) for name, value in zip(names, inputs, strict=False)}
            if case.name in OLD:
                with pytest.raises(RuntimeError, match="Scan of opset 8"):
                    module(**feeds)
                continue
            with np.errstate(invalid="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of the reference evaluator
                got = module(**feeds)
            for (name, value), wanted in zip(got.items(), expected, strict=True):
                assert value.shape == np.shape(wanted), f"{case.name}: {name}"
                np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-3, atol=1e-5, err_msg=f"{case.name}: {name}")
                assert str(value.numpy().dtype) == str(np.asarray(wanted).dtype), f"{case.name}: {name}"


@pytest.mark.parametrize("axes", ["", ", none"])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("operator", sorted(name for name in OPERATORS if name.startswith("Reduce")))
def test_a_reduction_over_no_axes_leaves_each_element(operator: str, keep: int, axes: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]> g (float[N,L] x) => (float[N,L] y)
        {{ none = Constant<value = int64[0] {{}}>()
           y = {operator}<noop_with_empty_axes = 1, keepdims = {keep}>(x{axes}) }}""")
    x = np.random.default_rng(0).uniform(0.5, 2, (2, 3)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    got = OnnxModule(ir.from_proto(model), {"x": "x"}, {"y": "y"})(x=torch.from_numpy(x))["y"]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)


DEFINED = sorted(
    name
    for name, tried in cases().items()
    if not (name in KNOWN or name in WITHOUT_CASES or name in ("Bernoulli", "SequenceMap"))
    and (schema := schema_of(ir.from_proto(tried[0].model).graph[0], tried[0].model.opset_import[-1].version))
    and (schema.has_function or schema.has_context_dependent_function)
)
"""Operators that PyTorch does not compute here, and the standard defines by others."""
WITHOUT_A_BODY = {"CausalConvWithState", "Shrink"}
"""Of these it gives a body for some sizes alone, or of newer opsets; the others are for its evaluator."""


def test_operators_that_the_standard_defines_are_found() -> None:
    assert {"MeanVarianceNormalization", "Celu", "Shrink", "Selu", "SwiGLU", "LinearAttention", "FlexAttention"} <= set(
        DEFINED
    )


@pytest.mark.parametrize("operator", DEFINED)
def test_what_the_standard_defines_is_written_out_and_right(operator: str) -> None:
    tried = [case for case in cases()[operator] if not _has_unknown_types(case) and "double" not in case.name]
    assert tried
    for case in tried:
        model = ir.from_proto(case.model)
        names = [str(value.name) for value in model.graph.inputs]
        outputs = {str(value.name): str(value.name) for value in model.graph.outputs}
        if write_out(model, lambda node: not is_known(node)) or operator not in WITHOUT_A_BODY:
            assert operator not in {node.op_type for node in model.graph}
        for inputs, expected in case.data_sets:
            module = OnnxModule(model, {name: name for name in names}, outputs)
            got = module(
                **{name: torch.from_numpy(np.array(value)) for name, value in zip(names, inputs, strict=False)}
            )
            for (name, value), wanted in zip(got.items(), expected, strict=True):
                np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-3, atol=1e-5, err_msg=f"{case.name}: {name}")


@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "int8", "bool"])
def test_casts_are_numpys(operator: str, dtype: str) -> None:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = {"x": np.array([-0.0, 0.0, 1.75, 100.0], np.float32), "like": np.zeros(1, dtype)}
    names = list(given) if operator == "CastLike" else ["x"]
    attributes = {} if operator == "CastLike" else {"to": kind}
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(given[name].dtype), [None])
        for name in names
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, names, ["y"], **attributes)], "cast", inputs,
        [onnx.helper.make_tensor_value_info("y", kind, [None])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    module = OnnxModule(ir.from_proto(model), {name: name for name in names}, {"y": "y"})
    got = module(**{name: torch.from_numpy(given[name]) for name in names})["y"].numpy()
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, given["x"].astype(dtype))


def _has_unknown_types(case: Any) -> bool:
    values = [*case.model.graph.input, *case.model.graph.output]
    kinds = {onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower() for value in values}
    arrays = [array for inputs, outputs in case.data_sets for array in (*inputs, *outputs)]
    unknown = {*UNKNOWN_TYPES, "undefined", "string", "complex64", "float8e4m3fn"}
    return bool(kinds & unknown) or any(not isinstance(array, np.ndarray | np.generic) for array in arrays)


def test_every_operator_of_onnx_runtime_has_a_name_there() -> None:
    import onnxruntime

    schemas = {schema.name for schema in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()}
    assert SCHEMAS.keys() <= schemas
