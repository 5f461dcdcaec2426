"""torch.compile on a CUDA GPU: the whole module compiled by inductor, without falling back to the module itself."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from attnport.artifacts import Session
from attnport.errors import UnavailableError, whole_cause
from attnport.runtimes import _torch_device
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_compile import Compiled, CompiledCall, quiet, run_once
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
        if problem := why_not(device.kind):
            raise UnavailableError(problem[0], hint=problem[1])
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


@functools.cache
def why_not(kind: str) -> tuple[str, str] | None:
    """The reason why nothing compiles for a kind of device in this process, and a hint; None if compiling works."""
    import torch

    try:
        with torch.inference_mode(), quiet():
            compiled = torch.compile(torch.nn.ReLU(), dynamic=True, fullgraph=True)
            compiled(torch.ones(2, 3, device=kind))
    except Exception as err:  # the exceptions of compilers share no base
        cause = getattr(err, "inner_exception", err)
        return f"inductor cannot compile here: {type(cause).__name__}: {whole_cause(cause)}", _TOOLS
    return None


RUNTIME = TorchCompileCuda()
