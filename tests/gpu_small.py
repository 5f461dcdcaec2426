"""The models of gpu-check with few and narrow layers: contract, calls and profiles are those of the large ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from attnport.models import bert_encoder, llama_decoder
from attnport.verbs import _gpu_models

if TYPE_CHECKING:
    from attnport.artifacts import ModelSpec


def bert() -> ModelSpec:
    """Two layers of width 64."""
    small = bert_encoder.BertConfig(positions=_gpu_models.LONGEST)
    return dataclasses.replace(
        bert_encoder.spec(small), io=_narrowed(_gpu_models.bert_base(), bert_encoder.spec(small))
    )


def llama() -> ModelSpec:
    """Two layers of width 64."""
    return dataclasses.replace(llama_decoder.spec(), io=_narrowed(_gpu_models.llama_part(), llama_decoder.spec()))


def _narrowed(large: ModelSpec, small: ModelSpec) -> object:
    """The small model's tensors with the large one's dims."""
    return dataclasses.replace(small.io, dims=large.io.dims)
