"""Plain modules around transformers models: tensors in by name, tensors out by name."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from attnport.sources.sentence import Head
from attnport.sources.structure import flat_outputs

_LEFT_OUT = re.compile(
    r"loss|.*_loss|loss_dict|(?!last_).*hidden_states?|.*attentions|.*past_key_values|cache_params|.*_cache|mems|states?|"
    r"past_buckets_states|router_logits|.*router_logits|encoder_last_hidden_state|rope_deltas|"
    r"intermediate_.*|init_.*|enc_outputs_.*|encoder_.*logits|denoising_.*|auxiliary_.*|aux_outputs"
)
"""Outputs that an application does not use: what training needs, the insides of layers, and caches."""
ENCODER_MASK = "encoder_attention_mask"
"""What a decoder calls the padding mask of its encoder's tokens."""


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


def accepted(model: Any) -> set[str]:
    """What a model's forward takes."""
    return set(inspect.signature(model.forward).parameters)


class TextModel(nn.Module):
    """A transformers text model, with what comes behind it in a sentence-transformers folder, if anything does.

    Attributes:
        pools_some: Whether `pooled_mask` is an input: the tokens that are pooled, without those of a prompt.
    """

    def __init__(self, model: nn.Module, head: Head | None = None) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.pools_some = head is not None and head.pooled_mask

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        pooled_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Token ids and masks `[B,T]` to the outputs of `named`, in order."""
        return tuple(self.named(input_ids, attention_mask, token_type_ids, pooled_mask).values())

    def named(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        pooled_mask: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Token ids and masks `[B,T]` to outputs by name."""
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tensors["token_type_ids"] = token_type_ids
        named = tensors_of(self.model(**tensors, return_dict=True), has_pooler(self.model), tensors)
        if self.head is None:
            return named
        if not self.head.embeds:
            return {**named, **self.head.named(named, attention_mask)}
        hidden = named["last_hidden_state"]
        further = self.head.named({"token_embeddings": hidden}, attention_mask, pooled_mask)
        return {"last_hidden_state": hidden, **further}


def whole(model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]) -> Any:
    """All of a model."""
    return model(**tensors, **constants, return_dict=True)


def decoder(model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]) -> Any:
    """A model behind its encoder, with the head: what the encoder gave, and its padding mask, are inputs."""
    encoded = encoder_output(tensors.pop("encoder_hidden_states"))
    mask_BS = tensors.pop(ENCODER_MASK, None)
    return behind(model, encoded, mask_BS, **tensors, **constants, return_dict=True)


def encoder_output(hidden_BSD: torch.Tensor, mask_BS: torch.Tensor | None = None) -> Any:
    """What an encoder gives, as its decoder takes it, also one that asks for more: there is no more.

    Args:
        mask_BS: Which of its tokens are no padding, of an encoder that says so.
    """
    from transformers.modeling_outputs import MoEModelOutput

    class Output(MoEModelOutput):
        attention_mask = mask_BS

    return Output(last_hidden_state=hidden_BSD)


def reads_text(model: Any) -> bool:
    """Whether the encoder of a model reads tokens, each of which becomes one of its own."""
    return str(getattr(model.get_encoder(), "main_input_name", "input_ids")) == "input_ids"


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


def tower(modality: str, name: str) -> Callable[..., Any]:
    """One tower of a model with several, with its projection: `{modality}_features`, not normalised."""

    def call(model: Any, tensors: dict[str, torch.Tensor], constants: Mapping[str, Any]) -> Any:
        result = getattr(model, name)(**tensors, **constants, return_dict=True)
        if isinstance(result, torch.Tensor):
            return {f"{modality}_features": result}
        named = dict(result.items())
        if "pooler_output" in named:
            named[f"{modality}_features"] = named.pop("pooler_output")
        return named

    return call


class Kind(nn.Module):
    """A transformers model of any kind: tensors by keyword in, a tuple of tensors out, in the order of `named`.

    Attributes:
        least: The fewest samples of an item; the mask of one with fewer is taken to keep its first ones.
    """

    def __init__(self, model: nn.Module, call: Callable[..., Any] = whole, **constants: Any) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.constants = constants
        self.least = 0

    def named(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors by name to outputs by name."""
        if "bbox" in tensors and not tensors["bbox"].is_floating_point():
            tensors["bbox"] = _upright(tensors["bbox"])
        if self.least and "attention_mask" in tensors:
            tensors["attention_mask"] = _at_least(self.least, tensors["attention_mask"])
        taken = tuple(tensors)
        return tensors_of(self.call(self.model, tensors, self.constants), has_pooler(self.model), taken)


def with_inputs(kind: Kind, names: Sequence[str]) -> nn.Module:
    """`kind` with a forward that takes the tensors called `names`."""

    def forward(self: Kind, *positional: torch.Tensor, **tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.named(**dict(zip(names, positional, strict=False)), **tensors).values())

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # torch.export binds by it
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    )
    kind.__class__ = type("Kind", (Kind,), {"forward": forward})
    return kind


def _at_least(least: int, mask_BT: torch.Tensor) -> torch.Tensor:
    first_T = torch.arange(mask_BT.shape[1], device=mask_BT.device) < least
    short_B1 = mask_BT.sum(-1, keepdim=True) < least
    return torch.where(short_B1, first_T.to(mask_BT.dtype), mask_BT)


def _upright(bbox: torch.Tensor) -> torch.Tensor:
    """Boxes with their upper left corner first. Of others, models look up negative widths, which have no row."""
    one, other = bbox[..., :2], bbox[..., 2:]
    return torch.cat([torch.minimum(one, other), torch.maximum(one, other)], -1)
