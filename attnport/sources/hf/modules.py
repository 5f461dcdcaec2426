"""How a model of transformers is run in its graph: all of it, a part of it, or one step with its cache.

Each `run_...` takes the model and tensors by name; a `HubModel` is the plain module around one. `make_traceable`
settles what transformers can compute in several ways.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from attnport.dims import TensorSpec
from attnport.errors import UsageError
from attnport.patches import Patch, alone, patched
from attnport.sources.hf.sentence import Head
from attnport.sources.structure import flat_outputs, takes
from attnport_bundle.text import ATTENDED

_LEFT_OUT = re.compile(
    r"loss|.*_loss|loss_dict|(?!last_).*hidden_states?|.*attentions|.*past_key_values|cache_params|.*_cache|mems|states?|"
    r"past_buckets_states|router_logits|.*router_logits|encoder_last_hidden_state|rope_deltas|"
    r"intermediate_.*|init_.*|enc_outputs_.*|encoder_.*logits|denoising_.*|auxiliary_.*|aux_outputs"
)
"""Outputs that an application does not use: what training needs, the insides of layers, and caches."""
ENCODER_MASK = "encoder_attention_mask"
"""What a decoder calls the padding mask of its encoder's tokens."""
OWN, CROSS = ("past_key_{}", "past_value_{}"), ("cross_key_{}", "cross_value_{}")
"""The names of keys and values, by layer: of a decoder's own tokens, and of its encoder's."""
DECODER_IDS, DECODER_MASK = "decoder_input_ids", "decoder_attention_mask"
WINDOW_MASK = "window_mask"
"""The input that says which of the places that layers with a window keep are real, beside layers that keep all."""
POSITIONS = "position_ids"
"""Where the new tokens stand among the real ones."""
CACHE_ARGUMENTS = ("past_key_values", "cache_params", "state")
"""What forwards call their cache."""
WITH_PAST, ENCODER_WITH_PAST = "with-past", "encoder-with-past"
"""What a decoder with its cache, and what its encoder is called among a model's parts."""
TOWERS = {
    "text": ("get_text_features",),
    "vision": ("get_image_features",),
    "audio": ("get_audio_features",),
    "video": ("get_video_features",),
}
"""By part, the methods that run one tower."""
_IDS, _MASK = "input_ids", "attention_mask"
Path = tuple[str | int, ...]
Run = Callable[..., Any]
"""Runs a model, its first argument, on tensors by name, its second; gives tensors by name, or transformers' output."""


def tensors_of(output: Any, own_pooler: bool = False, taken: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """The tensors of a transformers output that an application uses, by name, without hidden states and caches.

    Args:
        taken: Names of inputs; an output of that name gets `_out` behind it.
        own_pooler: The model has a pooler with weights. Its output is left out if there is a last hidden state: its
            head has random weights unless the checkpoint was trained with it.
    """
    usual = [name for name in output if not _LEFT_OUT.fullmatch(name)]
    named: dict[str, torch.Tensor] = {}
    # A model such as MaskFormer without its head has nothing but the last hidden states of its parts.
    for name in usual or [name for name in output if name.endswith("last_hidden_state")]:
        if isinstance(output[name], torch.Tensor | tuple | list):
            named |= flat_outputs({name: output[name]}, taken)
    if "last_hidden_state" in named and own_pooler:
        named.pop("pooler_output", None)
    return named


def has_pooler(model: nn.Module) -> bool:
    """Whether a model has a pooler with weights, which a checkpoint may lack."""
    pooler = getattr(model, "pooler", None)
    return isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters())


