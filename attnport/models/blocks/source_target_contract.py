"""The contract of an encoder-decoder of token ids."""

from __future__ import annotations

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec
from attnport.masks.spec import MaskSpec
from attnport.models.blocks.usual_dims import BATCH, length


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
