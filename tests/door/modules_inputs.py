"""Modules whose forward takes more than tensors by position: tuples, lists, dicts, options, keywords."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from door_blocks import WIDTH, Encoder, SelfAttention, hidden_keys, mean_pool
from door_case import MORE, door, ten
from torch import nn

IDS, MASK = "ids=int64[batch,seq]:high=100", "mask=int64[batch,seq]:padding"


class Fuses(nn.Module):
    """Attends to two memories, given as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()

    def forward(self, x: torch.Tensor, memories: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        near, far = memories
        return x + self.attention(x, memory=near) + self.attention(x, memory=far)


@door(
    "x=float32[batch,seq,32]",
    "memories_0=float32[batch,near,32]",
    "memories_1=float32[batch,far,32]",
    sizes=ten(near=MORE, far=MORE[::-1]),
    nest=lambda given: {"x": given["x"], "memories": (given["memories_0"], given["memories_1"])},
)
def tuple_input() -> nn.Module:
    torch.manual_seed(2)
    return Fuses()


class Levels(nn.Module):
    """A list of feature maps of several resolutions, flattened to one sequence, as in a detector."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Conv2d(channels, WIDTH, 1) for channels in (8, 16))
        self.level = nn.Parameter(torch.randn(2, WIDTH))
        self.attention = SelfAttention()

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        maps = [layer(x).flatten(2).transpose(1, 2) for layer, x in zip(self.inputs, features, strict=True)]
        x = torch.cat([x + self.level[at] for at, x in enumerate(maps)], dim=1)
        return self.attention(x)


@door(
    "features_0=float32[batch,8,h0,w0]",
    "features_1=float32[batch,16,h1,w1]",
    sizes=ten(
        seq=(),
        h0=(6, 1, 2, 8, 5, 3, 4, 9, 7, 10),
        w0=(5, 1, 4, 8, 3, 6, 2, 7, 9, 4),
        h1=(3, 1, 2, 4, 5, 2, 6, 1, 3, 5),
        w1=(4, 1, 3, 2, 5, 6, 1, 3, 2, 4),
    ),
    nest=lambda given: {"features": [given["features_0"], given["features_1"]]},
)
def list_input() -> nn.Module:
    torch.manual_seed(2)
    return Levels()


class TakesBatch(nn.Module):
    """Takes the batch as the data loader gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return mean_pool(self.encoder(batch["ids"], batch["mask"]), batch["mask"])


@door(
    "batch_ids=int64[batch,seq]:high=100",
    "batch_mask=int64[batch,seq]:padding",
    nest=lambda given: {"batch": {"ids": given["batch_ids"], "mask": given["batch_mask"]}},
)
def dict_input() -> nn.Module:
    torch.manual_seed(2)
    return TakesBatch()


class KeywordOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(1)

    def forward(self, *, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(ids, mask)


@door(IDS, MASK)
def keyword_only() -> nn.Module:
    torch.manual_seed(2)
    return KeywordOnly()


class Options(nn.Module):
    """Inputs that may be left out, and flags that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.kinds = Encoder(1), nn.Embedding(2, WIDTH)

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor | None = None,
        kinds: torch.Tensor | None = None,
        scale: float = 1.0,
        pool: bool = False,
    ) -> torch.Tensor:
        x = self.encoder(ids, mask) * scale
        if kinds is not None:
            x = x + self.kinds(kinds)
        return x.mean(1) if pool else x


@door(IDS)
def optional_left_out() -> nn.Module:
    torch.manual_seed(2)
    return Options()


@door(IDS, "kinds=int64[batch,seq]:high=2")
def optional_skipped() -> nn.Module:
    torch.manual_seed(2)
    return Options()


class TakesKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(1)

    def forward(self, ids: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        return self.encoder(ids, inputs.get("mask"))


@door(IDS, MASK, shapes=lambda given: {"ids": given["ids"], "inputs": {"mask": given["mask"]}})
def keywords_input() -> nn.Module:
    torch.manual_seed(2)
    return TakesKeywords()


class Streams(nn.Module):
    """Any number of streams of one width, by position."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()

    def forward(self, *streams: torch.Tensor) -> torch.Tensor:
        return self.attention(torch.cat(streams, dim=1))


@door(
    "streams_0=float32[batch,left,32]",
    "streams_1=float32[batch,right,32]",
    sizes=ten(seq=(), left=(5, 1, 2, 8, 4, 3, 16, 7, 30, 9), right=(7, 1, 3, 2, 9, 5, 4, 11, 20, 6)),
    nest=lambda given: (given["streams_0"], given["streams_1"]),
    shapes=lambda given: ((given["streams_0"], given["streams_1"]),),
)
def positional_input() -> nn.Module:
    torch.manual_seed(2)
    return Streams()


class Batch(NamedTuple):
    ids: torch.Tensor
    mask: torch.Tensor


class TakesNamedTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(1)

    def forward(self, data: Batch) -> torch.Tensor:
        return self.encoder(data.ids, data.mask)


@door(
    "data_ids=int64[batch,seq]:high=100",
    "data_mask=int64[batch,seq]:padding",
    nest=lambda given: {"data": Batch(given["data_ids"], given["data_mask"])},
)
def named_tuple_input() -> nn.Module:
    torch.manual_seed(2)
    return TakesNamedTuple()


class OddNames(nn.Module):
    """Its input is called `output`, and the other one as a built-in function."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()

    def forward(self, output: torch.Tensor, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return self.attention(output, memory=input)


@door("output=float32[batch,seq,32]", "input=float32[batch,other,32]", sizes=ten(other=MORE))
def odd_names() -> nn.Module:
    torch.manual_seed(2)
    return OddNames()


class Temperature(nn.Module):
    """A temperature without dims."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(1)

    def forward(self, ids: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        logits = self.encoder(ids) @ self.encoder.embed.weight.T
        return (logits / temperature.clamp(min=0.1)).log_softmax(-1)


@door(IDS, "temperature=float32[]")
def scalar_input() -> nn.Module:
    torch.manual_seed(2)
    return Temperature()


class IgnoresSome(nn.Module):
    """Takes what the tokenizer gives and does not use all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(1)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return mean_pool(self.encoder(ids, mask), mask)


@door(IDS, "kinds=int64[batch,seq]:high=2", MASK)
def unused_input() -> nn.Module:
    torch.manual_seed(2)
    return IgnoresSome()


class Mixed(nn.Module):
    """Images and text in a nested dict, one of them left out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.patches = Encoder(1), nn.Linear(48, WIDTH)
        self.attention = SelfAttention()

    def forward(self, text: dict[str, torch.Tensor], vision: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
        x = self.encoder(text["ids"], text["mask"])
        if vision is not None:
            seen = self.patches(vision["patches"])
            x = self.attention(torch.cat([seen, x], dim=1), hidden_keys(text["mask"].new_ones(1, 1)))
        return {"tokens": x, "pooled": x.mean(1)}


@door(
    "text_ids=int64[batch,seq]:high=100",
    "text_mask=int64[batch,seq]:padding",
    "vision_patches=float32[batch,patch,48]",
    sizes=ten(patch=MORE),
    nest=lambda given: {
        "text": {"ids": given["text_ids"], "mask": given["text_mask"]},
        "vision": {"patches": given["vision_patches"]},
    },
)
def nested_dict_input() -> nn.Module:
    torch.manual_seed(2)
    return Mixed()
