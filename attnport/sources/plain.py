"""What users hand over as a module: unwrapped where torch wrapped it, refused where it cannot be traced, in float32."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError

if TYPE_CHECKING:
    import torch
    from torch import nn

HALF_HINT = (
    "The module was in half precision and is exported in float32: cast to the type of its weights, "
    "x.to(self.weight.dtype), where it casts to float16 or bfloat16 by itself."
)


def plain_module(text: str, module: nn.Module) -> nn.Module:
    """The module inside the wrappers of `torch.compile` and data parallelism.

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


def half_of(module: nn.Module) -> str:
    """`float16` or `bfloat16` where a module has weights in half precision; otherwise ""."""
    import torch

    held = {tensor.dtype for tensor in _weights(module)}
    return next((str(dtype).removeprefix("torch.") for dtype in (torch.float16, torch.bfloat16) if dtype in held), "")


def in_float32(module: nn.Module) -> nn.Module:
    """Converts weights in half precision to float32 in place, and returns the module. No value changes.

    Inputs in half precision are then cast to the type of its weights.
    """
    import torch
    from torch.utils import _pytree as pytree

    if not half_of(module):
        return module

    def widened(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        dtype = next(tensor.dtype for tensor in _weights(part) if tensor.is_floating_point())

        def cast(value: Any) -> Any:
            half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
            return value.to(dtype) if half else value

        found: tuple[tuple[Any, ...], Any] = pytree.tree_map(cast, (args, kwargs))
        return found

    module.float().register_forward_pre_hook(widened, with_kwargs=True)
    return module


def half_notes(half: str) -> tuple[str, ...]:
    """What `export` says of a module of `half_of`."""
    if not half:
        return ()
    return (
        f"the module is in {half}: it is exported in float32, with the same weights, and judged by them in float64; "
        f"fuse --dtype makes forms in half precision",
    )


def _weights(module: nn.Module) -> Iterator[torch.Tensor]:
    return itertools.chain(module.parameters(), module.buffers())
