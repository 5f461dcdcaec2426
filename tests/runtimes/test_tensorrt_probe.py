"""What the TensorRT runtimes say of a machine without a driver, and of a GPU that TensorRT-RTX does not support."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from pretended_engine import VERSION
from pretended_gpu import Diagnostics, HostDevice, Validity, trt

from attnport.artifacts import Capabilities
from attnport.errors import UnavailableError
from attnport.runtimes import _cuda, base, tensorrt_rtx
from attnport_bundle.runtimes import cuda


def test_without_a_driver_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LIBRARIES", ("libthere-is-none.so.1",))
    with pytest.raises(UnavailableError, match="no NVIDIA driver"):
        _cuda.Device()
    found = base.get("tensorrt_rtx").probe()
    assert not found.available
    assert found.reason


@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
def test_rtx_without_a_driver_says_that_it_builds_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LIBRARIES", ("libthere-is-none.so.1",))
    assert tensorrt_rtx.RUNTIME.probe().hint.startswith("engines can be built here")
    monkeypatch.setattr(tensorrt_rtx.TensorRTRTX, "package", "tensorrt_of_nowhere")
    assert "built here" not in tensorrt_rtx.RUNTIME.probe().hint


@pytest.fixture
def probe(device: HostDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Capabilities]:
    """Probes TensorRT-RTX on the pretended device, with an empty cache at first."""
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path))

    def probed(driver: str = "580", version: str = VERSION, lacks: str = "") -> Capabilities:
        module = trt(device, version)
        if lacks:
            delattr(module.Runtime if hasattr(module.Runtime, lacks) else module, lacks)
        monkeypatch.setattr(tensorrt_rtx.TensorRTRTX, "libraries", lambda self: {})
        monkeypatch.setattr(base, "require", lambda name: module)
        monkeypatch.setattr(tensorrt_rtx, "driver_release", lambda: driver)
        return base.get("tensorrt_rtx").probe()

    return probed


def test_a_gpu_that_rtx_does_not_support_is_found_before_any_engine_is_built(
    probe: Callable[..., Capabilities], device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostDevice, "sm", 90)
    monkeypatch.setattr(HostDevice, "name", "NVIDIA H200")
    device.validity, device.diagnostics = Validity.INVALID, Diagnostics.UNSUPPORTED_CC
    found = probe()
    assert not found.available
    assert found.reason == "TensorRT-RTX 9.9.9 does not support compute capability 9.0 (NVIDIA H200)"
    assert found.hint == "Use ort_cuda or tensorrt on this GPU. Engines for other GPUs can be built here."
    assert (found.version, found.devices, found.plans) == (VERSION, (), ())


@pytest.mark.parametrize("validity", [Validity.VALID, Validity.SUBOPTIMAL])
def test_a_gpu_on_which_rtx_runs_the_tiny_engine_is_available(
    validity: Validity, probe: Callable[..., Capabilities], device: HostDevice
) -> None:
    device.validity, device.diagnostics = validity, Diagnostics.OLD_CUDA_RUNTIME
    assert probe().available
    assert device.tried == 1


@pytest.mark.parametrize("lacks", ["get_engine_validity", "EngineValidity", "Builder"])
def test_a_release_that_cannot_tell_is_available(
    lacks: str, probe: Callable[..., Capabilities], device: HostDevice
) -> None:
    device.validity = Validity.INVALID
    assert probe(lacks=lacks).available


def test_what_the_tiny_engine_showed_is_kept_by_release_capability_and_driver(
    probe: Callable[..., Capabilities], device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.validity, device.diagnostics = Validity.INVALID, Diagnostics.UNSUPPORTED_CC
    assert [probe().available, probe().available, device.tried] == [False, False, 1]
    device.validity = Validity.VALID
    assert [probe("590").available, probe("590").available, device.tried] == [True, True, 2]
    assert [probe(version="9.9.10").available, device.tried] == [True, 3]
    assert [probe("").available, probe("").available, device.tried] == [True, True, 5]  # an unknown driver
    assert not probe().available
    monkeypatch.setattr(HostDevice, "sm", 120)
    assert probe().available


def test_another_reason_against_the_tiny_engine_is_said_and_asked_about_again(
    probe: Callable[..., Capabilities], device: HostDevice
) -> None:
    device.validity, device.diagnostics = Validity.INVALID, Diagnostics.INSUFFICIENT_GPU_MEMORY
    found = probe()
    assert found.reason == "TensorRT-RTX 9.9.9 runs no engine on Pretended GPU: INSUFFICIENT_GPU_MEMORY"
    assert found.failed
    device.validity = Validity.VALID
    assert probe().available


@pytest.mark.skipif(not find_spec("tensorrt_rtx"), reason="tensorrt_rtx is not installed")
def test_the_installed_rtx_builds_the_tiny_engine_and_tells_whether_it_is_valid() -> None:
    import tensorrt_rtx as installed

    data = bytes(memoryview(tensorrt_rtx._tiny_engine(installed)))
    assert data.startswith(b"vtrt")
    assert hasattr(installed.Runtime, "get_engine_validity")
    assert {flag.name for flag in Validity} <= set(installed.EngineValidity.__members__)
    members = installed.EngineInvalidityDiagnostics.__members__
    assert {flag.name: int(flag) for flag in Diagnostics} == {
        flag.name: int(members[flag.name]) for flag in Diagnostics
    }
