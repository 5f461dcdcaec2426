"""Decoders of transformers whose cache is of another kind than keys and values: states, and what else they keep.

A state has one size whatever it is of, and transformers computes a prompt and a step by different code. So the graph of
a model with states takes one token at a time, also those of a prompt. What keeps every token is one graph for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnport.dims import Dim, TensorSpec
from attnport.errors import first_line
from attnport.masks import MaskSpec
from attnport.sources.hf_memory import Memory, NoMemory
from attnport.sources.hf_modules import accepted

if TYPE_CHECKING:
    import torch

MEMORY = "memory"
"""The constant that says what a model keeps."""
POSITIONS = "position_ids"
"""Where the new tokens stand among the real ones."""
_IDS, _MASK = "input_ids", "attention_mask"
_NEAR = 1e-3
"""How far scores may be from those of one pass, in standard deviations of them: less than any fault makes."""


def remembering(model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The last token's logits `[batch, vocabulary]`, and what the model keeps.

    Args:
        tensors: `input_ids [batch,1]`, or `[batch,seq]`; `attention_mask [batch,past+1]`, or `[batch,1]` of a model
            without a cache of every token; and what is kept, by `Kept.name`.
        constants: `MEMORY`, and `positions`, where a table has so many.
    """
    memory: Memory = constants[MEMORY]
    if memory.has_states and _MASK in tensors and tensors[_IDS].shape[1] > 1:
        return _text_by_text(model, tensors, constants)
    ids_BS, mask_BT = tensors[_IDS], tensors.get(_MASK)
    given: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted(model) else {}
    if memory.past is not None:
        name, axis = memory.past
        given[_MASK] = mask_BT
        given |= positions(model, mask_BT, tensors[name].shape[axis], constants)
    filled = memory.filled(tensors)
    out = model(input_ids=ids_BS, use_cache=True, **{memory.argument: filled}, **given)
    return {"logits": out.logits[:, -1], **memory.present(filled, out, mask_BT)}


def _text_by_text(
    model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """One pass over all tokens of texts without a cache, each without its padding, which some models let in."""
    import torch

    memory: Memory = constants[MEMORY]
    outputs = []
    for row, keep_S in enumerate(tensors[_MASK] != 0):
        first = int(keep_S.int().argmax())
        one = {name: tensor[row : row + 1] for name, tensor in tensors.items() if name != _MASK}
        found = remembering(model, {**one, _IDS: one[_IDS][:, first:]}, constants)
        for kept in memory.kept:
            if kept.axis is not None:
                tensor = found[f"present_{kept.name}"]
                padding = tensor.new_zeros((*tensor.shape[: kept.axis], first, *tensor.shape[kept.axis + 1 :]))
                found[f"present_{kept.name}"] = torch.cat([padding, tensor], kept.axis)
        outputs.append(found)
    return {name: torch.cat([found[name] for found in outputs]) for name in outputs[0]}


def positions(model: Any, mask_BT: torch.Tensor | None, past: Any, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The positions of new tokens, which count the real ones alone, for a model that takes them."""
    if POSITIONS not in accepted(model) or mask_BT is None:
        return {}
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    if "positions" in constants:
        positions_BT = positions_BT.clamp(max=constants["positions"] - 1)
    return {POSITIONS: positions_BT[:, past:]}


def inputs_of(
    ids: TensorSpec, memory: Memory, masks: Sequence[MaskSpec], longest: int, *, masked: bool
) -> tuple[list[TensorSpec], tuple[Dim, ...], list[MaskSpec]]:
    """The inputs, dims and masks of a model that keeps more than keys and values.

    Args:
        ids: The tokens of a text.
        masks: Those of a pass over whole texts.
        longest: The most tokens of a text.
        masked: Whether texts may be padded.
    """
    new = 1 if memory.has_states else "seq"
    dims = [Dim("batch", 1, 1, 64)]
    half = longest if memory.has_states else max(1, longest // 2)
    dims += [] if memory.has_states else [Dim("seq", 1, 1, half)]
    dims += [Dim("past", 0, min(128, half), max(1, half - memory.has_states))] if memory.past else []
    inputs = [dataclasses.replace(ids, dims=("batch", new))]
    behind = [dataclasses.replace(mask, alignment="lower_right") for mask in masks if not mask.input and memory.past]
    if masked:
        inputs.append(TensorSpec(_MASK, "int64", ("batch", f"past+{new}" if memory.past else new), high=2))
        behind += [mask for mask in masks if mask.input]
    return [*inputs, *(one.spec() for one in memory.kept)], tuple(dims), behind


def takes_padding(model: Any, memory: Memory, vocab: int) -> bool:
    """Whether texts may be padded at the left, by running two of them as they are generated.

    Raises:
        NoMemory: without padding, too, a pass over all tokens gives something else; or the model needs more than was
            found of what it keeps.
    """
    import torch

    ids_BS, begins = (torch.arange(12).reshape(2, 6) * 5 + 3) % vocab, (0, 2)
    mask_BS = torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    steps = range(6) if memory.has_states else (2, 3, 4, 5)
    with torch.no_grad():
        wanted = [model(input_ids=row[None, begin:], use_cache=False).logits[0, -1]
                  for row, begin in zip(ids_BS, begins, strict=True)]  # fmt: skip
        kept, start = memory.empty(2), 0
        for step in steps:
            whole = {_IDS: ids_BS[:, start : step + 1], _MASK: mask_BS[:, (0 if memory.past else start) : step + 1]}
            try:
                found = remembering(model, {**whole, **kept}, {MEMORY: memory})
            except Exception as err:  # transformers raises whatever it likes where a cache lacks something
                raise NoMemory(f"it does not go on with what its cache was found to hold: {first_line(err)}") from err
            kept = {name: found[name.replace("past_", "present_", 1)] for name in kept}
            start = step + 1
    far = [float((got - one).abs().max() / one.std()) for got, one in zip(found["logits"], wanted, strict=True)]
    if not far[0] <= _NEAR:
        raise NoMemory(f"token by token it gives other scores than in one pass, by {far[0]:.0e} of their spread")
    return far[1] <= _NEAR
