"""A CUDA device through PyTorch: tensors on it, times between events on its stream, calls captured as a graph."""

# torch leaves its CUDA classes untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnport.artifacts import PLANS, Capabilities
from attnport.errors import UnavailableError, first_line
from attnport.optional import require
from attnport.runtimes._torch_cast import cast
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


def probe(
    runtime: str, plans: tuple[str, ...], problem: Callable[[TorchDevice], tuple[str, str] | None]
) -> Capabilities:
    """The probe of a runtime that is PyTorch on a CUDA device; never raises.

    Args:
        problem: Checks what the runtime needs beyond a device. Returns a reason and a hint if it is missing, or None.
    """
    version = ""
    try:
        version = str(require("torch").__version__)
        device = TorchDevice()
        if missing := problem(device):
            return Capabilities(runtime, False, *missing, version=version)
    except UnavailableError as err:
        return Capabilities(runtime, False, err.message, err.hint, version=version)
    except Exception as err:  # a half-installed wheel or driver fails anywhere
        return Capabilities(runtime, False, f"torch does not work on this GPU: {first_line(err)}", version=version)
    able = tuple(plan for plan in plans if device.bf16 or PLANS[plan].half != "bfloat16")
    return Capabilities(runtime, True, version=version, devices=(device.name,), plans=able)


def matmul_precision(plan: str) -> str:
    """The plan as shown in reports; fp32 gets a note if PyTorch was told to compute products in TF32 or less."""
    import torch

    setting = torch.get_float32_matmul_precision()
    if plan == "fp32" and setting == "highest" and torch.backends.cuda.matmul.allow_tf32:
        setting = "TF32"
    return plan if plan != "fp32" or setting == "highest" else f"{plan} (matmul {setting})"


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
