"""Refuses modules that give other outputs for the same inputs: nothing can be compared with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from attnport.errors import SpecError

if TYPE_CHECKING:
    import torch
    from torch import nn


def refuse_random(text: str, module: nn.Module, call: Callable[[], Mapping[str, torch.Tensor]]) -> None:
    """Calls a module twice.

    Args:
        text: What the error calls the module.
        call: Runs the module, with the same inputs each time, and returns its outputs by name.

    Raises:
        SpecError: the outputs differ; names the submodules that drew random numbers.
    """
    import torch

    drew: dict[str, None] = {}
    with torch.random.fork_rng(devices=[]), _watched(module, drew):
        torch.manual_seed(0)
        one, other = call(), call()  # the second call draws other numbers than the first
    differing = [name for name in one if not _equal(one[name], other[name])]
    if differing:
        kinds = {name: type(part).__name__ for name, part in module.named_modules()}
        places = [f"{name} ({kinds[name]})" if name else kinds[name] for name in drew]
        where = f"; random numbers are drawn in {', '.join(places[:4])}" if places else ""
        raise SpecError(
            f"{text} is not deterministic: on the same inputs, two runs in eval mode give another output "
            f"{', '.join(differing[:4])}{where}.",
            hint="Write F.dropout(x, p, self.training), which is off in eval mode; take random numbers as an input; "
            "or reset what the module keeps from call to call.",
        )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two outputs are the same but for sums in another order."""
    import torch

    if one.shape != other.shape:
        return False
    if not one.is_floating_point() or not one.numel():
        return torch.equal(one, other)
    wide, further = one.double(), other.double()
    largest = float(torch.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0).abs().max())
    return torch.allclose(wide, further, rtol=1e-4, atol=1e-4 * largest, equal_nan=True)


@contextlib.contextmanager
def _watched(module: nn.Module, drew: dict[str, None]) -> Iterator[None]:
    """Notes the innermost submodules that draw random numbers of torch."""
    import torch

    before: list[tuple[torch.Tensor, int]] = []

    def entered(part: nn.Module, arguments: object) -> None:
        before.append((torch.get_rng_state(), len(drew)))

    def left_as(name: str) -> Callable[[nn.Module, object, object], None]:
        def left(part: nn.Module, arguments: object, result: object) -> None:
            state, known = before.pop()
            if len(drew) == known and not torch.equal(state, torch.get_rng_state()):
                drew[name] = None

        return left

    hooks = []
    for name, part in module.named_modules():
        hooks += [part.register_forward_pre_hook(entered), part.register_forward_hook(left_as(name))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
