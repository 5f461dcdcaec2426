"""The state of a GPU, by a pretended NVML: what is told of it, and that nothing fails where nothing is told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnport.latency import gpu_state as states
from attnport.latency.gpu_state import gpu_state
from attnport.runtimes.ort_cpu import OrtCpu
from attnport.verbs.bench import bench


class NotSupported(Exception): ...


def refuse(*given: Any) -> Any:
    raise NotSupported("not for this GPU")


class Nvml(SimpleNamespace):
    """Two GPUs; of the second all is known."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    bits = 0x1
    opened = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}bababab-abab-abab-abab-abababababab",
            "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980 - handle, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda handle, kind: 45,
            "nvmlDeviceGetPowerUsage": lambda handle: 319_700,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: self.bits,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    found = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.setattr(states, "Device", refuse)
    return found


@pytest.mark.parametrize(
    ("bits", "slowed"),
    [
        (0x0, ""),
        (0x1, ""),
        (0x4, ", slowed down by: power cap"),
        (0x49, ", slowed down by: hardware slowdown, heat, by hardware"),
    ],
)
def test_clocks_temperature_power_and_what_slows_it_down(nvml: Nvml, bits: int, slowed: str) -> None:
    nvml.bits = bits
    assert gpu_state() == (f"1980 MHz, memory 3201 MHz, 45 C, 320 W{slowed}", "")
    assert nvml.opened == 0


def test_an_older_driver_knows_the_older_name(nvml: Nvml) -> None:
    nvml.nvmlDeviceGetCurrentClocksEventReasons = refuse
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x20
    assert gpu_state()[0].endswith(", slowed down by: heat, by software")


def test_it_is_the_gpu_that_cuda_lists_first(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "Device", lambda: SimpleNamespace(uuid="1" + "bababab" + "ab" * 12))
    assert gpu_state()[0].startswith("1979 MHz")


def test_what_a_gpu_does_not_tell_is_left_out(nvml: Nvml) -> None:
    nvml.nvmlDeviceGetPowerUsage = nvml.nvmlDeviceGetTemperature = refuse
    assert gpu_state() == ("1980 MHz, memory 3201 MHz", "")


def test_without_nvml_there_is_a_note(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.nvmlInit = refuse
    assert gpu_state() == ("", "the clocks of the GPU are not known: NVML says NotSupported: not for this GPU")
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByIndex = refuse
    assert gpu_state() == ("", "the clocks of the GPU are not known: NVML says NotSupported: not for this GPU")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    state, note = gpu_state()
    assert state == ""
    assert "pynvml" in note
    assert "pip install nvidia-ml-py" in note


def test_a_gpu_of_which_nothing_is_told_has_a_note(nvml: Nvml) -> None:
    nvml.nvmlDeviceGetPowerUsage = nvml.nvmlDeviceGetTemperature = nvml.nvmlDeviceGetClockInfo = refuse
    assert gpu_state() == ("", "the clocks of the GPU are not known: NVML tells nothing of this one")


@pytest.mark.slow
def test_bench_records_it_before_and_after_each_call_where_something_is_timed_on_a_gpu(
    nvml: Nvml, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings() -> tuple[dict[str, Any], tuple[str, ...]]:
        calls = ["batch=1,seq=3", "batch=2,seq=3"]
        report = bench(tiny_artifact, ["ort_cpu"], calls, threads=1, within=9.0, cold=False, force=True)
        found = {name: value for name, value in report.settings.items() if name.startswith("gpu ")}
        return found, tuple(note for note in report.notes if "clocks" in note)

    assert settings() == ({}, ())
    monkeypatch.setattr(OrtCpu, "gpu", True)
    state = "1980 MHz, memory 3201 MHz, 45 C, 320 W"
    expected = {f"gpu {when} batch={batch},seq=3": state for batch in (1, 2) for when in ("before", "after")}
    assert settings() == (expected, ())
    nvml.nvmlInit = refuse
    found, notes = settings()
    assert found == {}
    assert len(notes) == 1
