"""Tensors on a GPU that go into an engine and come out of it; memory of the host stands for that of the GPU.

PyTorch's own tensors stand for another library's: it reads what DLPack says of the outputs.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_forms import ENGINE_VERSION, engine_bundle
from pretended_gpu import Context, HostDevice, trt

from attnport_bundle import FeedError, load
from attnport_bundle.model import Model
from attnport_bundle.runtimes import cuda as reader_cuda
from attnport_bundle.runtimes import dlpack


class OnGpu:
    """A tensor of PyTorch that says that it is on a GPU."""

    def __init__(self, tensor: torch.Tensor, number: int = 0) -> None:
        self.tensor, self.streams, self.number = tensor, list[Any](), number

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self.tensor.__dlpack__()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    made = HostDevice()
    monkeypatch.setattr(dlpack, "ALIGNMENT", 1)  # PyTorch's memory of the host begins anywhere
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", trt(made, ENGINE_VERSION))
    monkeypatch.setattr(reader_cuda, "Device", lambda: made)
    monkeypatch.setattr(reader_cuda, "driver_release", lambda: "580.1")
    return made


@pytest.fixture
def model(device: HostDevice, tmp_path: Path, cache: Path) -> Model:
    return load(engine_bundle(tmp_path / "engine"), cache=cache)


def feeds(n: int) -> dict[str, Any]:
    x = torch.arange(3 * n, dtype=torch.float32).reshape(n, 3)
    return {"x": OnGpu(x), "m": OnGpu(torch.arange(n) % 2 == 0)}


def taken(value: Any, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """An output as PyTorch takes it: here it is told that the memory is the host's."""
    monkeypatch.setattr(dlpack, "CUDA_DEVICE", 1)
    return torch.from_dlpack(value)


def test_inputs_are_read_where_they_are_and_outputs_stay_there(
    model: Model, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[tuple[str, int]] = []
    real = Context.set_tensor_address
    monkeypatch.setattr(
        Context, "set_tensor_address", lambda self, name, at: addresses.append((name, at)) or real(self, name, at)
    )
    monkeypatch.setattr(device, "upload", lambda *given: pytest.fail("a tensor was copied"))
    monkeypatch.setattr(device, "download", lambda *given: pytest.fail("an output was copied"))
    for n in (4, 32, 8):
        given = feeds(n)
        y = model.run_device(given)["y"]
        assert {("x", given["x"].data_ptr()), ("m", given["m"].data_ptr())} <= set(addresses)
        assert (y.shape, y.dtype, y.__dlpack_device__()) == ((n, 3), "bfloat16", (dlpack.CUDA_DEVICE, 0))
        assert given["x"].streams == [device.stream]
        expected = (2 * given["x"].tensor * given["m"].tensor[:, None]).bfloat16()
        assert torch.equal(taken(y, monkeypatch), expected)


def test_an_output_stays_as_long_as_anybody_holds_it_and_no_longer(
    model: Model, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = taken(model.run_device(feeds(4))["y"], monkeypatch)
    kept = tensor.clone()
    for _ in range(3):
        model.run_device(feeds(4))
    model.close()
    assert torch.equal(tensor, kept)
    assert (len(device.memory), device.closed) == (1, 0)
    del tensor
    gc.collect()
    assert (device.memory, device.closed) == ({}, 1)
    assert not dlpack._given


def test_a_tensor_of_another_gpu_is_refused(model: Model) -> None:
    given = feeds(4) | {"x": OnGpu(torch.zeros(4, 3), number=1)}
    with pytest.raises(FeedError, match="'x': got a tensor on GPU 1; the engine runs on GPU 0"):
        model.run_device(given)


def test_a_model_that_nobody_closed_gives_its_memory_back(tmp_path: Path, cache: Path, device: HostDevice) -> None:
    model = load(engine_bundle(tmp_path / "engine"), cache=cache)
    model.run_device(feeds(4))
    del model
    gc.collect()
    assert (device.memory, device.closed) == ({}, 1)


def test_arrays_and_tensors_go_in_together(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    given = feeds(4) | {"m": np.array([True, True, False, True])}
    y = taken(model.run_device(given)["y"], monkeypatch)
    assert y[2].abs().sum() == 0
    assert torch.equal(y[3].float(), 2 * given["x"].tensor[3])


def test_what_cannot_be_read_where_it_is_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    given = feeds(4)
    with pytest.raises(FeedError, match=r"'x': got a tensor on DLPack device 1; the model computes on cuda"):
        model.run_device({**given, "x": given["x"].tensor})
    turned = OnGpu(torch.zeros(3, 4).T)
    with pytest.raises(FeedError, match=r"'x': the tensor is not contiguous"):
        model.run_device({**given, "x": turned})
    turned.is_contiguous = lambda: True  # of a library that does not tell
    with pytest.raises(FeedError, match=r"'x': the tensor is not contiguous"):
        model.run_device({**given, "x": turned})
    with pytest.raises(FeedError, match="12"):
        model.run_device(feeds(12))
    monkeypatch.setattr(dlpack, "ALIGNMENT", 256)
    odd = OnGpu(torch.zeros(4 * 3 + 1)[1:].reshape(4, 3))
    assert odd.data_ptr() % 256
    with pytest.raises(FeedError, match=r"'x': the tensor's memory is not aligned to 256 bytes"):
        model.run_device({**given, "x": odd})


def test_a_capsule_that_nobody_takes_holds_nothing(model: Model) -> None:
    y = model.run_device(feeds(4))["y"]
    capsule = y.__dlpack__(stream=None, max_version=(1, 0))
    assert len(dlpack._given) == 1
    del capsule
    assert not dlpack._given
