"""TensorRT-RTX engines, which are built without a GPU and compiled on the device that runs them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

from attnport.artifacts import Capabilities
from attnport.bundling.python.engine_header import read_header
from attnport.errors import IntegrityError
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

    def check_header(self, path: Path) -> None:
        """Checks magic and size; raises IntegrityError."""
        try:
            read_header(path)
        except ValueError as err:
            raise IntegrityError(str(err), hint="Build the engine again.") from err


RUNTIME = TensorRTRTX()
