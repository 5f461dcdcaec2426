"""The models of gpu-check with few and narrow layers: contract, calls and profiles are those of the large ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from attnport.models.base import get
from attnport.verbs import _gpu_models

if TYPE_CHECKING:
    from attnport.artifacts import ModelSpec


def bert() -> ModelSpec:
    """Two layers of width 64."""
    small = get("bert_encoder", positions=_gpu_models.LONGEST)
    return dataclasses.replace(small, io=_narrowed(_gpu_models.bert_base(), small))


def llama() -> ModelSpec:
    """Two layers of width 64."""
    small = get("llama_decoder")
    return dataclasses.replace(small, io=_narrowed(_gpu_models.llama_part(), small))


def _narrowed(large: ModelSpec, small: ModelSpec) -> object:
    """The small model's tensors with the large one's dims."""
    return dataclasses.replace(small.io, dims=large.io.dims)
