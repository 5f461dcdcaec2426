"""Modules whose forward takes or returns structures, as users write them. Each factory gives the same module again."""

from __future__ import annotations

import warnings
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

WIDTH, HEADS, VOCAB = 16, 2, 40


class Attend(nn.Module):
    """One attention over a memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def heads(self, x_BTE: torch.Tensor) -> torch.Tensor:
        return x_BTE.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def attend(
        self, q_BHSD: torch.Tensor, k_BHTD: torch.Tensor, v_BHTD: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        keep = None if mask is None else (mask != 0)[:, None, None, :].expand(-1, 1, q_BHSD.shape[2], -1)
        mixed = nn.functional.scaled_dot_product_attention(q_BHSD, k_BHTD, v_BHTD, attn_mask=keep)
        return self.out(mixed.transpose(1, 2).flatten(2))


class DictOut(Attend):
    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.attend(self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x)))
        return {"hidden": hidden, "nothing": None, "pooled": hidden.mean(1), "more": (hidden * 2, [hidden + 1])}


class DictIn(Attend):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = self.words(batch["input_ids"])
        return self.attend(self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x)), batch["mask"])


class Past(Attend):
    def forward(self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor], *, scale: float = 1.0) -> Any:
        k = torch.cat([past[0], self.heads(self.key(x))], 2)
        v = torch.cat([past[1], self.heads(self.value(x))], 2)
        return self.attend(self.heads(self.query(x)) * scale, k, v), past[0] * 2


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor | None = None


@dataclass(frozen=True)
class Result:
    hidden: torch.Tensor
    loss: torch.Tensor | None = None
    steps: int | None = None


class DataIn(Attend):
    def forward(self, batch: Batch) -> Result:
        x = self.words(batch.ids)
        hidden = self.attend(self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x)), batch.mask)
        return Result(hidden)


class Counted(Attend):
    def forward(self, x: torch.Tensor) -> Result:
        return Result(self.out(x), steps=3)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


Loose = namedtuple("Loose", ["sum", "difference"])  # as users write it


class Pairs(Attend):
    def forward(self, pair: Pair, /, *others: torch.Tensor, **named: torch.Tensor) -> Any:
        total = pair.left + sum(others) + named["more"]
        return Loose(self.out(total), self.query(pair.left - pair.right))


class Layers(Attend):
    def forward(self, states: list[torch.Tensor], weights: dict[str, dict[str, torch.Tensor]] | None = None) -> Any:
        assert isinstance(states, list)
        out = self.out(torch.stack(states).mean(0))
        return out if weights is None else out + weights["a"]["b"]


class Opaque:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class OpaqueOut(Attend):
    def forward(self, x: torch.Tensor) -> Any:
        return Opaque(self.out(x))


class Words(Attend):
    def forward(self, x: torch.Tensor) -> Any:
        return "nothing"


dict_out, dict_in, past, data_in, pairs, layers = DictOut, DictIn, Past, DataIn, Pairs, Layers
opaque_out, words, counted = OpaqueOut, Words, Counted


def hooked() -> nn.Module:
    """A module with hooks of its own, which see its own arguments and result."""
    module = DictOut()
    module.register_forward_pre_hook(lambda module, args, kwargs: (args, {"x": kwargs["x"] * 2}), with_kwargs=True)
    module.register_forward_hook(lambda module, args, result: {"pooled": result["pooled"] + 1})
    return module


def compiled() -> Any:
    """What torch.compile returns; nothing is compiled before it is called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports warns about TorchScript
        return torch.compile(DictOut())


def scripted() -> Any:
    """A module without Python code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return torch.jit.trace(nn.Linear(4, 4), torch.zeros(1, 4))
