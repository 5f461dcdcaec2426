"""What every runtime's session has in common, and how its model file is compared with the manifest.

`onnxruntime`, `openvino` and `tensorrt` have a session each, and are imported when a form asks for them (`opening.py`);
a bundle carries those of its forms. `cuda` is the driver, for TensorRT and for ONNX Runtime on a GPU; `kernels` keeps
what TensorRT-RTX compiled.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import IntegrityError, UsageError
from ..feeds import through_numpy
from ..format.contract import IO, Profile, TensorSpec
from ..format.manifest import Form, shown_name

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

_CPU_INFO = Path("/proc/cpuinfo")
Range = tuple[tuple[int, ...], tuple[int, ...]]
"""The smallest and the largest shape."""


@dataclass(frozen=True)
class Port:
    """An input or output of the model file. `shape` is None if the rank is unknown, an axis None if it is dynamic."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Machine:
    """The device that a session runs on. `uuid`, `sm` and `driver` are for GPUs."""

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
        profiles: For each optimization profile of an engine, the smallest and largest shape of each input by name.
    """

    provider: str
    version: str
    machine: Machine
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    profiles: Sequence[Mapping[str, Range]] = ()

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """Every output by name, in the file's own dtypes; `feeds` fit the contract."""

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`, for tensors with `__dlpack__`; the outputs have it too.

        Inputs come from the CPU and outputs are copied there, unless a runtime keeps them on its device.
        """
        return dict(self.run(through_numpy(feeds)))

    def close(self) -> None:
        """Frees the session."""


def cpu() -> Machine:
    """The processor."""
    name = platform.processor()
    if _CPU_INFO.is_file():
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return Machine(f"{platform.machine()} {name}".strip())


def check_ports(io: IO, form: Form, session: Session, where: str) -> None:
    """Raises IntegrityError unless names, dtypes, ranks, fixed sizes and profiles of a session are the manifest's.

    An ONNX file does not tell the largest size of a named dim, so that the manifest's cannot be checked.
    """
    ends = tuple(Profile(io.dims).sizes(which) for which in ("min", "max"))
    for kind, specs, ports in (("inputs", io.inputs, session.inputs), ("outputs", io.outputs, session.outputs)):
        by_name = {port.name: port for port in ports}
        if set(by_name) != {spec.name for spec in specs} or len(by_name) != len(ports):
            got, stated = ", ".join(map(shown_name, sorted(by_name))), ", ".join(spec.name for spec in specs)
            raise IntegrityError(f"{where} has the {kind} {got or 'none'}; the manifest says {stated}.")
        for spec in specs:
            _check_port(ends, spec, form.dtypes.get(spec.name, spec.dtype), by_name[spec.name], where)
    _check_profiles(io, form, session.profiles, where)


def _check_port(ends: Sequence[Mapping[str, int]], spec: TensorSpec, dtype: str, port: Port, where: str) -> None:
    if port.dtype != dtype:
        raise IntegrityError(f"{where}: tensor {spec.name!r} is {shown_name(port.dtype)}; the manifest says {dtype}.")
    if port.shape is None:
        return
    if len(port.shape) != len(spec.dims):
        raise IntegrityError(f"{where}: tensor {spec.name!r} has rank {len(port.shape)}; the manifest says {spec}.")
    for axis, (size, dim) in enumerate(zip(port.shape, spec.dims, strict=True)):
        if size is not None and any(size != _stated(dim, sizes) for sizes in ends):
            raise IntegrityError(
                f"{where}: tensor {spec.name!r} has size {size} on axis {axis}; the manifest says {spec}."
            )


def _stated(dim: str | int, sizes: Mapping[str, int]) -> int | None:
    """The size that the contract gives an axis at these sizes; None where an expression has no value there."""
    try:
        return TensorSpec("", "float32", (dim,)).shape(sizes)[0]
    except UsageError:
        return None


def _check_profiles(io: IO, form: Form, profiles: Sequence[Mapping[str, Range]], where: str) -> None:
    if len(profiles) != len(form.profiles):
        raise IntegrityError(
            f"{where} has {len(profiles)} optimization profiles; the manifest says {len(form.profiles)}."
        )
    for index, (got, stated) in enumerate(zip(profiles, form.profiles, strict=True)):
        ends = tuple(stated.sizes(which) for which in ("min", "max"))
        for spec in io.inputs:
            wanted = [tuple(_stated(dim, sizes) for sizes in ends) for dim in spec.dims]
            got_ranges = list(zip(*got.get(spec.name, ((), ())), strict=True))
            if got_ranges != wanted:
                raise IntegrityError(
                    f"{where}: profile {index} takes {spec.name!r} from {[low for low, _ in got_ranges]} to "
                    f"{[high for _, high in got_ranges]}; the manifest says {wanted}."
                )
