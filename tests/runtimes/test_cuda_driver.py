"""The calls to the CUDA driver, on a driver that stands in for the real one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from attnport.errors import UnavailableError
from attnport.runtimes import _cuda
from attnport_bundle.runtimes import cuda


class Driver:
    """The driver's C functions as ctypes would call them."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.calls: list[str] = []
        self.context = 77
        self.refuses, self.error = "", b"CUDA_ERROR_OUT_OF_MEMORY"

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            self.calls.append(name)
            if name == self.refuses:
                return 2
            if name == "cuGetErrorName":
                args[1]._obj.value = self.error
            elif name == "cuDeviceGetCount":
                args[0]._obj.value = self.gpus
            elif name == "cuDeviceGetName":
                args[0].value = b"Some GPU"
            elif name == "cuDeviceGetAttribute":
                args[0]._obj.value = {75: 8, 76: 6}[args[1].value]
            elif name == "cuDeviceGetUuid":
                args[0]._obj[:] = range(16)
            elif name in ("cuMemAlloc_v2", "cuStreamCreate", "cuDevicePrimaryCtxRetain"):
                args[0]._obj.value = 4096
            elif name == "cuCtxGetCurrent":
                args[0]._obj.value = self.context
            elif name == "cuCtxSetCurrent":
                self.context = args[0].value
            return 0

        return call


def test_the_driver_is_asked_for_name_and_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(1)
    monkeypatch.setattr(cuda, "load_driver", lambda: driver)
    device = _cuda.Device()
    assert (device.name, device.sm) == ("Some GPU", 86)
    assert device.uuid == bytes(range(16)).hex()
    device.open()
    assert device.stream == 4096
    assert device.allocate(0) == 4096
    driver.refuses = "cuMemAlloc_v2"
    with pytest.raises(MemoryError, match="cuMemAlloc_v2 with CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(1 << 60)
    device.close()
    device.close()
    assert driver.calls.count("cuDevicePrimaryCtxRelease_v2") == driver.calls.count("cuDevicePrimaryCtxRetain") == 1


def test_a_thread_has_its_own_context_again_behind_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(1)
    monkeypatch.setattr(cuda, "load_driver", lambda: driver)
    device = cuda.Device()
    device.open()
    driver.context = 77
    with suppress(KeyError), device.current():
        assert driver.context == 4096
        raise KeyError
    assert driver.context == 77


@pytest.mark.parametrize("refused", ["cuCtxSetCurrent", "cuStreamCreate"])
def test_a_device_that_cannot_be_opened_keeps_no_context(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(1)
    monkeypatch.setattr(cuda, "load_driver", lambda: driver)
    device = _cuda.Device()
    driver.refuses, driver.error = refused, b"CUDA_ERROR_INVALID_CONTEXT"
    with pytest.raises(UnavailableError, match=f"{refused} with"):
        device.open()
    assert driver.calls.count("cuDevicePrimaryCtxRelease_v2") == driver.calls.count("cuDevicePrimaryCtxRetain") == 1


def test_a_driver_without_a_gpu_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "load_driver", lambda: Driver(0))
    with pytest.raises(UnavailableError, match="no GPU"):
        _cuda.Device()


def test_a_driver_that_does_not_start_says_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(1)
    driver.refuses, driver.error = "cuInit", b"CUDA_ERROR_NO_DEVICE"
    monkeypatch.setattr(cuda, "load_driver", lambda: driver)
    with pytest.raises(UnavailableError, match="cuInit with CUDA_ERROR_NO_DEVICE") as raised:
        _cuda.Device()
    assert raised.value.hint == "Run on a machine with an NVIDIA GPU and driver."


class Management:
    """NVML's C functions as ctypes would call them."""

    def __init__(self, status: int) -> None:
        self.status, self.open = status, 0

    def nvmlInit_v2(self) -> int:  # noqa: N802 - NVML's own name
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802 - NVML's own name
        self.open -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:  # noqa: N802 - NVML's own name
        text.value = b"580.65.06"
        return self.status


def test_the_drivers_release_is_told_where_it_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Management(0)
    monkeypatch.setattr(cuda, "_library", lambda names: library)
    assert cuda.driver_release() == "580.65.06"
    library.status = 3
    assert cuda.driver_release() == ""
    assert library.open == 0
    monkeypatch.setattr(cuda, "_library", lambda names: None)
    assert cuda.driver_release() == ""
