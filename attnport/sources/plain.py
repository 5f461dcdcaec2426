"""What users hand over as a module: unwrapped where torch wrapped it, refused where it cannot be traced, in float32."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnport.errors import SpecError

if TYPE_CHECKING:
    import torch
    from torch import nn

CAST_HINT = (
    "The module was in another precision and is exported in float32: cast to the type of its weights, "
    "x.to(self.weight.dtype), where it casts to float16, bfloat16 or float64 by itself."
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


def precision_of(module: nn.Module) -> str:
    """The type of a module that is not exported as it is: `float16` or `bfloat16` where it has weights in half
    precision, `float64` where all its weights are; otherwise ""."""
    import torch

    held = {tensor.dtype for tensor in _weights(module) if tensor.is_floating_point()}
    half = [dtype for dtype in (torch.float16, torch.bfloat16) if dtype in held]
    found = half or [dtype for dtype in held if held == {torch.float64}]
    return str(found[0]).removeprefix("torch.") if found else ""


def in_float32(module: nn.Module) -> nn.Module:
    """Converts a module of `precision_of` to float32 in place, and returns it, with no part that torch.compile runs.

    Inputs in such a precision are then cast to the type of its weights.
    """
    import torch
    from torch.utils import _pytree as pytree

    _run_plainly(module)
    precision = precision_of(module)
    if not precision:
        return module
    others = {torch.float16, torch.bfloat16, getattr(torch, precision)}

    def widened(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        dtype = next(tensor.dtype for tensor in _weights(part) if tensor.is_floating_point())

        def cast(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype in others else value

        found: tuple[tuple[Any, ...], Any] = pytree.tree_map(cast, (args, kwargs))
        return found

    module.float().register_forward_pre_hook(widened, with_kwargs=True)
    return module


def _run_plainly(module: nn.Module) -> None:
    """Takes parts out of the wrappers of torch.compile, which would compile them for each size that is tried."""
    import torch

    for part in list(module.modules()):
        if part._compiled_call_impl is not None:  # of `part.compile()`
            part._compiled_call_impl = None
        for name, child in list(part.named_children()):
            if isinstance(original := getattr(child, "_orig_mod", None), torch.nn.Module):
                setattr(part, name, original)


def precision_notes(precision: str) -> tuple[str, ...]:
    """What `export` says of a module of `precision_of`."""
    if not precision:
        return ()
    weights = "its weights rounded to it" if precision == "float64" else "the same weights"
    return (
        f"the module is in {precision}: it is exported in float32, with {weights}, and judged by them in float64; "
        f"fuse --precision makes forms in half precision",
    )


def _weights(module: nn.Module) -> Iterator[torch.Tensor]:
    return itertools.chain(module.parameters(), module.buffers())
