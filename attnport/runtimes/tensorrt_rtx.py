"""TensorRT-RTX engines, which are built without a GPU and compiled on the device that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from attnport.runtimes.tensorrt import TensorRT, check_rtx_header


class TensorRTRTX(TensorRT):
    """The RTX flavour: engines for several GPU generations at once."""

    name: ClassVar[str] = "tensorrt_rtx"
    form: ClassVar[str] = "tensorrt_rtx"
    module: ClassVar[str] = "tensorrt_rtx"

    def check_header(self, path: Path) -> None:
        """Checks magic and size; raises IntegrityError."""
        check_rtx_header(path)


RUNTIME = TensorRTRTX()
