"""TensorRT and a GPU that are not there: memory of the host, and an engine that computes with NumPy.

What is shown on them is what this project does with TensorRT, not what TensorRT does.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import struct
from collections.abc import Callable, Iterator
from types import MappingProxyType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from attnport_bundle.runtimes.dlpack import ALIGNMENT

PROFILES = ((1, 4, 8), (16, 32, 64))


def engine_bytes(version: str = "0.0.0.0", mask: int = 0) -> bytes:
    """The header of a TensorRT-RTX engine for `version` and the target bits `mask`, and a body of zeros."""
    body = bytearray(b"vtrt" + bytes(96))
    struct.pack_into("<Q", body, 16, len(body))
    body[24:28] = bytes(int(part) for part in version.split("."))
    struct.pack_into("<I", body, 32, mask)
    return bytes(body)


class HostDevice:
    """Memory of the host in the place of a GPU's; it notices what is not freed.

    `validity` and `diagnostics` are what TensorRT-RTX says of a tiny engine there, and `tried` counts how often it is
    asked.
    """

    name, sm, stream, uuid = "Pretended GPU", 89, 7, "ab" * 16

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.closed = self.waits = self.deserialised = self.tried = 0
        self.validity, self.diagnostics = Validity.VALID, 0
        self.engine: Engine | None = Engine()
        self.graphs: dict[int, Callable[[], None]] = {}
        self.launched: list[int] = []
        self.dropped: list[int] = []

    def open(self) -> None: ...

    def bind(self) -> None: ...

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        self.closed += 1

    def allocate(self, size_bytes: int) -> int:
        size = max(size_bytes, 1)
        block = ctypes.create_string_buffer(size + ALIGNMENT)
        buffer = (ctypes.c_char * size).from_buffer(block, -ctypes.addressof(block) % ALIGNMENT)
        self.memory[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def free(self, address: int) -> None:
        del self.memory[address]

    def upload(self, address: int, array: np.ndarray) -> None:
        assert array.flags.c_contiguous
        assert array.nbytes <= len(self.memory[address])
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, array: np.ndarray, address: int) -> None:
        assert array.nbytes <= len(self.memory[address])
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def synchronize(self) -> None:
        self.waits += 1

    @contextlib.contextmanager
    def events(self, count: int) -> Iterator[list[int]]:
        self.recorded: list[int] = []
        yield list(range(count))

    def record(self, event: int) -> None:
        self.recorded.append(event)

    def elapsed_ns(self, first: int, second: int) -> int:
        return 1000 * second + first

    def captured(self, work: Callable[[], None]) -> int:
        work()
        self.graphs[len(self.graphs) + 1] = work
        return len(self.graphs)

    def launch(self, graph: int) -> None:
        self.launched.append(graph)
        self.graphs[graph]()

    def drop_graph(self, graph: int) -> None:
        self.dropped.append(graph)


class Context:
    """Computes y = bfloat16(factor x) where m, else 0, from and to the addresses that it is given."""

    def __init__(self, factor: float = 2) -> None:
        self.factor = factor
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.profile: int | None = None
        self.memory: tuple[int, int] | None = None

    def set_device_memory(self, address: int, size_bytes: int) -> None:
        self.memory = address, size_bytes

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = PROFILES[self.profile or 0]
        self.shapes[name] = shape
        return low <= shape[0] <= high

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in ("x", "m") if name not in self.shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes["x"] if name == "y" else self.shapes[name]

    def execute_async_v3(self, stream: int) -> bool:
        assert self.memory is not None, "USER_MANAGED, and nobody gave memory"
        ctypes.memset(self.memory[0], 0xAB, self.memory[1])
        n = self.shapes["x"][0]
        x = np.ctypeslib.as_array((ctypes.c_float * (3 * n)).from_address(self.addresses["x"])).reshape(n, 3)
        m = np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(self.addresses["m"])).astype(bool)
        y = (np.where(m[:, None], x, 0) * self.factor).astype(ml_dtypes.bfloat16)
        ctypes.memmove(self.addresses["y"], y.ctypes.data, y.nbytes)
        return stream == 7


class Engine:
    """The part of ICudaEngine that a session calls."""

    num_io_tensors, num_optimization_profiles = 3, len(PROFILES)
    device_memory_size_v2 = 4096
    kinds = MappingProxyType({"x": "FLOAT", "m": "BOOL", "y": "BF16"})

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.configs: list[Config] = []
        self.factor = 2.0

    def get_tensor_name(self, index: int) -> str:
        return ["x", "m", "y"][index]

    def get_tensor_mode(self, name: str) -> str:
        return "output" if name == "y" else "input"

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=self.kinds[name])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1,) if name == "m" else (-1, 3)

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return [(n, 3) if name == "x" else (n,) for n in PROFILES[index]]

    def create_runtime_config(self) -> Config:
        self.configs.append(Config())
        return self.configs[-1]

    def create_execution_context(self, config: Config) -> Context:
        assert config.allocation == "user managed"
        self.contexts.append(Context(self.factor))
        if config.cache is not None:
            config.cache.kernels.add(len(self.contexts))
        return self.contexts[-1]


class Kept:
    """The part of IRuntimeCache that a session calls: kernels by number, as bytes."""

    def __init__(self) -> None:
        self.kernels: set[int] = set()

    def serialize(self) -> bytes:
        return bytes(sorted(self.kernels))

    def deserialize(self, blob: bytes) -> bool:
        self.kernels |= set(blob)
        return True


class Config:
    """The part of IRuntimeConfig that a session calls."""

    cuda_graph_strategy = "disabled"

    def __init__(self) -> None:
        self.cache: Kept | None = None
        self.allocation = "static"

    def set_execution_context_allocation_strategy(self, strategy: str) -> None:
        self.allocation = strategy

    def create_runtime_cache(self) -> Kept:
        return Kept()

    def set_runtime_cache(self, cache: Kept) -> bool:
        self.cache = cache
        return True


class Validity(enum.Enum):
    VALID, SUBOPTIMAL, INVALID = range(3)


class Diagnostics(enum.IntFlag):
    VERSION_MISMATCH, UNSUPPORTED_CC, OLD_CUDA_DRIVER, OLD_CUDA_RUNTIME, INSUFFICIENT_GPU_MEMORY = (
        1 << bit for bit in range(5)
    )


class Builder:
    """The part of IBuilder, and of the network that it creates, for an engine of one matrix product."""

    def __init__(self, logger: Logger) -> None: ...

    def create_network(self, flags: int) -> Any:
        product = SimpleNamespace(get_output=lambda index: "product")
        return SimpleNamespace(
            add_input=lambda name, dtype, shape: name,
            add_matrix_multiply=lambda a, transposed_a, b, transposed_b: product,
            mark_output=lambda tensor: None,
        )

    def create_builder_config(self) -> None: ...

    def build_serialized_network(self, network: Any, config: None) -> bytes:
        return b"tiny"


class Logger:
    ERROR, INTERNAL_ERROR = "error", "internal error"

    def log(self, severity: str, message: str) -> None: ...


def trt(device: HostDevice, version: str) -> Any:
    """The module `tensorrt_rtx`; `device.deserialised` counts, and `device.engine` is what an engine becomes."""

    class Deserialiser:
        def __init__(self, logger: Logger) -> None:
            self.logger = logger

        def deserialize_cuda_engine(self, data: bytes) -> Engine | None:
            device.deserialised += 1
            self.logger.log(Logger.ERROR, "pretended complaint")
            return device.engine

        def get_engine_validity(self, data: bytes) -> tuple[Validity, int]:
            assert data == b"tiny"
            device.tried += 1
            return device.validity, device.diagnostics

    return SimpleNamespace(
        __name__="tensorrt_rtx",
        __version__=version,
        ILogger=Logger,
        Runtime=Deserialiser,
        TensorIOMode=SimpleNamespace(INPUT="input"),
        Builder=Builder,
        EngineValidity=Validity,
        EngineInvalidityDiagnostics=Diagnostics,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user managed"),
        CudaGraphStrategy=SimpleNamespace(DISABLED="disabled", WHOLE_GRAPH_CAPTURE="whole graph"),
        MatrixOperation=SimpleNamespace(NONE=0),
        float16="half",
    )
