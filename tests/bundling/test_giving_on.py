"""An input that a model gives on comes out in memory of its own: the caller's may go away behind the call."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_folders import session
from giving_on import NAME, give_on, turn
from torch.utils.dlpack import from_dlpack

from attnport_bundle import BundleError, load
from attnport_bundle.feeds import check_outputs, to_file
from attnport_bundle.format.contract import IO, Dim, TensorSpec
from attnport_bundle.model import selftest
from attnport_bundle.runtimes.onnxruntime import OnnxRuntimeSession

ort = pytest.importorskip("onnxruntime")
DTYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16", "int64": "int64", "bool": "bool"}


def feeds() -> dict[str, Any]:
    return {"ids": np.array([[3, 9, 49]]), NAME: np.array([[1, 1, 0]])}


def opened(folder: Path, dtype: str) -> OnnxRuntimeSession:
    kind = DTYPES[dtype]
    text = f'<ir_version: 10, opset_import: ["" : 18]> g ({kind}[n] x) => (int64[1] s, {kind}[n] x) {{s = Shape(x)}}'
    return session(folder, text)


def test_such_a_bundle_is_fine(app: Path) -> None:
    give_on(app)
    assert selftest(app).exit_code == 0


def test_outputs_do_not_change_with_the_feeds(app: Path) -> None:
    give_on(app)
    given = feeds()
    wanted = copy.deepcopy(given[NAME])
    with load(app) as model:
        found = model.run(**given)[NAME]
        stays = model.run_device(given)[NAME]
        tensors = {name: torch.from_numpy(array) for name, array in given.items()}
        beside = model.run_device(tensors)[NAME]
    for array in given.values():
        array[:] = 7
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(stays.numpy(), wanted)
    np.testing.assert_array_equal(beside.numpy(), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_is_none_of_the_callers_whatever_the_dtype(tmp_path: Path, dtype: str) -> None:
    array = to_file(np.arange(5.0), dtype)
    wanted = array.tobytes()
    given_on = opened(tmp_path, dtype)
    found = given_on.run({"x": array})["x"]
    value = None if dtype == "bfloat16" else given_on.run_device({"x": array})["x"]
    tensor = None if value is None else from_dlpack(value)
    if dtype == "bfloat16":  # NumPy has none
        given = torch.arange(5.0).to(torch.bfloat16)
        tensor = from_dlpack(given_on.run_device({"x": given})["x"])
        given[:] = 7
    del value  # what was taken from a value stays without it
    array[:] = 1
    assert found.tobytes() == wanted
    assert tensor is not None
    assert tensor.contiguous().view(torch.uint8).numpy().tobytes() == wanted


TURNED: dict[str, tuple[str, list[str | int], tuple[int, int], str]] = {
    "named": ("Transpose", ["batch", "seq"], (2, 3), "[3, 2]; expected turned=int64[batch,seq] with batch=2, seq=3."),
    "fixed": ("Transpose", ["seq", 7], (2, 3), "[3, 2]; expected turned=int64[seq,7] with batch=2, seq=3."),
    "rank": ("Squeeze", ["batch", "seq"], (1, 3), "[3]; expected turned=int64[batch,seq] with batch=1, seq=3."),
}


@pytest.mark.parametrize("name", TURNED)
def test_an_output_of_another_shape_than_the_contracts_is_refused(app: Path, name: str) -> None:
    operator, dims, shape, words = TURNED[name]
    turn(app, operator, dims)
    given = {name: np.ones(shape, np.int64) for name in ("ids", NAME)}
    with load(app) as model:
        for call in (lambda: model.run(**given), lambda: model.run_device(given)):
            with pytest.raises(BundleError) as caught:
                call()
            assert str(caught.value) == f"output 'turned': got shape {words}"
            assert type(caught.value) is BundleError


def test_outputs_of_the_contracts_shape_pass(app: Path) -> None:
    turn(app, "Squeeze", ["batch", "seq"])
    with load(app) as model:
        assert model.run(**{name: np.ones((2, 3), np.int64) for name in ("ids", NAME)})["turned"].shape == (2, 3)


def test_a_dim_of_outputs_alone_is_one_size() -> None:
    outputs = (TensorSpec("a", "float32", ("n", 2), None), TensorSpec("b", "float32", ("n",), None))
    io = IO((TensorSpec("x", "float32", (1,), None),), outputs, (Dim("n", 1, 2, 9),), ())
    check_outputs(io, {}, {"a": (3, 2), "b": (3,)})
    with pytest.raises(BundleError, match=r"output 'b': got shape \[4\]; expected b=float32\[n\] with n=3\."):
        check_outputs(io, {}, {"a": (3, 2), "b": (4,)})


def test_on_a_gpu_it_is_refused(tmp_path: Path) -> None:
    class OnGpu:
        def device_name(self) -> str:
            return "cuda"

    with pytest.raises(BundleError, match=r"output 'x' is the caller's own memory on the GPU, .*; call run instead\."):
        opened(tmp_path, "int64")._copied("x", OnGpu())
