"""TensorRT engines on an NVIDIA GPU. The same code serves TensorRT and TensorRT-RTX, which share one API.

An engine is deserialised only after its digest, the installed version, its header and the device have been checked. It
runs in the bundle reader's session, with this package's checks. A call is timed by events on the device, also as a CUDA
graph, which is captured only after the context has run at these shapes, as TensorRT requires. Source: TensorRT
developer guide, "CUDA graphs"; CUDA Driver API, stream capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from attnport.artifacts import AUTO, CASTS, PLANS, EngineRecord, IOContract, Ran, Session
from attnport.errors import ArtifactError, IntegrityError, RuntimeMissing, UnavailableError, UsageError
from attnport.jsonfile import digest_file, digest_text
from attnport.runtimes import _cuda
from attnport.runtimes.base import GRAPH, Array, DeviceTimed, Opening, Runtime, check_names, refused
from attnport_bundle.feeds import BFLOAT16, storage
from attnport_bundle.runtimes.cuda import driver_release, needed
from attnport_bundle.runtimes.kernels import Cache, RuntimeCache
from attnport_bundle.runtimes.tensorrt import EngineSession as ReaderSession


class TensorRT(Runtime):
    """TensorRT, whose engines run on the kind of GPU that they were built on."""

    name = "tensorrt"
    opens = "engine"
    package = "tensorrt"
    form = "tensorrt"
    gpu = True
    distributions: ClassVar[tuple[str, ...]] = ("tensorrt", "tensorrt-cu*", "nvidia-*")

    def libraries(self) -> dict[str, str]:
        """The libraries that the installed bindings need."""
        folders = (f"{self.package}_bindings", self.package)
        bindings = next(filter(None, (_cuda.beside(name, f"{self.package}*.so") for name in folders)), None)
        if bindings is None:
            return {}
        with contextlib.suppress(UnavailableError):
            self.module()  # loads the libraries in its wheel
        return {name: _cuda.path_of(name) for name in needed(bindings)}

    def able(self) -> dict[str, Any]:
        """Runs engines on the first GPU."""
        device = _cuda.Device()
        plans = (*CASTS, AUTO, *(name for name, plan in PLANS.items() if plan.weights))
        return {"devices": (f"{device.name} (SM {device.sm})",), "plans": plans}

    def session(self, opening: Opening) -> Session:
        """Checks the engine against its record, then deserialises it."""
        record, path = opening.engine, opening.model
        assert path is not None
        if record is None:
            raise UsageError(f"{self.name} opens an engine and its record; got no record.")
        if opening.plan != record.plan:
            raise UnavailableError(
                f"{path} computes in {record.plan}; {opening.plan} was asked for.",
                hint=f"Build it with: attnport build FOLDER --target {self.name} --precision {opening.plan}",
            )
        check_engine_file(path, record)
        trt = self.module()
        if str(trt.__version__) != record.version:
            raise IntegrityError(
                f"{path} was built by {self.package} {record.version}; installed is {trt.__version__}.",
                hint=f"Build it again, or install {self.package} {record.version}.",
            )
        self.check_header(path)
        device = _cuda.Device()
        if record.sm and device.sm not in record.sm:
            raise UnavailableError(
                f"{path} was built for SM {', '.join(map(str, record.sm))}; {device.name} is SM {device.sm}.",
                hint=f"Build it again with --sm {device.sm}.",
            )
        device.open()
        try:
            cache = None if opening.cache is None or not self.keeps else _kept(opening.cache, device, record)
            return EngineSession(self.package, trt, device, path, opening.io, record, cache)
        except BaseException:
            device.close()
            raise

    def check_header(self, path: Path) -> None:
        """Checks the engine's header, if its layout is known; that of TensorRT is not."""


def _kept(folder: Path, device: _cuda.Device, record: EngineRecord) -> RuntimeCache:
    """The cache entry for what this release compiled from this engine for this device and driver."""
    entry = digest_text(record.digest, record.version, device.uuid, driver_release())
    return RuntimeCache(Cache(folder), entry)


