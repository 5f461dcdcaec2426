"""torch.compile on a CUDA GPU: the whole module compiled by inductor, without falling back to the module itself."""

from __future__ import annotations

import functools
from typing import ClassVar

from attnport.artifacts import Capabilities, Ran, Session
from attnport.errors import whole_cause
from attnport.runtimes import _torch_device
from attnport.runtimes._torch_session import DeviceSession
from attnport.runtimes.base import Kind, Opening, Runtime, available, physical_cores
from attnport.runtimes.torch_compile import PLANS, CompiledCall, plan_of, quiet, run_once

_TOOLS = "inductor wants triton, which comes with PyTorch's CUDA wheels, and a C compiler: apt-get install gcc"


class TorchCompileCuda(Runtime):
    """As `torch_compile`, on the first GPU; it can also be timed as a CUDA graph."""

    name: ClassVar[str] = "torch_compile_cuda"
    opens: ClassVar[Kind] = "module"
    by_name: ClassVar[bool] = True
    gpu: ClassVar[bool] = True
    distributions = ("torch", "triton*", "pytorch-triton*", "nvidia-*")

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises. A tiny function has to compile."""
        return _torch_device.probe(self.name, PLANS, lambda device: why_not(device.kind))

    def open(self, opening: Opening) -> Session:
        """Makes the module, casts it to the plan, copies it to the GPU and compiles it, by a run at its usual sizes.

        Raises:
            UsageError: no module was given.
            UnavailableError: PyTorch has no CUDA, there is no GPU or no compiler, the plan has islands, or the module
                does not compile as one graph.
        """
        import torch

        dtype = plan_of(self.name, opening)
        available(self)
        assert opening.spec is not None
        device = _torch_device.TorchDevice()
        module = _torch_device.on(device, opening.spec.make().eval(), dtype)
        ran = Ran(device.name, f"torch {torch.__version__} inductor", _torch_device.matmul_precision(opening.plan))
        call = CompiledCall(module, fast_path=not opening.contract)
        session = DeviceSession(opening.io, ran, device, dtype, opening.threads or physical_cores(), call)
        run_once(session, opening.io)
        return session


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
