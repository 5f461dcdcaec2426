"""Makes modules of factories that set no seed alike each time, and says so where that is not enough."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnport.artifacts import ModelSpec
from attnport.errors import SpecError
from attnport.sources.digests import weights_digest

if TYPE_CHECKING:
    from torch import nn

SMALL = 20_000_000
"""Parameters of a module that is made a second time at once, to compare the weights; others when they are needed."""


def seeded(factory: Callable[[], Any]) -> Callable[[], Any]:
    """The factory, whose random numbers of torch, NumPy and Python are the same each time.

    One that sets a seed itself is not changed by this. The caller's own sequence of random numbers goes on as if the
    factory had not been called.
    """

    def make() -> Any:
        with seeding():
            return factory()

    return make


def made_alike(module: nn.Module, spec: ModelSpec, digest: str) -> Callable[[], nn.Module]:
    """A `make` that returns `module` once and then new ones, the first of which must have its weights.

    Raises:
        SpecError: as the returned function does: the new weights are others. Of a small module that is found at once.
    """
    ready, compared = [module.eval()], list[bool]()

    def make() -> nn.Module:
        if ready:
            return ready.pop()
        made = spec.make().eval()
        if not compared:
            compare(made)
        return made

    def compare(made: nn.Module) -> None:
        if weights_digest(spec.source.text, made) != digest:
            raise SpecError(
                f"{spec.source.text} makes other weights each time it is called.",
                hint="Load the weights in the factory, or give its random generator a seed; or give attnport.export "
                "the module itself, which is then stored in the artifact.",
            )
        compared.append(True)

    if ":" in spec.source.text and not spec.source.text.startswith(("hf:", "onnx:")) and _size(module) <= SMALL:
        compare(spec.make().eval())
    return make


@contextmanager
def seeding() -> Iterator[None]:
    """Random numbers of torch, NumPy and Python in the block are the same each time; around it nothing changes."""
    import numpy as np
    import torch

    state, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(of_numpy)


def _size(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())
