"""What `attnport gpu-check` measures: two models of usual sizes with random weights, and the shapes of their calls."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnport.dims import Dim
from attnport.models import base as models

if TYPE_CHECKING:
    from attnport.artifacts import ModelSpec

BERT = {"vocabulary": 30522, "width": 768, "heads": 12, "layers": 12, "hidden": 3072}
LLAMA = {"vocabulary": 8192, "width": 2048, "heads": 32, "groups": 4, "layers": 8, "hidden": 5632}
LONGEST = 2048


@dataclass(frozen=True)
class Subject:
    """A model, the calls that are timed, and the profiles of its engines.

    Attributes:
        spec: Its SPEC, which child processes load again.
        grids: The calls, as `bench --shape` takes them.
        checked: Those of them that are cases of `check` too: where an output has some 16 million elements or more,
            NumPy takes seconds to compare it.
        profiles: Optimization profiles, one for each group of calls that want the same kernels.
    """

    name: str
    spec: str
    grids: tuple[str, ...]
    checked: tuple[str, ...]
    profiles: tuple[str, ...]


def bert_base() -> ModelSpec:
    """BERT base (12 layers, width 768) with positions up to 2048."""
    return models.get("bert_encoder", **BERT, positions=LONGEST)


def llama_part() -> ModelSpec:
    """8 of the 22 layers of TinyLlama 1.1B (width 2048, 32 heads in 4 groups), with a vocabulary of 8192.

    Layers are as wide as a model that is used; fewer of them keep the files small enough to build and load in minutes.
    Its usual call is a step, as of `hf:` decoders.
    """
    made = models.get("llama_decoder", **LLAMA)
    dims = (Dim("batch", 1, 1, 8), Dim("seq", 1, 1, 1024), Dim("past", 1, 1024, LONGEST))
    return dataclasses.replace(made, io=dataclasses.replace(made.io, dims=dims))


# Prefill behind a few cached tokens, then decode. The keys, past + seq of them, are a multiple of 8, which some kernels
# need; one call has 513.
_LLAMA_CALLS = ("batch=1,seq=504/1016,past=8", "batch=1,seq=512,past=1", "batch=1/8,seq=1,past=2047")

SUBJECTS = (
    Subject(
        name="bert_encoder",
        spec=f"{__name__}:bert_base",
        grids=("batch=1/8/32,seq=128/512/2048",),
        checked=("batch=1/8/32,seq=128/512", "batch=1/8,seq=2048"),
        profiles=("batch=1:8:32,seq=1:128:128", "batch=1:8:32,seq=129:512:512", "batch=1:8:32,seq=513:2048:2048"),
    ),
    Subject(
        name="llama_decoder",
        spec=f"{__name__}:llama_part",
        grids=(*_LLAMA_CALLS, "batch=8,seq=504,past=8"),
        checked=_LLAMA_CALLS,
        profiles=("batch=1:1:8,seq=2:504:1024,past=1:8:2048", "batch=1:1:8,seq=1,past=1:2047:2048"),
    ),
)
