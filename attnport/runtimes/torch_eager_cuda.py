"""PyTorch eager on a CUDA GPU: the module itself, with PyTorch's own choice of attention kernel."""

from __future__ import annotations

from typing import ClassVar

from attnport.artifacts import CASTS, Capabilities, Ran, Session
from attnport.runtimes import _torch_device
from attnport.runtimes._torch_session import DeviceSession
from attnport.runtimes.base import Kind, Opening, Runtime, available, physical_cores
from attnport.runtimes.torch_eager import EagerCall, module_of


class TorchEagerCuda(Runtime):
    """Runs the module as PyTorch does, on the first GPU; it can also be timed as a CUDA graph."""

    name: ClassVar[str] = "torch_eager_cuda"
    opens: ClassVar[Kind] = "module"
    gpu: ClassVar[bool] = True
    distributions = ("torch", "nvidia-*")

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises."""
        return _torch_device.probe(self.name, CASTS, lambda device: None)

    def open(self, opening: Opening) -> Session:
        """Makes the module, casts it to the plan and copies it to the GPU.

        Raises:
            UsageError: no module was given, or the plan is unknown.
            UnavailableError: PyTorch has no CUDA, or there is no GPU.
        """
        import torch

        module, dtype = module_of(self.name, opening)
        available(self)
        device = _torch_device.TorchDevice()
        precision = "fp64" if opening.float64 else _torch_device.matmul_precision(opening.plan)
        with _torch_device.memory_of(device, dtype):
            call = EagerCall(opening, _torch_device.on(device, module, dtype), own=True)
        ran = Ran(device.name, f"torch {torch.__version__}", precision)
        return DeviceSession(opening.io, ran, device, dtype, opening.threads or physical_cores(), call)


RUNTIME = TorchEagerCuda()
