"""A TensorRT engine on a device: profiles, device memory, one execution context a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnport.artifacts import EngineRecord, IOContract, Ran
from attnport.errors import ArtifactError, FeedError, UnavailableError
from attnport.runtimes import _cuda
from attnport.runtimes._session import Array, CheckedSession, check_names, refused

Range = tuple[tuple[int, ...], tuple[int, ...]]
_NUMPY = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}


class EngineSession(CheckedSession):
    """A deserialised engine with one execution context for each optimization profile in use."""

    def __init__(
        self, module: str, trt: Any, device: _cuda.Device, path: Path, io: IOContract, record: EngineRecord
    ) -> None:
        super().__init__(io, Ran(f"{device.name} (SM {device.sm})", f"{module} {trt.__version__}", record.plan))
        self._trt, self._device = trt, device
        self._complaints: list[str] = []
        self._logger = _logger(trt, self._complaints)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise ArtifactError(f"{path}: {module} cannot deserialise it on {device.name}: {self._complaint()}")
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self._inputs = [name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self._outputs = [name for name in names if name not in self._inputs]
        check_names(io, self._inputs, self._outputs, str(path))
        for spec in (*io.inputs, *io.outputs):
            got = self._dtype(spec.name)
            # A plan is a matter of the engine: where the contract says float32, a half-precision engine says float16.
            if got != spec.dtype and not ("float" in got and "float" in spec.dtype):
                raise ArtifactError(f"{path}: tensor {spec.name!r} is {got}; the contract says {spec.dtype}.")
        self._profiles: list[dict[str, Range]] = []
        for index in range(self._engine.num_optimization_profiles):
            shapes = {name: self._engine.get_tensor_profile_shape(name, index) for name in self._inputs}
            self._profiles.append({name: (tuple(low), tuple(high)) for name, (low, _, high) in shapes.items()})
        self._contexts: dict[int, Any] = {}
        self._buffers: dict[str, tuple[int, int]] = {}

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        import numpy as np

        profile = choose_profile(self._profiles, {name: feeds[name].shape for name in self._inputs})
        self._device.bind()
        context = self._context(profile)
        held = {
            name: np.ascontiguousarray(feeds[name], _numpy_dtype(self._dtype(name))).reshape(feeds[name].shape)
            for name in self._inputs
        }
        with refused(self.ran.provider, feeds):
            for name, array in held.items():
                if not context.set_input_shape(name, array.shape):
                    raise FeedError(f"input {name!r}: TensorRT refuses shape {list(array.shape)}: {self._complaint()}")
                address = self._buffer(name, array.nbytes)
                self._device.upload(address, array)
                context.set_tensor_address(name, address)
            if missing := context.infer_shapes():
                raise ArtifactError(f"the engine leaves the shape of {', '.join(missing)} open.")
            outputs = {}
            for name in self._outputs:
                outputs[name] = np.empty(tuple(context.get_tensor_shape(name)), _numpy_dtype(self._dtype(name)))
                context.set_tensor_address(name, self._buffer(name, outputs[name].nbytes))
            if not context.execute_async_v3(self._device.stream):
                raise FeedError(f"{self.ran.provider} did not run: {self._complaint()}")
            for name, array in outputs.items():
                self._device.download(array, self._buffers[name][0])
            self._device.synchronize()
        return outputs

    def _context(self, profile: int) -> Any:
        if profile not in self._contexts:
            context = self._engine.create_execution_context()
            if context is None or not context.set_optimization_profile_async(profile, self._device.stream):
                raise UnavailableError(f"TensorRT makes no context for profile {profile}: {self._complaint()}")
            self._device.synchronize()
            self._contexts[profile] = context
        return self._contexts[profile]

    def _buffer(self, name: str, size_bytes: int) -> int:
        """Device memory for a tensor; kept, and made anew when it has to grow."""
        address, held = self._buffers.get(name, (0, -1))
        if held < size_bytes:
            if held >= 0:
                self._device.free(self._buffers.pop(name)[0])
            address = self._device.allocate(size_bytes)
            self._buffers[name] = (address, size_bytes)
        return address

    def _dtype(self, name: str) -> str:
        kind = str(self._engine.get_tensor_dtype(name).name)
        return _NUMPY.get(kind, kind)

    def _complaint(self) -> str:
        return self._complaints[-1] if self._complaints else "it gives no reason."

    def _free(self) -> None:
        self._device.bind()
        self._device.synchronize()
        for address, _ in self._buffers.values():
            self._device.free(address)
        # Contexts before their engine, the engine before its runtime: TensorRT's order of destruction.
        self._contexts.clear()
        self._engine = None
        self._runtime = None
        self._device.close()


def choose_profile(profiles: Sequence[Mapping[str, Range]], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The profile that admits every shape; of several the one that ends soonest, as it was tuned closest.

    Raises:
        FeedError: none does; names a tensor, its shape and the ranges.
    """

    def admits(ranges: Range, shape: tuple[int, ...]) -> bool:
        low, high = ranges
        return len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))

    fitting = [
        (sum(sum(ranges[name][1]) for name in shapes), index)
        for index, ranges in enumerate(profiles)
        if all(admits(ranges[name], shape) for name, shape in shapes.items())
    ]
    if fitting:
        return min(fitting)[1]

    def missed(name: str) -> int:
        return sum(not admits(ranges[name], shapes[name]) for ranges in profiles)

    worst = max(shapes, key=missed)
    spans = "; ".join(f"{list(ranges[worst][0])} to {list(ranges[worst][1])}" for ranges in profiles)
    raise FeedError(
        f"input {worst!r}: got shape {list(shapes[worst])}; the engine's profiles take {spans or 'nothing'}.",
        hint="Build an engine with a profile that covers it.",
    )


def _numpy_dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _logger(trt: Any, complaints: list[str]) -> Any:
    """A TensorRT logger that keeps errors for our messages and prints nothing."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                complaints.append(message)

    return Log()
