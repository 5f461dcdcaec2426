"""torch.compile on a CUDA GPU in its best mode: for the sizes of each call alone, tuned, replayed as a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attnport.artifacts import Capabilities, Ran, Session
from attnport.runtimes import _torch_device, torch_compile_cuda
from attnport.runtimes._device_timing import STREAM
from attnport.runtimes._torch_session import Call, DeviceSession
from attnport.runtimes.base import Kind, Opening, Runtime, available, physical_cores
from attnport.runtimes.torch_compile import PLANS, own_code, plan_of, take_many_graphs

if TYPE_CHECKING:
    import torch


class TorchCompileTunedCuda(Runtime):
    """What an engine, which is tuned for a profile, is fairly compared with.

    The first call of each size takes minutes, in which kernels are chosen by timing them.
    """

    name: ClassVar[str] = "torch_compile_tuned_cuda"
    opens: ClassVar[Kind] = "module"
    by_name: ClassVar[bool] = True
    gpu: ClassVar[bool] = True
    distributions = ("torch", "triton*", "pytorch-triton*", "nvidia-*")

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises. A tiny function has to compile."""
        return _torch_device.probe(self.name, PLANS, lambda device: torch_compile_cuda.why_not(device.kind))

    def open(self, opening: Opening) -> Session:
        """Makes the module, casts it to the plan and copies it to the GPU. The first call of each size compiles it.

        Raises:
            UsageError: no module was given.
            UnavailableError: PyTorch has no CUDA, there is no GPU or no compiler, or the plan has islands.
        """
        import torch

        dtype = plan_of(self.name, opening)
        available(self)
        assert opening.spec is not None
        device = _torch_device.TorchDevice()
        module = _torch_device.on(device, opening.spec.make().eval(), dtype)
        provider = f"torch {torch.__version__} inductor, max-autotune"
        ran = Ran(device.name, provider, _torch_device.matmul_precision(opening.plan))
        threads = opening.threads or physical_cores()
        return TunedSession(opening.io, ran, device, dtype, threads, tuned(module))


class TunedSession(DeviceSession):
    """PyTorch itself replays a call as a CUDA graph here."""

    modes: tuple[str, ...] = (STREAM,)


def tuned(module: torch.nn.Module) -> Call:
    """A module compiled for each size that it is called with, with PyTorch's best effort: `mode="max-autotune"`."""
    import torch

    take_many_graphs()
    mark_step: Any = torch.compiler.cudagraph_mark_step_begin
    compiled: Any = torch.compile(own_code(module), mode="max-autotune", dynamic=False, fullgraph=True)

    def call(tensors: dict[str, torch.Tensor]) -> Any:
        mark_step()  # the outputs of the call before are no longer used
        return compiled(**tensors)

    return call


RUNTIME = TorchCompileTunedCuda()