def parameters(call: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, in order."""
    return list(inspect.signature(call).parameters)


def accepted(model: Any) -> set[str]:
    """What a model's forward takes."""
    return set(parameters(model.forward))


def run_whole(model: Any, tensors: dict[str, torch.Tensor], **constants: Any) -> Any:
    """All of a model."""
    return model(**tensors, **constants, return_dict=True)


def run_lengthened(model: Any, tensors: dict[str, torch.Tensor], *, run: Run, fewest: int, **constants: Any) -> Any:
    """A model that needs some samples of each item: the mask of one with fewer is taken to keep its first ones."""
    if (mask_BT := tensors.get("attention_mask")) is not None:
        first_T = torch.arange(mask_BT.shape[1], device=mask_BT.device) < fewest
        short_B1 = mask_BT.sum(-1, keepdim=True) < fewest
        tensors = {**tensors, "attention_mask": torch.where(short_B1, first_T.to(mask_BT.dtype), mask_BT)}
    return run(model, tensors, **constants)


def run_decoder(model: Any, tensors: dict[str, torch.Tensor], **constants: Any) -> Any:
    """A model behind its encoder, with the head: what the encoder gave, and its padding mask, are inputs."""
    encoded = encoder_output(tensors.pop("encoder_hidden_states"))
    mask_BS = tensors.pop(ENCODER_MASK, None)
    return behind(model, encoded, mask_BS, **tensors, **constants, return_dict=True)


def encoder_output(hidden_BSD: torch.Tensor, mask_BS: torch.Tensor | None = None) -> Any:
    """Wraps an encoder's hidden states in the output class that its decoder expects; all other fields are None.

    Args:
        mask_BS: Which tokens are no padding; None where the encoder does not say it.
    """
    from transformers.modeling_outputs import MoEModelOutput

    class Output(MoEModelOutput):
        attention_mask = mask_BS

    return Output(last_hidden_state=hidden_BSD.clone())  # Moonshine Streaming adds to it in place


def main_input(model: Any) -> str:
    """What transformers calls the main input of a model, the first one if there are several."""
    said = getattr(model, "main_input_name", "input_ids")
    return said if isinstance(said, str) else str(said[0])


def reads_text(model: Any) -> bool:
    """Whether the encoder of a model reads tokens, each of which becomes one of its own."""
    return main_input(model.get_encoder()) == "input_ids"


def behind(model: Any, encoded: Any, mask_BS: torch.Tensor | None, **given: Any) -> Any:
    """Runs a model behind what its encoder gave.

    Args:
        mask_BS: Which of the encoder's tokens are no padding. The `attention_mask` of a model that reads sound is of
            its samples or frames, so this one is put in place of what the model's decoder is given.
    """
    if mask_BS is None:
        return model(encoder_outputs=encoded, **given)
    if reads_text(model):
        return model(encoder_outputs=encoded, attention_mask=mask_BS, **given)
    with at_decoder(model, lambda given: {**given, ENCODER_MASK: mask_BS}):
        return model(encoder_outputs=encoded, **given)


@contextlib.contextmanager
def at_decoder(model: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """Within it, the decoder inside a model gets what `change` makes of its keywords."""
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, given: (args, change(given)), with_kwargs=True
    )
    try:
        yield
    finally:
        hook.remove()


def run_tower(model: Any, tensors: dict[str, torch.Tensor], *, part: str, **constants: Any) -> dict[str, torch.Tensor]:
    """One tower of a model with several, with its projection: `{part}_features`, not normalised."""
    result = tower_of(model, part)(**tensors, **constants, return_dict=True)
    if isinstance(result, torch.Tensor):
        return {f"{part}_features": result}
    named = dict(result.items())
    if "pooler_output" in named:
        named[f"{part}_features"] = named.pop("pooler_output")
    return named


def tower_of(model: Any, part: str) -> Callable[..., Any]:
    """The method of a model that runs one of its towers."""
    method: Callable[..., Any] = getattr(model, next(name for name in TOWERS[part] if hasattr(model, name)))
    return method


@dataclass(frozen=True)
class Call:
    """How a model is run in its graph.

    Attributes:
        run: Runs it.
        inputs: The names of the tensors, in order.
    """

    run: Run
    inputs: tuple[str, ...]


class HubModel(nn.Module):
    """A model of transformers, or a part of it: tensors by name in, tensors by name out.

    Args:
        head: What sentence-transformers puts behind it.
    """

    def __init__(self, model: nn.Module, run: Run, head: Head | None = None) -> None:
        super().__init__()
        self.model, self.run, self.head = model, run, head

    def named(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors by name to outputs by name."""
        if "bbox" in tensors and not tensors["bbox"].is_floating_point():
            tensors["bbox"] = _upright(tensors["bbox"])
        pooled_mask, attended_mask = tensors.pop("pooled_mask", None), tensors.pop(ATTENDED, None)
        taken, mask = tuple(tensors), tensors.get(_MASK)
        if attended_mask is not None and mask is not None:
            tensors[_MASK] = (mask.to(torch.bool) & attended_mask.to(torch.bool)).to(mask.dtype)
        named = tensors_of(self.run(self.model, tensors), has_pooler(self.model), taken)
        return named if self.head is None or mask is None else self.head.behind(named, mask, pooled_mask)


def module_of(model: nn.Module, call: Call, head: Head | None = None) -> HubModel:
    """A model with a forward that takes the inputs of `call`, by name or in order, and gives what `named` gives."""

    def forward(self: HubModel, *positional: torch.Tensor, **tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.named(**dict(zip(call.inputs, positional, strict=False)), **tensors).values())

    takes(forward, call.inputs)
    kind = type("HubModel", (HubModel,), {"forward": forward})
    made: HubModel = kind(model, call.run, head).eval()
    return made


def _upright(bbox: torch.Tensor) -> torch.Tensor:
    """Boxes with their upper left corner first. Of others, models look up negative widths, which have no row."""
    one, other = bbox[..., :2], bbox[..., 2:]
    return torch.cat([torch.minimum(one, other), torch.maximum(one, other)], -1)


def run_with_cache(
    model: Any, tensors: dict[str, torch.Tensor], *, windows: Sequence[bool] = (False,), most: int | None = None
) -> dict[str, torch.Tensor]:
    """The last token's logits `[batch, vocabulary]`, and each layer's keys and values `[batch, heads, past+seq, D]`.

    Args:
        tensors: `input_ids [batch,seq]`, `attention_mask [batch,past+seq]` unless padding moves the positions, and
            `past_key_0 [batch,heads,past,D]`, ... Where some layers have a window, their caches have `kept` in place of
            `past`, and there is `window_mask [batch,kept+seq]`. Where all have one: `position_ids [batch,seq]`.
        windows: By layer, whether it has a window, where there is a `window_mask`.
        most: The number of positions, where there is a table of them.
    """
    ids_BS, mask_BT = tensors["input_ids"], tensors.get("attention_mask")
    pairs = pairs_of(tensors, OWN)
    masks = cast("Any", mask_BT)
    given: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted(model) else {}
    if POSITIONS in tensors:
        given[POSITIONS] = tensors[POSITIONS]
    else:
        given |= positions(model, mask_BT, pairs[windows.index(False)][0].shape[2], most)
    cache = keys_and_values(pairs)
    if WINDOW_MASK in tensors and mask_BT is not None:
        masks = two_masks(model, windows, cache, ids_BS, mask_BT, tensors[WINDOW_MASK])
    out = model(input_ids=ids_BS, attention_mask=masks, past_key_values=cache, use_cache=True, **given)
    return {"logits": out.logits[:, -1], **present(cache)}


def pairs_of(tensors: Mapping[str, torch.Tensor], names: tuple[str, str]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The keys and values of each layer, by the patterns of their names."""
    key, value = names
    count = sum(name.startswith(key.format("")) for name in tensors)
    return [(tensors[key.format(at)], tensors[value.format(at)]) for at in range(count)]


def present(cache: Any) -> dict[str, torch.Tensor]:
    """A cache's keys and values, as a graph gives them."""
    found: dict[str, torch.Tensor] = {}
    for at, layer in enumerate(cache.layers):
        found |= {f"present_key_{at}": layer.keys, f"present_value_{at}": layer.values}
    return found


def keys_and_values(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """A cache that holds these keys and values, of which any number may be 0."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache, kind = DynamicCache(), cast("Any", DynamicLayer)  # whose constructor has no types
    for keys, values in pairs:
        layer = kind()
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def run_encoder_to_caches(model: Any, tensors: dict[str, torch.Tensor], **constants: Any) -> dict[str, torch.Tensor]:
    """Each decoder layer's keys and values of what the encoder gives, `[batch, heads, seq, D]`.

    Where the encoder's own mask is of another length: also `encoder_attention_mask [batch,seq]`, which of these are no
    padding.

    The decoder is run on one token to make them; the exported graph leaves out what else it computes.
    """
    out = model.get_encoder()(**tensors, **constants, return_dict=True)
    encoded = encoder_output(out.last_hidden_state, getattr(out, _MASK, None))
    ids_B1 = torch.zeros((encoded.last_hidden_state.shape[0], 1), dtype=torch.int64)
    given = {"decoder_input_ids": ids_B1, "use_cache": True}
    given |= {_MASK: tensors[_MASK]} if _MASK in tensors else {}
    seen: dict[str, Any] = {}
    with at_decoder(model, lambda own: seen.update(own) or own) if not reads_text(model) else nullcontext():
        cache = model(encoder_outputs=encoded, **given).past_key_values
    found: dict[str, torch.Tensor] = {}
    if _MASK in tensors and seen.get(ENCODER_MASK) is not None:
        found[ENCODER_MASK] = seen[ENCODER_MASK].to(torch.int64)
    for at, layer in enumerate(cache.cross_attention_cache.layers):
        found |= {CROSS[0].format(at): layer.keys, CROSS[1].format(at): layer.values}
    return found


def run_behind_caches(
    model: Any, tensors: dict[str, torch.Tensor], *, width: int, together: bool = True
) -> dict[str, torch.Tensor]:
    """The last token's logits `[batch, vocabulary]`, and each layer's keys and values `[batch, heads, past+seq, D]`.

    Args:
        tensors: `decoder_input_ids [batch,decoder_seq]`, `past_key_0 [batch,heads,past,D]`, ..., `cross_key_0
            [batch,heads,seq,D]`, ..., and where the decoder takes them, the masks of its own tokens,
            `decoder_attention_mask [batch,past+decoder_seq]`, and of the encoder's, `attention_mask [batch,seq]` or
            `encoder_attention_mask [batch,seq]`.
        width: The features of a token of the encoder.
        together: All new tokens go through in one pass; else one by one, as a decoder needs that leaves its causal
            mask out where there is a cache.
    """
    cross = pairs_of(tensors, CROSS)
    hidden_BSD = cross[0][0].new_zeros((cross[0][0].shape[0], cross[0][0].shape[2], width))
    cache = _cache(pairs_of(tensors, OWN), cross)
    ids_BS, own = tensors[DECODER_IDS], tensors.get(DECODER_MASK)
    mask_BS = tensors.get(_MASK, tensors.get(ENCODER_MASK))
    out: Any = None
    for new_BS in (ids_BS,) if together else torch.split(ids_BS, 1, dim=1):
        seen = cache.get_seq_length() + new_BS.shape[1]
        given = {} if own is None else {DECODER_MASK: own if together else own[:, :seen]}
        out = decode_behind(model, hidden_BSD, new_BS, cache, mask_BS, **given)
    return {"logits": out.logits[:, -1], **present(cache.self_attention_cache)}


def decode_behind(
    model: Any,
    hidden_BSD: torch.Tensor,
    ids_BS: torch.Tensor,
    cache: Any,
    mask_BS: torch.Tensor | None = None,
    **own: torch.Tensor,
) -> Any:
    """The decoder behind what an encoder gave; where the cache has its keys and values, only its sizes are read."""
    given = {"decoder_input_ids": ids_BS, "past_key_values": cache, "use_cache": True, **own}
    return behind(model, encoder_output(hidden_BSD), mask_BS, **given)


def _cache(own: Sequence[tuple[torch.Tensor, torch.Tensor]], cross: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Caches of both attentions, of which that of cross-attention is complete where it holds anything."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    cache: Any = EncoderDecoderCache(keys_and_values(own), DynamicCache())
    # Given in the constructor, its length would be compared with 0, which a graph for every length cannot do.
    cache.cross_attention_cache = keys_and_values(cross)
    cache.is_updated = dict.fromkeys(range(len(cross)), True)
    return cache


def two_masks(
    model: Any, layers: Sequence[bool], cache: Any, ids_BS: torch.Tensor, mask_BT: torch.Tensor, near_BK: torch.Tensor
) -> dict[str, Any]:
    """The masks of attentions to all tokens and to a window, as transformers' own models take them.

    Args:
        layers: Which have the window.
        mask_BT: Which tokens are real, `[batch, past+seq]`.
        near_BK: Which are among the last places and the new ones, `[batch, kept+seq]`.
    """
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    # Of what stands for the tokens' features, only the sizes and the type are read.
    given = {"config": model.config.get_text_config(decoder=True), "past_key_values": cache,
             "inputs_embeds": cache.layers[0].keys.new_empty((*ids_BS.shape, 0))}  # fmt: skip
    return {
        "full_attention": create_causal_mask(
            attention_mask=mask_BT, layer_idx=layers.index(False), allow_is_causal_skip=False, **given
        ),
        "sliding_attention": create_sliding_window_causal_mask(
            attention_mask=near_BK, layer_idx=layers.index(True), allow_is_causal_skip=False, **given
        ),
    }


def run_with_memory(
    model: Any, tensors: dict[str, torch.Tensor], *, memory: Memory, most: int | None = None
) -> dict[str, torch.Tensor]:
    """The last token's logits `[batch, vocabulary]`, and what the model keeps.

    Args:
        tensors: `input_ids [batch,1]`, or `[batch,seq]`; `attention_mask [batch,past+1]`, or `[batch,1]` of a model
            without a cache of every token; and what is kept, by `Kept.name`.
        most: The number of positions, where there is a table of them.
    """
    if memory.has_states and _MASK in tensors and tensors[_IDS].shape[1] > 1:
        return _text_by_text(model, tensors, memory, most)
    ids_BS, mask_BT = tensors[_IDS], tensors.get(_MASK)
    given: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted(model) else {}
    if memory.past is not None:
        name, axis = memory.past
        given[_MASK] = mask_BT
        given |= positions(model, mask_BT, tensors[name].shape[axis], most)
    filled = memory.filled(tensors)
    out = model(input_ids=ids_BS, use_cache=True, **{memory.argument: filled}, **given)
    return {"logits": out.logits[:, -1], **memory.present(filled, out, mask_BT)}


def _text_by_text(
    model: Any, tensors: dict[str, torch.Tensor], memory: Memory, most: int | None
) -> dict[str, torch.Tensor]:
    """One pass over all tokens of texts without a cache, each without its padding, which some models let in."""
    outputs = []
    for row, keep_S in enumerate(tensors[_MASK] != 0):
        first = int(keep_S.int().argmax())
        one = {name: tensor[row : row + 1] for name, tensor in tensors.items() if name != _MASK}
        found = run_with_memory(model, {**one, _IDS: one[_IDS][:, first:]}, memory=memory, most=most)
        for kept in memory.kept:
            if kept.axis is not None:
                tensor = found[f"present_{kept.name}"]
                padding = tensor.new_zeros((*tensor.shape[: kept.axis], first, *tensor.shape[kept.axis + 1 :]))
                found[f"present_{kept.name}"] = torch.cat([padding, tensor], kept.axis)
        outputs.append(found)
    return {name: torch.cat([found[name] for found in outputs]) for name in outputs[0]}


def positions(model: Any, mask_BT: torch.Tensor | None, past: Any, most: int | None) -> dict[str, Any]:
    """The positions of new tokens, which count the real ones alone, for a model that takes them."""
    if POSITIONS not in accepted(model) or mask_BT is None:
        return {}
    positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    if most is not None:
        positions_BT = positions_BT.clamp(max=most - 1)
    return {POSITIONS: positions_BT[:, past:]}


class UnknownCache(Exception):
    """Why what a model keeps cannot be given to it, as the end of a sentence."""


@dataclass(frozen=True)
class Kept:
    """A tensor that a model keeps, `[batch, ...]`.

    Attributes:
        path: The attributes, keys and places that lead to it.
        name: What a graph calls it, behind `past_` and `present_`.
        axis: That of its tokens; None of a state.
        shape: As it is of `_BATCH` texts of `_TOKENS` tokens.
    """

    path: Path
    name: str
    axis: int | None
    shape: tuple[int, ...]
    dtype: str

    def spec(self) -> TensorSpec:
        """The input."""
        dims = ["batch" if at == 0 else "past" if at == self.axis else size for at, size in enumerate(self.shape)]
        return TensorSpec(f"past_{self.name}", self.dtype, tuple(dims))


@dataclass(frozen=True)
class Memory:
    """What a model keeps from one step to the next.

    Attributes:
        argument: The name of the forward's argument for it.
        made: The object that a run returned; the tensors in it that are `kept` are replaced by the graph's inputs.
    """

    argument: str
    made: Any
    kept: tuple[Kept, ...]

    @property
    def has_states(self) -> bool:
        """Whether something is not kept of every token."""
        return any(one.axis is None for one in self.kept)

    @property
    def past(self) -> tuple[str, int] | None:
        """An input with a length, and the axis of it; None if there is none."""
        return next(((f"past_{one.name}", one.axis) for one in self.kept if one.axis is not None), None)

    def filled(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """What the model is given: copies of tensors, as models write into them."""
        return _replaced(self.made, (), {one.path: tensors[f"past_{one.name}"].clone() for one in self.kept})

    def present(self, given: Any, out: Any, mask_BT: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """What the model keeps after a pass, by the names of outputs. States stay zero until a text begins.

        Args:
            mask_BT: Whether tokens are real; the last ones count.
        """
        left = out.get(self.argument, given)
        found = dict(tensors_in(left, ()))
        present: dict[str, torch.Tensor] = {}
        for one in self.kept:
            tensor = found[one.path]
            if one.axis is None and mask_BT is not None:
                real = (mask_BT[:, -1] != 0).reshape(-1, *[1] * (tensor.ndim - 1))
                tensor = torch.where(real, tensor, torch.zeros_like(tensor))
            present[f"present_{one.name}"] = tensor
        return present

    def empty(self, batch: int) -> dict[str, torch.Tensor]:
        """What is kept before the first token, by the names of inputs: nothing, and states of zero."""
        sizes = {"batch": batch, "past": 0}
        specs = (one.spec() for one in self.kept)
        return {spec.name: torch.zeros(spec.shape(sizes), dtype=getattr(torch, spec.dtype)) for spec in specs}


def tensors_in(value: Any, path: Path) -> Iterator[tuple[Path, torch.Tensor]]:
    """The tensors inside, with the paths to them."""
    if isinstance(value, torch.Tensor):
        yield path, value
    for key, part in _parts(value):
        yield from tensors_in(part, (*path, key))


def _replaced(value: Any, path: Path, by: Mapping[Path, torch.Tensor]) -> Any:
    """A copy with tensors replaced; others are copied, as models write into them."""
    if path in by or isinstance(value, torch.Tensor):
        return by[path] if path in by else value.clone()
    parts = {key: _replaced(part, (*path, key), by) for key, part in _parts(value)}
    if not parts:
        return value
    if isinstance(value, list | tuple):
        return type(value)(parts.values())
    if isinstance(value, dict):
        return parts
    copied = copy.copy(value)
    vars(copied).update(parts)
    return copied


def _parts(value: Any) -> list[tuple[str | int, Any]]:
    """What is inside of a list, a dict or a cache."""
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    from transformers import PreTrainedConfig

    own = type(value).__module__.startswith("transformers.") and not isinstance(value, nn.Module | PreTrainedConfig)
    return list(vars(value).items()) if own and hasattr(value, "__dict__") else []


_ENTRIES = re.compile(r"forward|get_\w+_features")
"""The methods by which a model of transformers is run."""


def make_traceable(model: nn.Module) -> None:
    """Chooses, for models of transformers in a module, in place, what can be traced and runs in every precision.

    The numbers that they compute stay the same, but for models whose causal mask was left out, below.

    - Experts are computed one after the other. By default transformers 5 computes them with torch's `grouped_mm`, which
      refuses float64 and so the reference. A trace cannot follow the loop over the experts that were chosen; the
      exporter computes them as `grouped_mm` for as long as it traces
      (https://github.com/huggingface/transformers/pull/42697).
    - Tensors are not kept from one run to the next. One that a trace made, or a run in float64, has no meaning in
      another run.
    - A causal mask is always made where none of the model's attentions calls itself causal. Where no token is padding,
      transformers leaves it out in favour of that flag, so without it (AIMv2's texts) one padded token in a batch
      changes what all others attend to. With eager attention, and in a trace, transformers makes it too. `mask_notes`
      tells the user.

    The last two are functions of transformers' files. They are changed while this module runs, and no longer.
    """
    for part in model.modules():
        part_of_transformers: Any = part
        if getattr(part, "_can_set_experts_implementation", bool)():
            part_of_transformers.set_experts_implementation("eager")
    causal = any(getattr(part, "is_causal", True) for part in model.modules() if hasattr(part, "is_causal"))
    files = {type(part).__module__ for part in model.modules()}
    caches, masks = list[Patch](), _CausalMasks()
    with alone():  # so that no other thread's changes are taken for transformers' own functions
        for file in (sys.modules[name] for name in files if name.startswith("transformers.models.")):
            caches += _without_caches(file)
            masks.patches += () if causal else masks.found(file)
    if caches or masks.patches:
        for part in model.modules():
            # A part may be run by itself, as a tower is.
            if part is model or any(kind.__name__ == "PreTrainedModel" for kind in type(part).__mro__):
                _run_within(part, caches, masks)


def mask_notes(model: nn.Module) -> tuple[str, ...]:
    """What a user should know of causal masks that `make_traceable` has made, of a model that has run since."""
    if not getattr(model, "_causal_masks", _CausalMasks).matter:
        return ()
    return (
        f"where no text has padding, transformers leaves out a causal mask of {type(model).__name__}, so that tokens "
        "see later ones; the graph always has it, as transformers has with attn_implementation='eager'",
    )


def _run_within(part: nn.Module, caches: Sequence[Patch], masks: _CausalMasks) -> None:
    """Has a module run without caches and with masks, by a class of its own with the name of its class."""
    kind = type(part)
    space: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_causal_masks": masks}
    for name in dir(kind):
        if _ENTRIES.fullmatch(name) and inspect.isfunction(getattr(kind, name)):
            space[name] = _within(getattr(kind, name), caches, masks)
    meta: Any = type(kind)
    part.__class__ = meta(kind.__name__, (kind,), space)


def _within(method: Callable[..., Any], caches: Sequence[Patch], masks: _CausalMasks) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            # It reads functions and does not call them: it keeps no tensors, and transformers makes the masks.
            return method(*args, **kwargs)
        with patched(lambda: caches):
            return masks.run(lambda: method(*args, **kwargs))

    return run


def _without_caches(file: Any) -> Iterator[Patch]:
    """Patches of functions and methods of a file that keep their results: the same ones without a cache."""
    classes = [value for value in vars(file).values() if isinstance(value, type) and value.__module__ == file.__name__]
    for scope in (file, *classes):
        for name, function in list(vars(scope).items()):
            # `compile_compatible_method_lru_cache` hides its cache in a closure.
            held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
            if any(isinstance(each, functools._lru_cache_wrapper) for each in (function, *held)):
                yield Patch(scope, name, function.__wrapped__)


class _CausalMasks:
    """Makes the causal masks that a model would leave out, and finds out whether its numbers depend on them.

    Attributes:
        patches: Of the functions that make them.
        matter: Whether the model gives other numbers without them; None before a run that would leave one out.
    """

    matter: bool | None = None
    _running = False
    _left_out = False

    def __init__(self) -> None:
        self.patches: list[Patch] = []

    def found(self, file: Any) -> Iterator[Patch]:
        """Patches of the functions with which a file's models make them."""
        for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
            if (make := vars(file).get(name)) is not None:
                yield Patch(file, name, functools.partial(self._made, make))

    def _made(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        made = make(*args, **{**kwargs, "allow_is_causal_skip": False})  # Doge says so itself
        if self.matter is None and made is not None and made.shape[-1] > 1:
            self._left_out |= make(*args, **kwargs) is None
        return made

    def run(self, compute: Callable[[], Any]) -> Any:
        """Computes with masks, and once without."""
        if self._running:  # a part within the whole
            return compute()
        self._running, self._left_out = True, False
        try:
            with patched(lambda: self.patches):
                result = compute()
            if self._left_out:
                pairs = zip(tree_leaves(result), tree_leaves(compute()), strict=True)
                self.matter = not all(torch.allclose(one, other, 1e-3, 1e-4, True) for one, other in pairs
                                     if isinstance(one, torch.Tensor))  # fmt: skip
        finally:
            self._running = False
        return result


def has_past(model: Any) -> bool:
    """Whether a model generates text from text alone, with a cache."""
    generates = bool(getattr(model, "can_generate", lambda: False)())
    takes = accepted(model)
    caches = bool(takes & {*CACHE_ARGUMENTS})
    return generates and not model.config.is_encoder_decoder and "input_ids" in takes and caches


def has_cross(model: Any) -> bool:
    """Whether a model generates text from what its encoder gives, with a cache."""
    generates = bool(getattr(model, "can_generate", lambda: False)())
    needed = {"past_key_values", "encoder_outputs", DECODER_IDS}
    return generates and bool(getattr(model.config, "is_encoder_decoder", False)) and needed <= accepted(model)


def parts_of(model: Any) -> list[str]:
    """The parts that a model can be taken into."""
    parts = [part for part, methods in TOWERS.items() if any(hasattr(model, method) for method in methods)]
    if getattr(model.config, "is_encoder_decoder", False) and "encoder_outputs" in accepted(model):
        parts = ["encoder", "decoder", *parts]
    if has_cross(model):
        parts = [*parts, ENCODER_WITH_PAST, WITH_PAST]
    return [*parts, WITH_PAST] if has_past(model) else parts


def part_of(place: str, model: Any, part: str) -> tuple[Any, Run]:
    """What is run of a model for a part of it, "" for all of it, and how.

    Raises:
        UsageError: it has no such part; the message lists those that it has.
    """
    parts = parts_of(model)
    if part and part not in parts:
        raise UsageError(
            f"--part {part}: hf:{place}, a {type(model).__name__}, has no such part; it has "
            f"{', '.join(parts) or 'none'}.",
            hint="Name one of these, or leave --part out for the whole model." if parts else "Leave --part out.",
        )
    if part == "encoder":
        return model.get_encoder(), run_whole
    if part in TOWERS:
        return model, functools.partial(run_tower, part=part)
    runs: dict[str, Run] = {
        "": run_whole,
        "decoder": run_decoder,
        ENCODER_WITH_PAST: run_encoder_to_caches,
        WITH_PAST: run_behind_caches if has_cross(model) else run_with_cache,
    }
    return model, runs[part]
