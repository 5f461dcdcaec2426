"""A TensorRT engine on a device: the bundle reader's session, with this package's checks and errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnport.artifacts import EngineRecord, IOContract, Ran
from attnport.bundling.python.engine_session import EngineSession as ReaderSession
from attnport.bundling.python.halves import BFLOAT16, storage
from attnport.errors import ArtifactError
from attnport.runtimes import _cuda
from attnport.runtimes._reader import own_errors
from attnport.runtimes._session import Array, CheckedSession, check_names, refused


class EngineSession(CheckedSession):
    """A deserialised engine with one execution context for each optimization profile in use."""

    def __init__(
        self, module: str, trt: Any, device: _cuda.Device, path: Path, io: IOContract, record: EngineRecord
    ) -> None:
        super().__init__(io, Ran(f"{device.name} (SM {device.sm})", f"{module} {trt.__version__}", record.plan))
        with own_errors():
            self._session = ReaderSession(trt, device, path.read_bytes(), str(path))
        ports = {port.name: port.dtype for port in (*self._session.inputs, *self._session.outputs)}
        check_names(
            io, [port.name for port in self._session.inputs], [port.name for port in self._session.outputs], str(path)
        )
        for spec in (*io.inputs, *io.outputs):
            got = ports[spec.name]
            # A plan is a matter of the engine: where the contract says float32, a half-precision engine says float16.
            if got != spec.dtype and not ("float" in got and "float" in spec.dtype):
                raise ArtifactError(f"{path}: tensor {spec.name!r} is {got}; the contract says {spec.dtype}.")
        self._dtypes = ports

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        given = {port.name: _stored(feeds[port.name], port.dtype) for port in self._session.inputs}
        with refused(self.ran.provider, feeds), own_errors():
            found = self._session.run(given)
        return {name: array.view(_dtype(self._dtypes[name])) for name, array in found.items()}

    def _free(self) -> None:
        self._session.close()


def _stored(array: Array, dtype: str) -> Array:
    """An array in the engine's dtype, as the session takes it."""
    return array.astype(_dtype(dtype), copy=False).view(storage(dtype))


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16 if name == BFLOAT16 else name)
