"""torch.compile with inductor: any size in one graph, weights constant, so that products are packed for oneDNN."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peer_module import dtype_of, first, imports, module, tensors

ENVIRONMENT = ""
VARIANTS = {"fp32": "fp32", "bf16": "half"}
__all__ = ["ENVIRONMENT", "VARIANTS", "imports", "opened"]


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """Compiles at the first run."""
    import numpy as np
    import torch
    import torch._inductor.config as inductor

    torch.set_num_threads(threads)
    inductor.freezing = True
    dtype = dtype_of(variant)
    made, name = torch.compile(module(model).to(dtype), dynamic=True), model["output"]

    def run(feeds: Any) -> Any:
        with torch.no_grad():
            return first(made(**tensors(feeds, dtype)), name)

    # Compiling is not what is timed: its workers may use every core.
    core = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with np.load(model["example"]) as example:
        feeds = dict(example)
    run(feeds)
    run({name: array[:1] for name, array in feeds.items()})  # one row is a graph of its own
    os.sched_setaffinity(0, core)
    return run
