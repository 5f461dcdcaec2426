"""The interface of every runtime's session, and the description of the machine that it runs on."""

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
    """An input or output of the model file. `shape` is None if the rank is unknown, an axis None if it is dynamic."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Machine:
    """The device and driver that a pass of the goldens is valid for. `uuid`, `sm` and `driver` are for GPUs."""

    device: str
    uuid: str = ""
    sm: int = 0
    driver: str = ""


class Session(Protocol):
    """A model file that a runtime has open.

    Attributes:
        provider: What the file was opened with, as the runtime reports it: ONNX Runtime's first provider, or the
            runtime.
        version: The runtime's release.
        machine: The device that it runs on.
        inputs, outputs: The inputs and outputs of the file.
    """

    provider: str
    version: str
    machine: Machine
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """Every output by name, in the file's own dtypes; `feeds` fit the contract."""

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, for tensors with `__dlpack__`; the outputs have it too and stay on the device."""

    def give_back(self) -> bool:
        """Gives the system what the runtime keeps between calls. Returns whether it can; nothing else changes."""

    def close(self) -> None:
        """Frees the session."""


def gpu(device: cuda.Device) -> Machine:
    """The GPU and its driver; the compiled kernels depend on both."""
    return Machine(device.name, device.uuid, device.sm, cuda.driver_release())


def cpu() -> Machine:
    """The processor; a pass says nothing about another one, which uses other kernels."""
    name = platform.processor()
    if _CPU_INFO.is_file():
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return Machine(f"{platform.machine()} {name}".strip())
