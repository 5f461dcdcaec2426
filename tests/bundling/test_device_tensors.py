"""Tensors of another library through DLPack, on the CPU, without a copy. On a GPU nothing of this was run."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tiny_attention as tiny
import torch
from bundle_folders import session
from torch.utils.dlpack import from_dlpack

from attnport_bundle import FeedError, RuntimeMissing
from attnport_bundle import feeds as device
from attnport_bundle.feeds import from_file, to_file
from attnport_bundle.model import Model

ort = pytest.importorskip("onnxruntime")


def tensors(lengths: list[int], seed: int = 0) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in tiny.feeds(lengths, seed).items()}


def test_tensors_give_what_arrays_give_and_stay_tensors(model: Model) -> None:
    for lengths in ([4, 6], [1], [7, 2, 3]):
        wanted = model.run(**tiny.feeds(lengths, 0))
        found = model.run_device(tensors(lengths))
        assert list(found) == ["hidden", "pooled"]
        for name, array in wanted.items():
            torch.testing.assert_close(from_dlpack(found[name]), torch.from_numpy(array), rtol=0, atol=0)


def test_outputs_go_in_again_and_arrays_go_beside_tensors(tmp_path: Path) -> None:
    doubled = session(
        tmp_path, '<ir_version: 10, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) {y = Add(x, x)}'
    )
    first = doubled.run_device({"x": np.ones(3, np.float32)})["y"]
    assert device.described("x", first) == device.Described((3,), "float32")
    assert doubled.run_device({"x": first})["y"].numpy().tolist() == [4, 4, 4]


def test_memory_is_bound_and_not_copied(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    seen: dict[str, int] = {}
    taken = device._taken

    def noted(name: str, tensor: Any, take: Any) -> Any:
        value = taken(name, tensor, take)
        seen[name] = value.data_ptr()
        return value

    monkeypatch.setattr(device, "_taken", noted)
    given = tensors([4, 6])
    model.run_device(given)
    assert seen == {name: tensor.data_ptr() for name, tensor in given.items()}


def test_an_output_is_the_memory_that_the_runtime_wrote(model: Model) -> None:
    value = model.run_device(tensors([4]))["hidden"]
    assert from_dlpack(value).data_ptr() == value.data_ptr()


def test_booleans_are_bound_where_they_lie(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> g (bool[n] m) => (bool[n] y) {y = Not(m)}'
    negated = session(tmp_path, text)
    mask = torch.tensor([True, False, True])
    assert device._address("m", mask, (3,)) == mask.data_ptr()
    assert negated.run_device({"m": mask})["y"].numpy().tolist() == [False, True, False]
    mask.logical_not_()
    assert negated.run_device({"m": mask})["y"].numpy().tolist() == [True, False, True]


WRONG = {
    "not contiguous": (lambda t: t | {"ids": torch.ones(4, 2, dtype=torch.int64).T}, r"'ids'.*call \.contiguous\(\)"),
    "dtype": (lambda t: t | {"ids": t["ids"].int()}, "'ids': got dtype int32; expected int64"),
    "rank": (lambda t: t | {"ids": t["ids"][0]}, "'ids': got rank 1"),
    "size": (lambda t: t | {"ids": torch.ones(2, 17, dtype=torch.int64)}, "'ids': got seq=17"),
    "missing": (lambda t: {"ids": t["ids"]}, "'attention_mask' is missing"),
    "no tensor": (lambda t: t | {"ids": [[1]]}, "'ids': got list; expected an array, or a tensor with __dlpack__"),
    "masked": (lambda t: t | {"ids": np.ma.ones((2, 4), np.int64)}, "'ids': got numpy.ma.MaskedArray"),
    "an array's values": (lambda t: t | {"ids": np.full((2, 4), 50)}, "'ids': got values 50 to 50"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_in_our_words(model: Model, name: str) -> None:
    change, words = WRONG[name]
    with pytest.raises(FeedError, match=words):
        model.run_device(change(tensors([2, 4])))


def test_tensors_with_gradients_or_elsewhere_are_refused(tmp_path: Path) -> None:
    same = session(tmp_path, '<ir_version: 10, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) {y = Relu(x)}')
    with pytest.raises(FeedError, match=r"call \.detach\(\)"):
        same.run_device({"x": torch.ones(3, requires_grad=True)})

    class Elsewhere:
        shape, dtype = (3,), "float32"

        def __dlpack__(self) -> None: ...

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    for run in (same.run_device, device.through_numpy):
        with pytest.raises(FeedError, match="'x': got a tensor on DLPack device 2; the model computes on cpu"):
            run({"x": Elsewhere()})


def test_an_onnxruntime_without_dlpack_says_which_has_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ort.OrtValue, "from_dlpack")
    with pytest.raises(RuntimeMissing, match=r'pip install "onnxruntime>=1\.28"'):
        model.run_device(tensors([2]))


def test_a_closed_model_says_so(model: Model) -> None:
    model.close()
    with pytest.raises(Exception, match="closed"):
        model.run_device(tensors([2]))


def test_runtimes_that_take_no_foreign_memory_get_arrays(tmp_path: Path) -> None:
    given = torch.arange(6.0).reshape(2, 3)
    found = device.through_numpy({"x": given, "m": torch.tensor([True]), "a": np.ones(2)})
    assert found["x"].ctypes.data == given.data_ptr()
    assert found["m"].dtype == np.bool_
    with pytest.raises(FeedError, match="cannot be taken over"):
        device.through_numpy({"x": given.to(torch.bfloat16)})


def test_bfloat16_goes_through_onnxruntime_as_bits(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 23]> g (bfloat16[n,2] x) => (bfloat16[n,2] y) '
        "{f = Cast<to=1>(x) g = Add(f, f) y = Cast<to=16>(g)}"
    )
    doubled = session(tmp_path, text)
    assert (doubled.inputs[0].dtype, doubled.outputs[0].shape) == ("bfloat16", (None, 2))
    given = np.random.default_rng(0).standard_normal((5, 2), np.float32)
    found = from_file(doubled.run({"x": to_file(given, "bfloat16")})["y"], "bfloat16", "float32")
    rounded = given.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found, 2 * rounded)
    y = from_dlpack(doubled.run_device({"x": torch.from_numpy(given).bfloat16()})["y"])
    assert y.dtype == torch.bfloat16
    np.testing.assert_array_equal(y.float().numpy(), 2 * rounded)


def test_memory_that_was_bound_may_go_when_the_model_ran(model: Model) -> None:
    wanted = model.run(**tiny.feeds([4, 6], 0))["hidden"]
    value = model.run_device(tensors([4, 6]))["hidden"]
    for seed in range(5):
        model.run_device(tensors([3, 5], seed))
    ctypes.pythonapi.PyGC_Collect()
    np.testing.assert_array_equal(from_dlpack(value).numpy(), wanted)
