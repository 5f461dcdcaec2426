"""PyTorch eager on a CUDA GPU: the module itself, with PyTorch's own choice of attention kernel."""

from __future__ import annotations

from typing import Any

from attnport.artifacts import CASTS, Session
from attnport.runtimes import _torch_device
from attnport.runtimes.base import Opening, Runtime
from attnport.runtimes.torch_eager import EagerCall, module_of


class TorchEagerCuda(Runtime):
    """Runs the module as PyTorch does, on the first GPU; it can also be timed as a CUDA graph."""

    name = "torch_eager_cuda"
    opens = "module"
    package = "torch"
    fragile = True
    gpu = True
    distributions = ("torch", "nvidia-*")

    def able(self) -> dict[str, Any]:
        """Computes on the first GPU; in bfloat16 from Ampere on."""
        return _torch_device.able_on(_torch_device.TorchDevice(), CASTS)

    def session(self, opening: Opening) -> Session:
        """Makes the module, casts it to the plan and copies it to the GPU.

        Raises:
            UsageError: PyTorch has no such plan.
        """
        module, dtype = module_of(opening)
        device = _torch_device.TorchDevice()
        with _torch_device.memory_of(device, dtype):
            call = EagerCall(opening, _torch_device.on(device, module, dtype), own=True)
        return _torch_device.DeviceSession(opening, device, dtype, call)


RUNTIME = TorchEagerCuda()
