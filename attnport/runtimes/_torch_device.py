"""A CUDA device through PyTorch: tensors on it, times between events on its stream, calls captured as a graph; and the
session of a module there."""

# torch leaves its CUDA classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnport.artifacts import DEVICE_PARTS, PLANS
from attnport.errors import UnavailableError, first_line
from attnport.runtimes.base import GRAPH, Array, DeviceTimed, Opening, refused
from attnport.runtimes.torch_eager import Call, TorchSession, cast, named_outputs, to_array
from attnport_bundle.runtimes.cuda import load_driver

if TYPE_CHECKING:
    import torch

PIP = 'pip uninstall -y torch && pip install "torch>=2.11"'
"""PyPI's wheels for Linux have CUDA (several gigabytes); those of PyTorch's own CPU index do not."""
_WARM_CALLS = 2


class TorchDevice:
    """The first CUDA device, on PyTorch's current stream.

    Attributes:
        kind: PyTorch's name for this kind of device.
        name: The name of the GPU, with its compute capability.
        bf16: Whether it computes in bfloat16.
    """

    kind = "cuda"

    def __init__(self) -> None:
        """Raises UnavailableError if this PyTorch has no CUDA, or finds no GPU."""
        import torch

        if torch.version.cuda is None:
            raise UnavailableError(f"torch {torch.__version__} is built without CUDA.", hint=PIP)
        load_driver()
        try:
            torch.cuda.init()
            properties = torch.cuda.get_device_properties(0)
        except (RuntimeError, AssertionError) as err:
            raise UnavailableError(f"torch.cuda finds no GPU: {first_line(err)}") from err
        # By default, PyTorch runs float32 convolutions in TF32, but not float32 products.
        torch.backends.cudnn.allow_tf32 = False
        self.name = f"{properties.name} (SM {properties.major}{properties.minor})"
        self.bf16 = properties.major >= 8

    def put(self, value: Any) -> Any:
        """A tensor on the device."""
        return value.to(self.kind)

    def mark(self) -> Any:
        """Records an event after everything in the stream so far."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ns_between(self, first: Any, second: Any) -> int:
        """Time between two events that have happened; the device's resolution is about 500 ns."""
        milliseconds: float = first.elapsed_time(second)
        return round(milliseconds * 1e6)

    def wait(self) -> None:
        """Waits until everything in the stream is done."""
        import torch

        torch.cuda.synchronize()

    def captured(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Captures what `work` puts into the stream as a graph. Returns a function that runs it, and its result.

        Raises:
            UnavailableError: `work` waits for the device, which cannot be captured. This is tested before the capture,
                as a failed capture may leave PyTorch's allocator in a bad state.
        """
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_CALLS):
                work()
            try:
                with _waits_refused():
                    work()
            except RuntimeError as err:
                raise UnavailableError(f"it cannot be captured as a CUDA graph: {first_line(err)}") from err
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = work()
        return graph.replay, result

    def free(self) -> None:
        """Returns cached memory to the driver, as other processes use the same GPU."""
        import torch

        torch.cuda.empty_cache()


@contextmanager
def whole_sums() -> Iterator[None]:
    """Keeps PyTorch from adding up parts of a product in half precision, as it may on a GPU.

    Results that are compared with float64, and that bound those of other runtimes, are added up in float32.
    """
    import torch

    products: Any = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    allowed = [name for name in names if getattr(products, name)]
    try:
        for name in allowed:
            setattr(products, name, False)
        yield
    finally:
        for name in allowed:
            setattr(products, name, True)


@contextmanager
def _waits_refused() -> Iterator[None]:
    """Makes operations that wait for the device raise RuntimeError."""
    import torch

    previous = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(previous)


def able_on(device: TorchDevice, plans: tuple[str, ...]) -> dict[str, Any]:
    """What a runtime with these plans is able to do on a device."""
    able = tuple(plan for plan in plans if device.bf16 or PLANS[plan].half != "bfloat16")
    return {"devices": (device.name,), "plans": able}


def on(device: TorchDevice, module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy of a module on a device, in a dtype. It is a copy, as `ModelSpec.make` may return one module repeatedly.

    Raises:
        MemoryError: the device has too little memory.
    """
    with memory_of(device, dtype):
        return cast(module, dtype, device.put)


@contextmanager
def memory_of(device: TorchDevice, dtype: torch.dtype) -> Iterator[None]:
    """Raises MemoryError if PyTorch finds too little memory on the device for weights."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as err:
        raise MemoryError(f"{device.name} has not enough memory for the weights in {dtype}: {first_line(err)}") from err


class DeviceSession(TorchSession, DeviceTimed):
    """Runs a callable that takes tensors by name, on a device."""

    def __init__(
        self, opening: Opening, device: TorchDevice, dtype: torch.dtype, call: Call, compiler: str = ""
    ) -> None:
        """As `TorchSession`, with what the callable computes on."""
        super().__init__(opening, dtype, call, compiler, device.name)
        self._device = device
        self._graph: tuple[Any, dict[str, torch.Tensor], Callable[[], None], Any] | None = None

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        import torch

        assert self._call is not None
        with refused(self.ran.provider, feeds), torch.inference_mode(), whole_sums():
            result = self._call(
                {name: self._device.put(host_tensor) for name, host_tensor in self._in_own_types(feeds).items()}
            )
            return {name: to_array(tensor) for name, tensor in named_outputs(result, self._io).items()}

    def _timed(self, feeds: Mapping[str, torch.Tensor], mode: str) -> dict[str, int]:
        import torch

        assert self._call is not None
        call, device = self._call, self._device
        with torch.inference_mode():
            device_tensors, replay, result = self._captured(feeds) if mode == GRAPH else ({}, None, None)
            marks = [device.mark()]
            if replay is None:
                device_tensors = {name: device.put(tensor) for name, tensor in feeds.items()}
            else:
                for name, tensor in feeds.items():
                    device_tensors[name].copy_(tensor)
            marks.append(device.mark())
            if replay is None:
                result = call(device_tensors)
            else:
                replay()
            marks.append(device.mark())
            for tensor in named_outputs(result, self._io).values():
                tensor.cpu()
            marks.append(device.mark())
            device.wait()
        times = [device.ns_between(*pair) for pair in itertools.pairwise(marks)]
        return dict(zip(DEVICE_PARTS, times, strict=True))

    def _captured(self, held: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Callable[[], None], Any]:
        """Inputs, replay and result of the graph for these shapes; only the graph of the last shapes is kept."""
        key = tuple((name, tuple(tensor.shape)) for name, tensor in held.items())
        if self._graph is None or self._graph[0] != key:
            self._graph = None
            call = self._call
            assert call is not None
            inputs = {name: self._device.put(tensor).clone() for name, tensor in held.items()}
            replay, result = self._device.captured(lambda: call(inputs))
            self._graph = key, inputs, replay, result
        return self._graph[1:]

    def _free(self) -> None:
        self._graph = None
        super()._free()
        self._device.free()
