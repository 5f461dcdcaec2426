"""The contracts that several models share: inputs, outputs, named dims with their usual ranges, and masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.masks.spec import MaskSpec

BATCH = Dim("batch", 1, 8, 32)
PADDING = MaskSpec(kinds=("padding",), input="attention_mask")
SOURCE_PADDING = MaskSpec(kinds=("padding",), input="memory_mask")


def length(name: str = "seq", limit: int = 512) -> Dim:
    """The length of a sequence, up to `limit`, usually 128."""
    return Dim(name, 1, min(128, limit), limit)


def sequence_contract(
    width: int,
    *,
    inputs: tuple[str, ...] = ("attention_mask",),
    masks: tuple[MaskSpec, ...] = (PADDING,),
    positions: Literal["absolute", "none"] = "absolute",
    limit: int = 512,
) -> IOContract:
    """`x` float32 [batch, seq, E] to `y` of the same shape.

    Args:
        width: E.
        inputs: What else goes in, each int64 [batch, seq] of zeros and ones.
        masks: What these mean, and the patterns that the layer has by itself.
        positions: `none` where padding on the left changes nothing, for it moves all positions and no distance.
        limit: The longest sequence.
    """
    tokens = ("batch", "seq")
    return IOContract(
        inputs=(
            TensorSpec("x", "float32", (*tokens, width)),
            *(TensorSpec(name, "int64", tokens, high=2) for name in inputs),
        ),
        outputs=(TensorSpec("y", "float32", (*tokens, width)),),
        dims=(BATCH, length(limit=limit)),
        masks=masks,
        positions=positions,
    )


def token_contract(inputs: Mapping[str, int], width: int, *, limit: int = 512) -> IOContract:
    """Token ids and what is said of each token, to `last_hidden_state` float32 [batch, seq, E].

    Args:
        inputs: Each int64 [batch, seq] of numbers below the one given here; `attention_mask` is among them.
        width: E.
        limit: The longest sequence.
    """
    tokens = ("batch", "seq")
    return IOContract(
        inputs=tuple(TensorSpec(name, "int64", tokens, high=high) for name, high in inputs.items()),
        outputs=(TensorSpec("last_hidden_state", "float32", (*tokens, width)),),
        dims=(BATCH, length(limit=limit)),
        masks=(PADDING,),
    )


def source_target_contract(names: tuple[str, str, str], vocabulary: int, output: str, width: int) -> IOContract:
    """A source with its padding mask, and a target so far, to float32 [batch, target, width].

    Args:
        names: Those of the source's ids, int64 [batch, seq], of its mask, and of the target's ids [batch, target].
        vocabulary: Ids are below.
        output: The output's name.
        width: The output's last dim.
    """
    source_ids, source_mask, target_ids = names
    return IOContract(
        inputs=(
            TensorSpec(source_ids, "int64", ("batch", "seq"), high=vocabulary),
            TensorSpec(source_mask, "int64", ("batch", "seq"), high=2),
            TensorSpec(target_ids, "int64", ("batch", "target"), high=vocabulary),
        ),
        outputs=(TensorSpec(output, "float32", ("batch", "target", width)),),
        dims=(BATCH, length(), length("target")),
        masks=(MaskSpec(("padding",), input=source_mask),),
    )


def alignment_contract(
    width: int,
    outputs: tuple[TensorSpec, ...],
    *,
    masks: tuple[MaskSpec, ...] = (SOURCE_PADDING,),
    positions: Literal["absolute", "none"] = "absolute",
) -> IOContract:
    """States `x` [batch, seq, E], a source `memory` [batch, mem, E], float32, and its `memory_mask` int64 [batch, mem].

    Args:
        width: E.
        outputs: What comes out.
        masks: What hides a word of the source.
        positions: `none` where padding on the left of the source changes nothing.
    """
    return IOContract(
        inputs=(
            TensorSpec("x", "float32", ("batch", "seq", width)),
            TensorSpec("memory", "float32", ("batch", "mem", width)),
            TensorSpec("memory_mask", "int64", ("batch", "mem"), high=2),
        ),
        outputs=outputs,
        dims=(BATCH, Dim("seq", 1, 16, 64), Dim("mem", 1, 64, 256)),
        masks=masks,
        positions=positions,
    )


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
