"""Plain modules around transformers models: tensors in by name, tensors out by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attnport.sources.sentence import Head

WANTED = ("last_hidden_state", "logits", "pooler_output")


def tensors_of(output: Any) -> dict[str, torch.Tensor]:
    """The tensors of a transformers output that an application uses, by name, without hidden states and caches.

    A pooler's output is left out if there is a last hidden state: its head has random weights unless the checkpoint was
    trained with it.
    """
    named = {name: output[name] for name in WANTED if name in output and isinstance(output[name], torch.Tensor)}
    if "last_hidden_state" in named:
        named.pop("pooler_output", None)
    return named


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
        extra = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        named = tensors_of(self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **extra))
        if self.head is None:
            return named
        if not self.head.embeds:
            return {**named, **self.head.named(named, attention_mask)}
        hidden = named["last_hidden_state"]
        further = self.head.named({"token_embeddings": hidden}, attention_mask, pooled_mask)
        return {"last_hidden_state": hidden, **further}


class VisionModel(nn.Module):
    """A transformers vision model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Images `[B,C,height,width]` to the outputs of `named`, in order."""
        return tuple(self.named(pixel_values).values())

    def named(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Images `[B,C,height,width]` to outputs by name."""
        return tensors_of(self.model(pixel_values=pixel_values, return_dict=True))
