"""Reads the header of a serialized TensorRT-RTX engine with the bundle's reader, and raises this package's errors."""

from __future__ import annotations

from pathlib import Path

from attnport.errors import ArtifactError
from attnport_bundle.runtimes import tensorrt
from attnport_bundle.runtimes.tensorrt import EngineHeader

__all__ = ["EngineHeader", "read_header"]


def read_header(path: Path) -> EngineHeader:
    """Reads and checks the header of a TensorRT-RTX engine.

    Raises:
        ArtifactError: the file cannot be read, or is no TensorRT-RTX engine.
        IntegrityError: it is cut short or has bytes after its end.
    """
    try:
        return tensorrt.read_header(path)
    except OSError as err:
        raise ArtifactError(f"{path} cannot be read: {err.strerror}.") from err
    except ValueError as err:
        raise ArtifactError(str(err), hint="Build one with: attnport build FOLDER --target tensorrt_rtx") from err
