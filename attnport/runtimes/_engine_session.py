"""A TensorRT engine on a device: the bundle reader's session, with this package's checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnport.artifacts import EngineRecord, IOContract, Ran
from attnport.errors import ArtifactError
from attnport.runtimes import _cuda
from attnport.runtimes._device_timing import DeviceTimed
from attnport.runtimes._engine_timing import TimedSession
from attnport.runtimes._session import Array, check_names, refused
from attnport_bundle.feeds import BFLOAT16, storage
from attnport_bundle.runtimes.kernels import RuntimeCache


class EngineSession(DeviceTimed):
    """A deserialised engine with one execution context for each optimization profile in use."""

    def __init__(
        self,
        module: str,
        trt: Any,
        device: _cuda.Device,
        path: Path,
        io: IOContract,
        record: EngineRecord,
        cache: RuntimeCache | None = None,
    ) -> None:
        """`cache` keeps what TensorRT-RTX compiles on the device, at the latest by `close`; None = it is not kept."""
        super().__init__(io, Ran(f"{device.name} (SM {device.sm})", f"{module} {trt.__version__}", record.plan))
        self._session = TimedSession(trt, device, path.read_bytes(), str(path), cache)
        ports = {port.name: port.dtype for port in (*self._session.inputs, *self._session.outputs)}
        check_names(
            io, [port.name for port in self._session.inputs], [port.name for port in self._session.outputs], str(path)
        )
        for spec in (*io.inputs, *io.outputs):
            got = ports[spec.name]
            # The contract is the same for every plan: an engine in half precision has float16 where it says float32.
            if got != spec.dtype and not ("float" in got and "float" in spec.dtype):
                raise ArtifactError(f"{path}: tensor {spec.name!r} is {got}; the contract says {spec.dtype}.")
        self._dtypes = ports

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused(self.ran.provider, feeds):
            outputs = self._session.run(self._in_own_types(feeds))
        return {name: array.view(_dtype(self._dtypes[name])) for name, array in outputs.items()}

    def _timed(self, feeds: Mapping[str, Array], mode: str) -> Mapping[str, int]:
        return self._session.run_timed(feeds, mode)

    def _in_own_types(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {port.name: _stored(feeds[port.name], port.dtype) for port in self._session.inputs}

    def _free(self) -> None:
        self._session.close()


def _stored(array: Array, dtype: str) -> Array:
    """An array in the engine's dtype, as the session takes it."""
    return array.astype(_dtype(dtype), copy=False).view(storage(dtype))


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16 if name == BFLOAT16 else name)
