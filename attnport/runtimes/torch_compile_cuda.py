"""torch.compile on a CUDA GPU: the whole module compiled by inductor, without falling back to the module itself."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from attnport.artifacts import Capabilities, Ran, Session
from attnport.errors import whole_cause
from attnport.runtimes import _torch_device
from attnport.runtimes._device_timing import GRAPH, STREAM
from attnport.runtimes._torch_device import TorchDevice
from attnport.runtimes._torch_session import Call, DeviceSession
from attnport.runtimes.base import Kind, Opening, Runtime, available, physical_cores
from attnport.runtimes.torch_compile import PLANS, CompiledCall, own_code, plan_of, quiet, run_once

if TYPE_CHECKING:
    import torch

TUNED = "max-autotune"

_TOOLS = "inductor wants triton, which comes with PyTorch's CUDA wheels, and a C compiler: apt-get install gcc"


class TorchCompileCuda(Runtime):
    """As `torch_compile`, on the first GPU; it can also be timed as a CUDA graph, and tuned for the sizes of a call."""

    name: ClassVar[str] = "torch_compile_cuda"
    opens: ClassVar[Kind] = "module"
    by_name: ClassVar[bool] = True
    gpu: ClassVar[bool] = True

    def probe(self) -> Capabilities:
        """What the installed version can do here; never raises. A tiny function has to compile."""
        return _torch_device.probe(self.name, PLANS, lambda device: _why_not(device.kind))

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
        session = CompiledSession(opening, ran, device, dtype, module)
        run_once(session, opening.io)
        return session


class CompiledSession(DeviceSession):
    """A compiled module, which can also be timed compiled anew for the sizes of the call alone, with tuned kernels.

    An engine is tuned for a profile, and graphs are captured for one size; `torch.compile` for any size is neither.
    """

    modes: tuple[str, ...] = (STREAM, GRAPH, TUNED)

    def __init__(
        self, opening: Opening, ran: Ran, device: TorchDevice, dtype: torch.dtype, module: torch.nn.Module
    ) -> None:
        call = CompiledCall(module, opening.contract)
        super().__init__(opening.io, ran, device, dtype, opening.threads or physical_cores(), call)
        self._module: torch.nn.Module | None = module
        self._tuned: Call | None = None

    def _call_of(self, mode: str) -> Call:
        if mode != TUNED:
            return super()._call_of(mode)
        if self._tuned is None:
            assert self._module is not None
            self._tuned = tuned(self._module)
        return self._tuned

    def _free(self) -> None:
        self._tuned = self._module = None
        super()._free()


def tuned(module: torch.nn.Module) -> Call:
    """A module compiled for each size that it is called with, with PyTorch's best effort: `mode="max-autotune"`.

    Its kernels are chosen by timing them, for minutes the first time, and a call is replayed as a CUDA graph.
    """
    import torch

    mark_step: Any = torch.compiler.cudagraph_mark_step_begin
    compiled: Any = torch.compile(own_code(module), mode="max-autotune", dynamic=False, fullgraph=True)

    def call(tensors: dict[str, torch.Tensor]) -> Any:
        mark_step()  # the outputs of the call before are no longer used
        return compiled(**tensors)

    return call


@functools.cache
def _why_not(kind: str) -> tuple[str, str] | None:
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
