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


def decoder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[int], Any]:
    """The model of transformers with its growing cache, and logits of the last token alone."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    read = transformers.AutoModelForCausalLM.from_pretrained
    made = read(model["folder"], dtype=dtype_of(variant), trust_remote_code=False).eval()

    def begin(batch: int) -> Callable[[Any], Any]:
        cache = transformers.DynamicCache()

        def step(ids: Any) -> Any:
            with torch.inference_mode():
                given = torch.from_numpy(ids)
                out = made(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1)
            return out.logits[:, -1].float().numpy()

        return step

    return begin
