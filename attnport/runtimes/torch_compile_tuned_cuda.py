"""torch.compile on a CUDA GPU in its best mode: for the sizes of each call alone, tuned, replayed as a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnport.artifacts import Session
from attnport.runtimes._torch_device import DeviceSession, TorchDevice
from attnport.runtimes.base import STREAM, Opening
from attnport.runtimes.torch_compile import own_code, take_many_graphs
from attnport.runtimes.torch_compile_cuda import TorchCompileCuda
from attnport.runtimes.torch_eager import Call

if TYPE_CHECKING:
    import torch


class TorchCompileTunedCuda(TorchCompileCuda):
    """What an engine, which is tuned for a profile, is fairly compared with.

    The first call of each size takes minutes, in which kernels are chosen by timing them.
    """

    name = "torch_compile_tuned_cuda"

    def compiled(self, opening: Opening, device: TorchDevice, module: torch.nn.Module, dtype: torch.dtype) -> Session:
        """A session of a module on the device, which the first call of each size compiles."""
        return TunedSession(opening, device, dtype, tuned(module), " inductor, max-autotune")


class TunedSession(DeviceSession):
    """PyTorch itself replays a call as a CUDA graph here."""

    modes = (STREAM,)


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
