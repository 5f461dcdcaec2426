"""What users hand over as a module: unwrapped where torch wrapped it, refused where it cannot be traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.errors import SpecError

if TYPE_CHECKING:
    from torch import nn


def plain_module(text: str, module: nn.Module) -> nn.Module:
    """The module itself, out of `torch.compile` and data parallelism.

    Args:
        text: What the error calls it.

    Raises:
        SpecError: it is a TorchScript module, which has no Python code that could be traced.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise SpecError(
            f"{text}: got a TorchScript module, which torch.export cannot trace.",
            hint="Give the nn.Module from before torch.jit.script or torch.jit.trace.",
        )
    if isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        inner: nn.Module = module.module
        return plain_module(text, inner)
    original = getattr(module, "_orig_mod", None)  # what torch.compile returns keeps the module there
    return plain_module(text, original) if isinstance(original, torch.nn.Module) else module
