"""The contract of a module that reads a key/value cache and gives what is to be appended to it."""

from __future__ import annotations

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.usual_dims import BATCH, length


def cache_contract(
    new: TensorSpec, output: TensorSpec, cached: tuple[int, ...], depth: int, *, limits: tuple[int, int] = (256, 512)
) -> IOContract:
    """New tokens [batch, seq, ...] behind `past_keys`, `past_values` and `cache_mask`; out come `keys` and `values`.

    The cache is float32 [batch, *cached, past, D], what comes out [batch, *cached, seq, D]; `cache_mask` is int64
    [batch, past]. The module's own mask is causal, with the last query at the last key.

    Args:
        new: The new tokens.
        output: What the module makes of them.
        cached: Layers, where there are several, and the heads of keys and values.
        depth: Head dim D.
        limits: The most tokens that are new, and that are cached.
    """
    past, added = (("batch", *cached, tokens, depth) for tokens in ("past", "seq"))
    most_new, most_past = limits
    return IOContract(
        inputs=(
            new,
            TensorSpec("past_keys", "float32", past),
            TensorSpec("past_values", "float32", past),
            TensorSpec("cache_mask", "int64", ("batch", "past"), high=2),
        ),
        outputs=(output, TensorSpec("keys", "float32", added), TensorSpec("values", "float32", added)),
        dims=(BATCH, Dim("seq", 1, min(16, most_new), most_new), length("past", most_past)),
        masks=(MaskSpec(("padding",), input="cache_mask"), MaskSpec(("causal",), alignment="lower_right")),
        positions="none",
    )
