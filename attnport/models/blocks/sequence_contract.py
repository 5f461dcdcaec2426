"""The contract of a layer that maps a padded sequence of vectors to one of the same length."""

from __future__ import annotations

from typing import Literal

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.usual_dims import BATCH, length

PADDING = MaskSpec(kinds=("padding",), input="attention_mask")


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
