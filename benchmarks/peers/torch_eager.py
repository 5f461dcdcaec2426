"""PyTorch eager, with fused attention as transformers chooses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peer_module import dtype_of, first, imports, module, tensors

ENVIRONMENT = ""
VARIANTS = {"fp32": "fp32", "bf16": "half"}
__all__ = ["ENVIRONMENT", "VARIANTS", "imports", "opened"]


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """The module, cast to bfloat16 as a whole for `bf16`."""
    import torch

    torch.set_num_threads(threads)
    dtype = dtype_of(variant)
    made, name = module(model).to(dtype), model["output"]

    def run(feeds: Any) -> Any:
        with torch.inference_mode():
            return first(made(**tensors(feeds, dtype)), name)

    return run
