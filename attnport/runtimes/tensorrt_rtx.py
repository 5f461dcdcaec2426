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

    def open(self, opening: Opening) -> Session:
        """As the data centre's. An engine for the builder's default list is tried on GPUs that this does not name, too.

        Raises:
            UnavailableError: as there; or TensorRT-RTX refused it on such a GPU, SM 90 (H100) for one.
        """
        try:
            return super().open(opening)
        except (ArtifactError, BundleError) as err:
            if err.exit_code != ArtifactError.exit_code:  # a device or a header that is wrong says so itself
                raise
            try:
                targets, device = read_header(opening.model or Path()).sm, _cuda.Device()
            except (OSError, ValueError):  # then it is the file that is wrong
                raise err from None
            if not targets or device.sm in targets:
                raise
            raise UnavailableError(
                f"{opening.model} is for SM {', '.join(map(str, targets))}; on {device.name}, which is SM {device.sm}, "
                f"{self.module} does not take it: {err.message}",
                hint="Use another runtime there: tensorrt, ort_cuda.",
            ) from err

    def check_header(self, path: Path) -> None:
        """Checks magic and size; raises IntegrityError."""
        try:
            read_header(path)
        except ValueError as err:
            raise IntegrityError(str(err), hint="Build the engine again.") from err


RUNTIME = TensorRTRTX()
