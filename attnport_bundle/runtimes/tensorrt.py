"""A TensorRT engine on a device: header, profiles, device memory, an execution context for each profile.

It works with TensorRT and TensorRT-RTX, which share one API. Arrays go in and come out in the engine's own dtypes,
bfloat16 as uint16. Digest, version, header and device are compared before an engine is given to the runtime.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import struct
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BundleError, FeedError, IntegrityError, RuntimeMissing, escaped
from ..feeds import BFLOAT16, described, device_of, from_file, storage, to_file
from ..format.decoder import Roles
from ..format.files import read_regular
from ..format.manifest import Manifest, shown_name
from . import Machine, Port, Range, Session, cuda
from .dlpack import DeviceTensor, borrow
from .kernels import Cache, RuntimeCache

if TYPE_CHECKING:
    import numpy as np

    from ..decoding.caches import Steps

    Arrays = dict[str, np.ndarray[Any, Any]]

_SCRATCH = ""
_DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": BFLOAT16}
"""Those that TensorRT names otherwise."""


class EngineSession(Session):
    """A deserialised engine; the attributes are `runtimes.Session`'s. Calls from several threads take turns."""

    def __init__(
        self, module: Any, device: cuda.Device, data: bytes, where: str, cache: RuntimeCache | None = None
    ) -> None:
        """Deserialises an engine; `device` is open, and is closed with the session.

        Args:
            where: The name of the engine in messages.
            cache: Keeps what TensorRT-RTX compiles on the device; None = it is not kept.

        Raises:
            BundleError: TensorRT refuses the engine.
        """
        self._module, self._device, self._cache = module, device, cache
        self._complaints: list[str] = []
        self._lock = threading.Lock()
        self._logger = logger(module, self._complaints)
        self._runtime = module.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(data)
        name = str(module.__name__)
        if self._engine is None:
            raise BundleError(f"{where}: {name} cannot deserialise it on {device.name}: {self._complaint()}")
        self.provider, self.version = f"{name} {module.__version__}", str(module.__version__)
        self.machine = cuda.gpu(device)
        ports = [self._port(self._engine.get_tensor_name(index)) for index in range(self._engine.num_io_tensors)]
        is_inputs = [self._engine.get_tensor_mode(port.name) == module.TensorIOMode.INPUT for port in ports]
        self.inputs = tuple(port for port, is_input in zip(ports, is_inputs, strict=True) if is_input)
        self.outputs = tuple(port for port, is_input in zip(ports, is_inputs, strict=True) if not is_input)
        self.profiles: list[dict[str, Range]] = []
        for index in range(self._engine.num_optimization_profiles):
            shapes = {port.name: self._engine.get_tensor_profile_shape(port.name, index) for port in self.inputs}
            self.profiles.append({name: (tuple(low), tuple(high)) for name, (low, _, high) in shapes.items()})
        self._contexts: dict[int, Any] = {}
        self._buffers: dict[str, tuple[int, int]] = {}  # by tensor; `_SCRATCH` is what the contexts share
        self._lent = 0  # outputs that others hold
        self._config, self._compiled = self._configured()
        self.keeps = self._compiled is not None
        self.keeps_caches = True

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Every output by name.

        Raises:
            FeedError: no profile admits the shapes.
            BundleError: TensorRT refuses shapes that a profile admits, or cannot execute the engine.
            RuntimeMissing: device memory or an execution context cannot be allocated.
        """
        return self._computed(feeds, ())

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`; tensors on the GPU are read where they are, and outputs stay there, in memory of their own.

        Raises:
            FeedError: as `run`; or a tensor is on another device, is not contiguous or carries gradients.
        """
        return self._computed(feeds, [port.name for port in self.outputs])

    def new_steps(self, roles: Roles) -> Steps | None:
        """Caches that stay on the GPU, of a model whose outputs are whole caches; see `decoding.caches.Carried`."""
        from ..decoding.caches import Carried

        return Carried(self._step, self._read, roles) if roles.returns_whole_cache else None

    def _step(
        self, feeds: Mapping[str, Any], held: Mapping[str, tuple[str, Any]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        import numpy as np

        dtypes = {port.name: port.dtype for port in (*self.inputs, *self.outputs)}
        given = {
            name: to_file(value, dtypes[name]) if isinstance(value, np.ndarray) else value
            for name, value in (*feeds.items(), *((name, value) for name, (_, value) in held.items()))
        }
        of_caches = {output: name for name, (output, _) in held.items()}
        found = self._computed(given, of_caches)
        outputs = {name: _readable(array, dtypes[name]) for name, array in found.items() if name not in of_caches}
        return outputs, {name: found[output] for output, name in of_caches.items()}

    def _read(self, tensor: DeviceTensor) -> np.ndarray[Any, Any]:
        import numpy as np

        array = np.empty(tensor.shape, storage(tensor.dtype))
        with self._lock, self._device.current():
            self._device.download(array, tensor.address)
            self._device.synchronize()
        return _readable(array, tensor.dtype)

    def _computed(self, feeds: Mapping[str, Any], staying: Collection[str]) -> dict[str, Any]:
        """As `run_device`, for arrays too; the outputs that are not named come to the host."""
        import numpy as np

        with self._lock, self._device.current():
            context, is_new = self._context_for(feeds)
            kept: list[Any] = []
            for port in self.inputs:
                value = feeds[port.name]
                if isinstance(value, np.ndarray):
                    array = np.ascontiguousarray(value, storage(port.dtype)).reshape(value.shape)
                    address = self._buffer(port.name, array.nbytes)
                    self._device.upload(address, array)
                    kept.append(array)
                else:
                    if number := device_of(port.name, value, "cuda"):
                        raise FeedError(f"input {port.name!r}: got a tensor on GPU {number}; the engine runs on GPU 0.")
                    address, holder = borrow(port.name, value, self._device.stream)
                    kept.append(holder)
                self._bind_input(context, port.name, described(port.name, value).shape, address)
            outputs: dict[str, Any] = {}
            for port, shape in self._output_shapes(context):
                if port.name in staying:
                    address = self._device.allocate(math.prod(shape) * np.dtype(storage(port.dtype)).itemsize)
                    self._lent += 1
                    outputs[port.name] = DeviceTensor(address, shape, port.dtype, partial(self._returned, address))
                else:
                    outputs[port.name] = array = np.empty(shape, storage(port.dtype))
                    address = self._buffer(port.name, array.nbytes)
                context.set_tensor_address(port.name, address)
            self._execute(context)
            for name in outputs.keys() - set(staying):
                self._device.download(outputs[name], self._buffers[name][0])
            self._device.synchronize()
            if is_new:
                self._keep()
            return outputs

    def _execute(self, context: Any) -> None:
        if not context.execute_async_v3(self._device.stream):
            raise BundleError(f"{self.provider} did not run: {self._complaint()}")

    def _returned(self, address: int) -> None:
        """Frees an output that nobody holds any more; the last one closes the device of a closed session."""
        self._lent -= 1
        with contextlib.suppress(RuntimeMissing):  # a context that is lost has taken its memory with it
            with self._device.current():
                self._device.free(address)
            if self._runtime is None and not self._lent:
                self._device.close()

    def _context_for(self, feeds: Mapping[str, Any]) -> tuple[Any, bool]:
        """A context for the shapes of a call, and whether it is new. The device has to be current in this thread."""
        shapes = {port.name: described(port.name, feeds[port.name]).shape for port in self.inputs}
        return self._context(choose_profile(self.profiles, shapes))

    def _bind_input(self, context: Any, name: str, shape: tuple[int, ...], address: int) -> None:
        if not context.set_input_shape(name, shape):
            raise BundleError(f"input {name!r}: TensorRT refuses shape {list(shape)}: {self._complaint()}")
        context.set_tensor_address(name, address)

    def _output_shapes(self, context: Any) -> list[tuple[Port, tuple[int, ...]]]:
        if missing := context.infer_shapes():
            raise BundleError(f"the engine does not determine the shape of {', '.join(map(shown_name, missing))}.")
        return [(port, tuple(context.get_tensor_shape(port.name))) for port in self.outputs]

    def close(self) -> None:
        """Frees memory, contexts and engine, and closes the device; closing twice is fine."""
        with self._lock:
            if self._runtime is None:
                return
            with self._device.current():
                self._device.synchronize()
                self._keep()
                for address, _ in self._buffers.values():
                    self._device.free(address)
                self._buffers.clear()
                # Contexts before their engine, the engine before its runtime: TensorRT's order of destruction.
                self._contexts.clear()
                self._compiled = self._config = None
                self._engine = None
                self._runtime = None
            if not self._lent:
                self._device.close()

    def __del__(self) -> None:
        """Closes a session that nobody closed. Errors are ignored: `__init__` may have failed, the driver be gone."""
        with contextlib.suppress(Exception):
            self.close()

    def _configured(self) -> tuple[Any, Any]:
        """The configuration of contexts, None where a release has none; and its cache of compiled kernels, or None.

        TensorRT-RTX captures a call as a CUDA graph by itself, where it can, and launches that the next time.
        """
        if not hasattr(self._engine, "create_runtime_config"):
            return None, None
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(self._user_managed())
        graphs = getattr(self._module, "CudaGraphStrategy", None)
        if graphs is not None:
            config.cuda_graph_strategy = graphs.WHOLE_GRAPH_CAPTURE
        if self._cache is None:
            return config, None
        compiled = config.create_runtime_cache()
        blob = self._cache.read()
        # TensorRT-RTX refuses a blob of another device or version, and then compiles as without one.
        if blob is not None:
            compiled.deserialize(blob)
        config.set_runtime_cache(compiled)
        return config, compiled

    def _user_managed(self) -> Any:
        return self._module.ExecutionContextAllocationStrategy.USER_MANAGED

    def _keep(self) -> None:
        if self._cache is not None and self._compiled is not None:
            self._cache.write(bytes(memoryview(self._compiled.serialize())))

    def _context(self, profile: int) -> tuple[Any, bool]:
        """The context of a profile, and whether this call created it.

        Calls take turns, so that all contexts have one memory, enough for the largest profile: a context with memory of
        its own would take as much for each profile.
        """
        if profile in self._contexts:
            return self._contexts[profile], False
        make: Callable[..., Any] = self._engine.create_execution_context
        context = make(self._user_managed()) if self._config is None else make(self._config)
        if context is not None and (size_bytes := int(self._engine.device_memory_size_v2)):
            context.set_device_memory(self._buffer(_SCRATCH, size_bytes), size_bytes)
        if context is None or not context.set_optimization_profile_async(profile, self._device.stream):
            raise RuntimeMissing(f"TensorRT makes no context for profile {profile}: {self._complaint()}")
        self._device.synchronize()
        self._contexts[profile] = context
        return context, True

    def _buffer(self, name: str, size_bytes: int) -> int:
        """The address of device memory for a tensor; kept between calls, and replaced when it has to grow."""
        address, held_bytes = self._buffers.get(name, (0, -1))
        if held_bytes < size_bytes:
            if held_bytes >= 0:
                self._device.free(self._buffers.pop(name)[0])
            address = self._device.allocate(size_bytes)
            self._buffers[name] = (address, size_bytes)
        return address

    def _port(self, name: str) -> Port:
        kind = str(self._engine.get_tensor_dtype(name).name)
        shape = tuple(int(size) if size >= 0 else None for size in self._engine.get_tensor_shape(name))
        return Port(name, _DTYPES.get(kind, kind.lower()), shape)

    def _complaint(self) -> str:
        return escaped(self._complaints[-1]) if self._complaints else "it gives no reason."


def _readable(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """An array of the engine, of bfloat16 as float32."""
    return from_file(array, dtype, "float32") if dtype == BFLOAT16 else array


def open_engine(module: Any, path: Path, manifest: Manifest, name: str, cache: Cache | None) -> EngineSession:
    """Opens the engine of the form `name`, as `runtimes.open_session` says; `module` is TensorRT or TensorRT-RTX."""
    form = manifest.forms[name]
    device = cuda.Device()
    known = not form.requires.sm or device.sm in form.requires.sm
    targets = ", ".join(map(str, form.requires.sm))
    if not known and not (form.runtime == "tensorrt_rtx" and read_header(path).later):
        raise RuntimeMissing(f"the engine was built for SM {targets}; {device.name} is SM {device.sm}.")
    runtime_cache = None
    if cache is not None and form.runtime == "tensorrt_rtx":
        runtime_cache = RuntimeCache(cache, entry(manifest, name, str(module.__version__), cuda.gpu(device)))
    device.open()
    try:
        # An engine is code for a device, so it is compared even if all files were; it is not read again.
        data = read_regular(path)
        if hashlib.sha256(data).hexdigest() != manifest.files[form.file].sha256:
            raise IntegrityError(f"{path}: changed: its SHA-256 is not that of the manifest.")
        try:
            return EngineSession(module, device, data, str(path), runtime_cache)
        except BundleError as err:
            if known:
                raise
            # Whether a device that is not named is one of those still to come, TensorRT-RTX alone knows.
            raise RuntimeMissing(f"the engine is for SM {targets}; it is SM {device.sm} here: {err.message}") from err
    except BaseException:
        device.close()
        raise


def entry(manifest: Manifest, form: str, version: str, machine: Machine) -> str:
    """The name of the entry for one form, on one release of its runtime and one device with one driver.

    The name depends on the whole manifest, which holds the digest of every file. A changed model, golden or bound
    therefore has another entry.
    """
    identity = [dataclasses.asdict(manifest), form, version, dataclasses.asdict(machine)]
    return hashlib.sha256(json.dumps(identity, sort_keys=True, allow_nan=False).encode()).hexdigest()


def choose_profile(profiles: Sequence[Mapping[str, Range]], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The profile that admits every shape; of several the one with the smallest upper ends, as it was tuned closest.

    Raises:
        FeedError: no profile admits them; names a tensor, its shape and the ranges.
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
    worst = max(shapes, key=lambda name: sum(not admits(ranges[name], shapes[name]) for ranges in profiles))
    spans = "; ".join(f"{list(ranges[worst][0])} to {list(ranges[worst][1])}" for ranges in profiles)
    raise FeedError(
        f"input {worst!r}: got shape {list(shapes[worst])}; the engine's profiles take {spans or 'nothing'}. "
        "Build an engine with a profile that covers it."
    )


def logger(module: Any, complaints: list[str]) -> Any:
    """A TensorRT logger that appends errors to `complaints` and prints nothing."""

    class Log(module.ILogger):  # type: ignore[misc]  # the base is only known once TensorRT is imported
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (module.ILogger.INTERNAL_ERROR, module.ILogger.ERROR):
                complaints.append(message)

    return Log()


MAGIC = b"vtrt"
HEADER_BYTES = 36
TARGET_BITS = {1 << 0: 75, 1 << 1: 80, 1 << 2: 86, 1 << 3: 89, 1 << 4: 120, 1 << 5: 121}
"""Compute capability by bit."""
_LATER = 1 << 6
"""Set in an engine for the builder's default list: devices still to come."""
_AGAIN = "Build it again."


class EngineHeader(NamedTuple):
    """What the header says.

    Attributes:
        version: The TensorRT-RTX version that built it, such as `1.7.1.116`.
        sm: The compute capabilities it runs on (`86` is 8.6).
        later: Whether it is also for devices that came after its builder.
    """

    version: str
    sm: tuple[int, ...]
    later: bool = False


def read_header(path: Path) -> EngineHeader:
    """Reads and checks the header of a TensorRT-RTX engine.

    NVIDIA does not document it. The layout was taken from engines of TensorRT-RTX 1.7.1, all little-endian: bytes 0-3
    are `vtrt`, the u64 at 16 is the size of the file, bytes 24-27 are the version, the u32 at 32 is the bit mask of
    targets. This does not find a changed byte behind the header: compare the digest for that.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has other magic.
        IntegrityError: the file is cut short or has extra bytes at its end.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if not head.startswith(MAGIC):
        got = head[:4].hex() or "none"
        raise ValueError(
            f"{path} is no TensorRT-RTX engine by its header: got first bytes {got}; expected {MAGIC.hex()}."
        )
    if len(head) < HEADER_BYTES:
        raise IntegrityError(f"{path} is cut short: got {len(head)} bytes, less than a header.", hint=_AGAIN)
    declared, *version, mask = struct.unpack_from("<16xQ4B4xI", head)
    size = path.stat().st_size
    if declared != size:
        raise IntegrityError(
            f"{path} is cut short or has bytes behind its end: got {size} bytes; its header says {declared}.",
            hint=_AGAIN,
        )
    sm = tuple(sm for bit, sm in TARGET_BITS.items() if mask & bit)
    return EngineHeader(".".join(map(str, version)), sm, bool(mask & _LATER))
