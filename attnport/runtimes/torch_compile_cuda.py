"""torch.compile on a CUDA GPU: the whole module compiled by inductor, without falling back to the module itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnport.artifacts import Session
from attnport.errors import UnavailableError
from attnport.runtimes import _torch_device
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_compile import Compiled, CompiledCall, cannot_compile, run_once
from attnport.runtimes.torch_eager import module_of

if TYPE_CHECKING:
    import torch

_TOOLS = "inductor wants triton, which comes with PyTorch's CUDA wheels, and a C compiler: apt-get install gcc"


class TorchCompileCuda(Compiled):
    """As `torch_compile`, on the first GPU; it can also be timed as a CUDA graph."""

    name = "torch_compile_cuda"
    gpu = True
    distributions = (*Compiled.distributions, "nvidia-*")

    def able(self) -> dict[str, Any]:
        """Computes on the first GPU, if a tiny function compiles for it."""
        device = _torch_device.TorchDevice()
        if problem := cannot_compile(device.kind):
            raise UnavailableError(problem, hint=_TOOLS)
        return _torch_device.able_on(device, self.plans)

    def session(self, opening: Opening) -> Session:
        """Makes the module, casts it to the plan, copies it to the GPU and compiles it."""
        module, dtype = module_of(opening)
        device = _torch_device.TorchDevice()
        return self.compiled(opening, device, _torch_device.on(device, module, dtype), dtype)

    def compiled(
        self, opening: Opening, device: _torch_device.TorchDevice, module: torch.nn.Module, dtype: torch.dtype
    ) -> Session:
        """A session of a module on the device, compiled by a run at its usual sizes."""
        call = CompiledCall(module, fast_path=not opening.contract)
        return run_once(_torch_device.DeviceSession(opening, device, dtype, call, " inductor"), opening.io)


RUNTIME = TorchCompileCuda()
