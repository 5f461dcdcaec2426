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

from attnport.sources.onnx_module import OnnxModule
from attnport.sources.operators.base import CONTRIB, OPERATORS
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
            if len(case.model.graph.node) == 1 and len(operators) == 1:
                found[operators.pop()].append(case)
    return dict(found)


KNOWN = sorted({name for domain, name in OPERATORS if domain == ""} | set(CONTROL))


@pytest.mark.parametrize("operator", KNOWN)
def test_an_operator_computes_what_onnx_says(operator: str) -> None:
    tried = [case for case in cases().get(operator, ()) if not _has_unknown_types(case)]
    if not tried:
        pytest.skip("ONNX has no case for it")
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


def _has_unknown_types(case: Any) -> bool:
    values = [*case.model.graph.input, *case.model.graph.output]
    kinds = {onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower() for value in values}
    arrays = [array for inputs, outputs in case.data_sets for array in (*inputs, *outputs)]
    unknown = {*UNKNOWN_TYPES, "undefined", "string", "complex64", "float8e4m3fn"}
    return bool(kinds & unknown) or any(not isinstance(array, np.ndarray | np.generic) for array in arrays)


def test_every_operator_of_onnx_runtime_has_a_name_there() -> None:
    import onnxruntime

    schemas = {schema.name for schema in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()}
    assert {name for domain, name in OPERATORS if domain == CONTRIB} <= schemas