def check_engine_file(path: Path, record: EngineRecord) -> None:
    """Compares an engine's size and digest with its record.

    Raises:
        ArtifactError: there is no such file.
        IntegrityError: the file is not the one that was written.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} is missing.", hint="Build the engine again.")
    size, digest = path.stat().st_size, digest_file(path)
    if (size, digest) != (record.size_bytes, record.digest):
        raise IntegrityError(
            f"{path} is not the engine of its record: got {size} bytes, SHA-256 {digest[:12]}; "
            f"expected {record.size_bytes} bytes, {record.digest[:12]}.",
            hint="It was changed or cut short; build it again.",
        )


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
        self._session = _TimedSession(trt, device, path.read_bytes(), str(path), cache)
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


class _TimedSession(ReaderSession):
    """The reader's session, with calls that return the time of each part on the device."""

    _device: _cuda.Device
    _graph: tuple[Any, int] | None = None

    def run_timed(self, feeds: Mapping[str, Array], mode: str) -> dict[str, int]:
        """Times one call; its outputs are copied back and dropped.

        Args:
            feeds: Arrays in the engine's own dtypes, as `run` takes them.
            mode: `stream`, as `run` does it, or `graph`: the same as one captured CUDA graph.

        Returns:
            ns by part of `DEVICE_PARTS`, from events on the stream.

        Raises:
            FeedError, BundleError, RuntimeMissing: as `run`; or the call cannot be captured as a graph.
        """
        with self._lock, self._device.current():
            return self._timed(feeds, mode)

    def close(self) -> None:
        """As the reader's, after freeing the graph."""
        with self._lock:
            if self._runtime is not None:
                with self._device.current():
                    self._drop_graph()
        super().close()

    def _configured(self) -> tuple[Any, Any]:
        """As the reader's, but a call waits for the kernels made for its shapes, and is captured by `run_timed` alone.

        By default, TensorRT-RTX compiles them in the background and uses others meanwhile: the wrong kernels would be
        timed, and captured in a graph.
        """
        config, compiled = super()._configured()
        strategies = getattr(self._module, "DynamicShapesKernelSpecializationStrategy", None)
        if config is not None and strategies is not None:
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
        if config is not None and (graphs := getattr(self._module, "CudaGraphStrategy", None)) is not None:
            config.cuda_graph_strategy = graphs.DISABLED
        return config, compiled

    def _timed(self, feeds: Mapping[str, Array], mode: str) -> dict[str, int]:
        context, _ = self._context_for(feeds)
        uploads = {
            port.name: np.ascontiguousarray(feeds[port.name], storage(port.dtype)).reshape(feeds[port.name].shape)
            for port in self.inputs
        }
        for name, array in uploads.items():
            self._bind_input(context, name, array.shape, self._buffer(name, array.nbytes))
        outputs = {port.name: np.empty(shape, storage(port.dtype)) for port, shape in self._output_shapes(context)}
        for name, array in outputs.items():
            context.set_tensor_address(name, self._buffer(name, array.nbytes))
        run = self._execution(context, tuple(sorted((name, array.shape) for name, array in uploads.items())), mode)
        return _cuda.timed(self._device, self._buffers, uploads, run, outputs)

    def _execution(self, context: Any, shapes: tuple[Any, ...], mode: str) -> Any:
        """A function that computes: with the context, or with a graph captured for these shapes and addresses."""
        execute = partial(self._execute, context)
        if mode != GRAPH:
            return execute
        key = (shapes, tuple(sorted((name, address) for name, (address, _) in self._buffers.items())))
        if self._graph is None or self._graph[0] != key:
            self._drop_graph()
            execute()
            self._device.synchronize()
            # A TensorRT-RTX engine may allocate memory during a call of large sizes, which cannot be captured.
            capturable = getattr(context, "is_stream_capturable", None)
            if capturable is not None and not capturable(self._device.stream):
                raise RuntimeMissing(f"{self.provider} cannot be captured as a CUDA graph at these shapes.")
            self._graph = key, self._device.captured(execute)
        graph = self._graph[1]
        return lambda: self._device.launch(graph)

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._device.drop_graph(self._graph[1])
            self._graph = None


RUNTIME = TensorRT()
