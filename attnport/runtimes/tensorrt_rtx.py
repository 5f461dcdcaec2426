"""TensorRT-RTX engines, which are built without a GPU and compiled on the device that runs them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

from attnport.artifacts import Capabilities, Session
from attnport.errors import ArtifactError, BundleError, IntegrityError, UnavailableError
from attnport.runtimes import _cuda
from attnport.runtimes.base import Opening
from attnport.runtimes.tensorrt import TensorRT
from attnport_bundle.engine_header import read_header


class TensorRTRTX(TensorRT):
    """TensorRT-RTX, whose engines run on several GPU generations."""

    name: ClassVar[str] = "tensorrt_rtx"
    form: ClassVar[str] = "tensorrt_rtx"
    module: ClassVar[str] = "tensorrt_rtx"
    keeps: ClassVar[bool] = True

    def probe(self) -> Capabilities:
        """As for TensorRT; if only the GPU is missing, the hint says that engines can still be built."""
        capabilities = super().probe()
        if capabilities.available or not (capabilities.version and capabilities.hint):
            return capabilities
        return dataclasses.replace(
            capabilities, hint="engines can be built here, and run on a machine with an NVIDIA GPU and driver"
        )

    def open(self, opening: Opening) -> Session:
        """As for TensorRT. An engine for the builder's default list is also tried on GPUs that the list does not name.

        Raises:
            UnavailableError: as for TensorRT; or TensorRT-RTX refused the engine on such a GPU, such as SM 90 (H100).
        """
        try:
            return super().open(opening)
        except (ArtifactError, BundleError) as err:
            if err.exit_code != ArtifactError.exit_code:  # the message already names a wrong device or header
                raise
            try:
                targets, device = read_header(opening.model or Path()).sm, _cuda.Device()
            except (OSError, ValueError):  # the file is at fault
                raise err from None
            if not targets or device.sm in targets:
                raise
            raise UnavailableError(
                f"{opening.model} is for SM {', '.join(map(str, targets))}; on {device.name}, which is SM {device.sm}, "
                f"{self.module} refuses it: {err.message}",
                hint="Use another runtime there: tensorrt, ort_cuda.",
            ) from err

    def check_header(self, path: Path) -> None:
        """Checks magic and size; raises IntegrityError."""
        try:
            read_header(path)
        except ValueError as err:
            raise IntegrityError(str(err), hint="Build the engine again.") from err


RUNTIME = TensorRTRTX()
