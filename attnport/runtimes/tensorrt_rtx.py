"""TensorRT-RTX engines, which are built without a GPU and compiled on the device that runs them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

from attnport.artifacts import Capabilities, EngineRecord
from attnport.bundling.python.engine_header import read_header
from attnport.errors import IntegrityError, UnavailableError
from attnport.runtimes import _cuda
from attnport.runtimes.tensorrt import TensorRT


class TensorRTRTX(TensorRT):
    """The RTX flavour: engines for several GPU generations at once."""

    name: ClassVar[str] = "tensorrt_rtx"
    form: ClassVar[str] = "tensorrt_rtx"
    module: ClassVar[str] = "tensorrt_rtx"
    keeps: ClassVar[bool] = True

    def probe(self) -> Capabilities:
        """As the data centre's; where only the GPU is missing, the hint says that engines are built all the same."""
        found = super().probe()
        if found.available or not (found.version and found.hint):
            return found
        return dataclasses.replace(
            found, hint="engines can be built here, and run on a machine with an NVIDIA GPU and driver"
        )

    def check_device(self, path: Path, record: EngineRecord, device: _cuda.Device) -> None:
        """As the data centre's; an engine for the builder's default list is for that list, and for GPUs still to come.

        Others, such as SM 90 (H100), TensorRT-RTX does not know; it would refuse to deserialise the engine.
        """
        super().check_device(path, record, device)
        targets = read_header(path).sm
        if targets and device.sm not in targets and device.sm < max(targets):
            raise UnavailableError(
                f"{path} is for SM {', '.join(map(str, targets))}; {device.name} is SM {device.sm}, "
                f"which is not among what {self.module} {record.version} built it for.",
                hint="Use another runtime there: tensorrt, ort_cuda.",
            )

    def check_header(self, path: Path) -> None:
        """Checks magic and size; raises IntegrityError."""
        try:
            read_header(path)
        except ValueError as err:
            raise IntegrityError(str(err), hint="Build the engine again.") from err


RUNTIME = TensorRTRTX()
