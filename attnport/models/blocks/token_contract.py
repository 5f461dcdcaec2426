"""The contract of an encoder of token ids."""

from __future__ import annotations

from collections.abc import Mapping

from attnport.artifacts import IOContract
from attnport.dims import TensorSpec
from attnport.models.blocks.sequence_contract import PADDING
from attnport.models.blocks.usual_dims import BATCH, length


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
