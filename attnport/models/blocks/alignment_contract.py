"""The contract of an attention from decoder states to a source, as in recurrent translation models."""

from __future__ import annotations

from typing import Literal

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.usual_dims import BATCH

SOURCE_PADDING = MaskSpec(kinds=("padding",), input="memory_mask")


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
