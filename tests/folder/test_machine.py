"""What is read of a machine, on texts and drivers of other machines."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import install_distribution

from attnport.folder import machine as module
from attnport.folder.workspace import toolchain
from attnport.runtimes import base

CPUINFO = """processor : 0
model name : Some CPU @ 3.0GHz
flags : fpu sse2 avx2 avx512f

processor : 1
model name : Another
flags : fpu

Hardware : nothing
"""


class Driver:
    """A CUDA driver with one device; every call returns a status, as the real one's do."""

    def __init__(self, status: int = 0, devices: int = 1) -> None:
        self.status, self.devices = status, devices

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.status

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 13010
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.devices
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"Some GPU"
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:  # noqa: N802
        memory._obj.value = 24 << 30
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = {75: 8, 76: 9}[attribute]
        return 0


def test_the_first_processor_and_its_features_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_text", lambda path: CPUINFO if path.endswith("cpuinfo") else "")
    found = module.machine()
    assert found.cpu == "Some CPU @ 3.0GHz"
    assert found.features == ("avx2", "avx512f")
    assert 1 <= found.cores <= found.threads


def test_text_without_a_processor_is_no_processor() -> None:
    assert module.parse_cpuinfo("Hardware : nothing\n\nRevision : 2\n") == {}
    assert module.parse_cpuinfo("") == {}


def test_the_memory_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_text", lambda path: "1000\n" if "cgroup" in path else "")
    assert module.machine().memory_bytes == 1000
    monkeypatch.setattr(module, "_text", lambda path: "max\n" if "cgroup" in path else "")
    assert module.machine().memory_bytes > 1 << 28


def test_a_system_without_proc_still_has_a_name_and_a_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_text", lambda path: "")
    found = module.machine(tmp_path)
    assert found.cpu
    assert found.cores >= 1
    assert found.free_disk_bytes > 0


def test_a_gpu_is_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert module.find_gpus() == ((module.Gpu("Some GPU", 89, 24 << 30),), "", "13.1")


@pytest.mark.parametrize(
    ("driver", "note"), [(Driver(status=999), "cuInit returned 999"), (Driver(devices=0), "shows no device")]
)
def test_a_driver_without_a_device_says_so(monkeypatch: pytest.MonkeyPatch, driver: Driver, note: str) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    gpus, said, _ = module.find_gpus()
    assert gpus == ()
    assert note in said


def test_no_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    gpus, said, cuda = module.find_gpus()
    assert (gpus, cuda) == ((), "")
    assert "no NVIDIA driver" in said


@pytest.mark.parametrize(
    ("runtime", "distribution"),
    [
        *((f"ort_{name}", "onnxruntime-gpu") for name in ("cpu", "cuda", "tensorrt", "tensorrt_rtx")),
        ("ort_cpu", "onnxruntime-openvino"),
        ("ort_tensorrt_rtx", "onnxruntime-ep-nv-tensorrt-rtx"),
        ("openvino", "openvino"),
        ("tensorrt", "tensorrt-cu13"),
        ("tensorrt", "tensorrt-cu13-bindings"),
        ("tensorrt_rtx", "tensorrt-rtx"),
        ("torch_compile", "triton"),
        ("torch_eager", "torch"),
        ("bundle", "onnxruntime-gpu"),
    ],
)
def test_an_upgrade_of_what_a_runtime_consists_of_changes_its_digest(
    runtime: str, distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = []
    for version in ("1.30.0", "1.31.0"):
        install_distribution(tmp_path, distribution, version)
        assert module.versions(base.get(runtime).distributions)[distribution] == version
        digests.append(toolchain(*base.distributions([runtime])))
    assert digests[0] != digests[1]


def test_every_runtime_says_what_it_consists_of() -> None:
    every = [base.get(name) for name in base.names()]
    assert all(one.distributions or type(one).depends is not base.Runtime.depends for one in every)
