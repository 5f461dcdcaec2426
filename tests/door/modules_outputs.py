"""Modules whose forward returns more than a tensor: dicts, dataclasses, named tuples, nested ones, None."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from door_blocks import HEADS, VOCAB, WIDTH, Encoder, SelfAttention, hidden_keys, mean_pool
from door_case import door
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput

IDS, MASK = "ids=int64[batch,seq]:high=100", "mask=int64[batch,seq]:padding"


class DictEncoder(Encoder):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        x = super().forward(ids, mask)
        return {"last_hidden_state": x, "pooled": mean_pool(x, mask)}


@door(IDS, MASK)
def dict_output() -> nn.Module:
    torch.manual_seed(1)
    return DictEncoder()


class LibraryOutputEncoder(Encoder):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> BaseModelOutputWithPooling:
        states = [self.embed(ids)]
        for block in self.blocks:
            states.append(block(states[-1], hidden_keys(mask)))
        return BaseModelOutputWithPooling(
            last_hidden_state=states[-1], pooler_output=states[-1][:, 0].tanh(), hidden_states=tuple(states)
        )


@door(IDS, MASK)
def library_output() -> nn.Module:
    torch.manual_seed(1)
    return LibraryOutputEncoder()


@dataclass
class TaggerOutput(ModelOutput):
    logits: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    embeddings: torch.Tensor | None = None


class Tagger(nn.Module):
    """A user's own class of output, as the library's documentation says to write one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(1), nn.Linear(WIDTH, 9)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> TaggerOutput:
        x = self.encoder(ids, mask)
        return TaggerOutput(logits=self.head(x), embeddings=x)


@door(IDS, MASK)
def own_library_output() -> nn.Module:
    torch.manual_seed(1)
    return Tagger()


@dataclass
class Spans:
    start: torch.Tensor
    end: torch.Tensor


class SpanReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(1), nn.Linear(WIDTH, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Spans:
        start, end = self.head(self.encoder(ids, mask)).split(1, dim=-1)
        return Spans(start.squeeze(-1), end.squeeze(-1))


@door(IDS, MASK)
def dataclass_output() -> nn.Module:
    torch.manual_seed(1)
    return SpanReader()


class Scores(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor


class NamedTupleClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(1), nn.Linear(WIDTH, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Scores:
        x = self.encoder(ids, mask)
        return Scores(self.head(x[:, 0]), x)


@door(IDS, MASK)
def named_tuple_output() -> nn.Module:
    torch.manual_seed(1)
    return NamedTupleClassifier()


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.start, self.end = Encoder(1), nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(
        self, ids: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], list[torch.Tensor], None]:
        x = self.encoder(ids)
        return x, (self.start(x), self.end(x)), [x.mean(1), x.amax(1)], None


@door(IDS)
def nested_output() -> nn.Module:
    torch.manual_seed(1)
    return Nested()


class LossOrNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(1), nn.Linear(WIDTH, VOCAB)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        x = self.encoder(ids, mask)
        logits = self.head(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss, logits, x[:, 0]


@door(IDS, MASK)
def none_first() -> nn.Module:
    torch.manual_seed(1)
    return LossOrNone()


@door(IDS, MASK, "labels=int64[batch,seq]:high=100")
def loss_output() -> nn.Module:
    torch.manual_seed(1)
    return LossOrNone()


class AllLayers(Encoder):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> OrderedDict[str, object]:
        states: tuple[torch.Tensor, ...] = ()
        x = self.embed(ids)
        for block in self.blocks:
            states += (x,)
            x = block(x, hidden_keys(mask))
        return OrderedDict(logits=x @ self.embed.weight.T, hidden_states=(*states, x), past=None)


@door(IDS, MASK)
def hidden_states_in_dict() -> nn.Module:
    torch.manual_seed(1)
    return AllLayers()


class WithMaps(nn.Module):
    """Returns the weights of its attentions, as for a plot."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        maps = []
        for layer in self.layers:
            x, weights = layer(x, x, x, average_attn_weights=False)
            maps.append(weights)
        return x, maps


@door("x=float32[batch,seq,32]")
def attention_maps() -> nn.Module:
    torch.manual_seed(1)
    return WithMaps()


class PassesThrough(nn.Module):
    """One output is an input, and two outputs are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.attention(x, hidden_keys(mask))
        return y, mask, y


@door("x=float32[batch,seq,32]", MASK)
def passed_through() -> nn.Module:
    torch.manual_seed(1)
    return PassesThrough()
