"""What every runtime's session offers to a model that is open, and what it may be asked about the machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from . import cuda

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Port:
    """An input or output as the model file itself has it; `shape`: None for what is open, whole or by axis."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Machine:
    """What a pass of the goldens holds for: this device with this driver. `uuid`, `sm` and `driver` are a GPU's."""

    device: str
    uuid: str = ""
    sm: int = 0
    driver: str = ""


class Session(Protocol):
    """A model file that a runtime has open.

    Attributes:
        provider: What the file was opened with, as the runtime tells: ONNX Runtime's first provider, or the runtime.
        version: The runtime's release.
        machine: What it runs on.
        inputs, outputs: What the file takes and gives.
    """

    provider: str
    version: str
    machine: Machine
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """Every output by name, in the file's own dtypes; `feeds` fit the contract."""

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, for tensors with `__dlpack__`; the outputs have it as well and stay on the device."""

    def close(self) -> None:
        """Frees what the session holds."""


def gpu(device: cuda.Device) -> Machine:
    """The GPU and its driver: both decide what is compiled for it."""
    return Machine(device.name, device.uuid, device.sm, cuda.driver_release())


def cpu() -> Machine:
    """The processor: another one takes other kernels, so a pass on this one says nothing about it."""
    name = platform.processor()
    if _CPU_INFO.is_file():
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return Machine(f"{platform.machine()} {name}".strip())
