"""Modules whose outputs have other sizes than their inputs: sums, products, quotients, and limits of a table."""

from __future__ import annotations

import math

import torch
from door_blocks import HEADS, WIDTH, Block, Encoder, SelfAttention, mean_pool
from door_case import MORE, door, ten
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as users write it

X, IDS, MASK = "x=float32[batch,seq,32]", "ids=int64[batch,seq]:high=100", "mask=int64[batch,seq]:padding"
FOURS = (12, 4, 8, 16, 20, 32, 64, 28, 76, 128)


class RelativeTable(nn.Module):
    """Returns the scores of all distances, 2 * seq - 1 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.randn(WIDTH // 2))
        self.q = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        distance = torch.arange(-(T - 1), T, device=x.device, dtype=x.dtype)
        angle = distance[:, None] * self.frequencies
        table = torch.cat([angle.sin(), angle.cos()], dim=-1)
        return self.q(x) @ table.T


@door(X)
def relative_table() -> nn.Module:
    torch.manual_seed(4)
    return RelativeTable()


class Patches(nn.Module):
    """(height // 8) * (width // 8) tokens of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.block = Block()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.block(self.patch(image).flatten(2).transpose(1, 2))


IMAGES = ten(
    seq=(),
    height=(32, 8, 16, 24, 40, 64, 9, 80, 31, 48),
    width=(40, 8, 24, 16, 33, 8, 15, 48, 64, 80),
)
IMAGE = ("image=float32[batch,3,height,width]",)


@door(*IMAGE, sizes=IMAGES, dims=("height=8:32:96", "width=8:32:96"))
def patches() -> nn.Module:
    torch.manual_seed(4)
    return Patches()


@door(*IMAGE, sizes=IMAGES)
def patches_open_range() -> nn.Module:
    """The smallest image is one patch, and nobody says so."""
    torch.manual_seed(4)
    return Patches()


class InterpolatedViT(nn.Module):
    """A class token, and a learned grid of positions that is resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.grid = nn.Parameter(torch.randn(1, WIDTH, 4, 4))
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.patch(image)
        h, w = x.shape[-2:]
        x = x + F.interpolate(self.grid, size=(h, w), mode="bilinear", align_corners=False)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], dim=1)
        for block in self.blocks:
            x = block(x)
        return {"tokens": x[:, 1:], "cls": x[:, 0], "all": x}


@door(*IMAGE, sizes=IMAGES, dims=("height=8:32:96", "width=8:32:96"))
def interpolated_vit() -> nn.Module:
    torch.manual_seed(4)
    return InterpolatedViT()


class HalvesLength(nn.Module):
    """Each layer keeps every second token: (seq + 1) // 2, then by pooling seq // 2 of that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x)[:, ::2]
        return x, F.avg_pool1d(self.second(x).transpose(1, 2), 2).transpose(1, 2)


@door(X, sizes=ten(seq=(11, 3, 4, 7, 16, 33, 64, 5, 77, 128)), dims=("seq=3:32:256",))
def halved_length() -> nn.Module:
    torch.manual_seed(4)
    return HalvesLength()


class HeadsInBatch(nn.Module):
    """Folds heads into the batch, as fairseq did; returns the folded keys too."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        B, T, E = x.size()
        fold = (B, T, HEADS, E // HEADS)
        q, k, v = (
            part.reshape(fold).transpose(1, 2).reshape(B * HEADS, T, E // HEADS) for part in self.qkv(x).chunk(3, -1)
        )
        weights = torch.bmm(q * (E // HEADS) ** -0.5, k.transpose(1, 2)).softmax(-1)
        y = torch.bmm(weights, v).view(B, HEADS, T, -1).transpose(1, 2).reshape(B, T, E)
        return self.o(y), k


@door(X)
def heads_in_batch() -> nn.Module:
    torch.manual_seed(4)
    return HeadsInBatch()


class ClassToken(nn.Module):
    """seq + 1 tokens out, the mask lengthened by one."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.cls.repeat(x.size(0), 1, 1), x], dim=1)
        real = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
        return self.layer(x, src_key_padding_mask=real == 0)


@door(X, MASK)
def class_token() -> nn.Module:
    torch.manual_seed(4)
    return ClassToken()


class Table77(Encoder):
    """Positions up to 77, as in CLIP's text tower."""

    def __init__(self) -> None:
        super().__init__(1)
        self.positions = nn.Embedding(77, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.embed(ids) + self.positions(places)
        causal = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        return self.blocks[0](x, causal)


SHORT = ten(seq=(11, 1, 2, 7, 16, 33, 64, 5, 77, 76))


@door(IDS, sizes=SHORT)
def table_of_77() -> nn.Module:
    torch.manual_seed(4)
    return Table77()


class SlicedTable(Encoder):
    """Positions and a causal mask in buffers of 77, sliced to the length."""

    def __init__(self) -> None:
        super().__init__(1)
        self.positions = nn.Parameter(torch.randn(1, 77, WIDTH))
        self.register_buffer("causal", torch.full((77, 77), float("-inf")).triu(1), persistent=False)
        self.causal: torch.Tensor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        T = ids.shape[1]
        x = self.embed(ids) + self.positions[:, :T]
        return self.blocks[0](x, self.causal[:T, :T])


@door(IDS, sizes=SHORT)
def sliced_buffers() -> nn.Module:
    torch.manual_seed(4)
    return SlicedTable()


class Blocked(nn.Module):
    """Attention inside of blocks of four tokens; other lengths are refused by `view`."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, E = x.shape
        blocks = x.view(B, T // 4, 4, E)
        return self.attention(blocks.flatten(0, 1)).view(B, T, E)


@door(X, sizes=ten(seq=FOURS))
def multiple_of_four() -> nn.Module:
    torch.manual_seed(4)
    return Blocked()


class PaddedBlocks(Blocked):
    """Pads to a multiple of four, and cuts that off again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        padded = F.pad(x, (0, 0, 0, (4 - T % 4) % 4))
        B, P, E = padded.shape
        return self.attention(padded.reshape(B * (P // 4), 4, E)).reshape(B, P, E)[:, :T]


@door(X)
def padded_to_blocks() -> nn.Module:
    torch.manual_seed(4)
    return PaddedBlocks()


class Conformer(nn.Module):
    """Two convolutions of stride 2 before attention; lengths are halved with them."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.ReLU()
        )
        self.project = nn.Linear(4 * 20, WIDTH)
        self.block = Block()
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)

    def forward(self, mel: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.front(mel.unsqueeze(1))
        B, C, T, M = x.shape
        x = self.project(x.transpose(1, 2).reshape(B, T, C * M))
        lengths = (((lengths + 1) // 2) + 1) // 2
        real = torch.arange(T)[None, :] < lengths[:, None]
        x = self.block(x, torch.where(real[:, None, None, :], 0.0, -1e9))
        return x + F.silu(self.depthwise(x.transpose(1, 2)).transpose(1, 2)), lengths


@door("mel=float32[batch,seq,80]", "lengths=int64[batch]:padding:lengths")
def conformer() -> nn.Module:
    torch.manual_seed(4)
    return Conformer()


class RawAudio(nn.Module):
    """Convolutions of a waveform without padding, as in wav2vec."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv1d(1, 16, 10, 5), nn.Conv1d(16, WIDTH, 3, 2)])
        self.block = Block()

    def forward(self, samples: torch.Tensor) -> dict[str, torch.Tensor]:
        x = samples[:, None, :]
        x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
        return {"frames": self.block(x.transpose(1, 2))}


WAVES = ten(seq=(), time=(100, 40, 50, 57, 64, 99, 160, 200, 321, 400))


@door("samples=float32[batch,time]", sizes=WAVES, dims=("time=40:160:512",))
def raw_audio() -> nn.Module:
    torch.manual_seed(4)
    return RawAudio()


class LocalWindows(nn.Module):
    """Each token sees three on both sides, by unfold."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unsqueeze(2)
        k, v = (F.pad(part, (0, 0, 3, 3)).unfold(1, 7, 1) for part in (self.k(x), self.v(x)))
        seen = F.pad(torch.ones(1, x.shape[1]), (3, 3)).unfold(1, 7, 1).unsqueeze(2)
        scores = (q @ k / math.sqrt(WIDTH)).masked_fill(seen == 0, float("-inf"))
        return (scores.softmax(-1) @ v.transpose(-1, -2)).squeeze(2)


@door(X)
def local_windows() -> nn.Module:
    torch.manual_seed(4)
    return LocalWindows()


class Swin(nn.Module):
    """Windows of 4 by 4, shifted by two with `roll`; the image is a multiple of four."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = SelfAttention(), nn.LayerNorm(WIDTH)

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        B, H, W, E = x.shape
        cut = x.view(B, H // 4, 4, W // 4, 4, E).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, E)
        y = self.attention(self.norm(cut)).view(B, H // 4, W // 4, 4, 4, E)
        return y.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, E)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.windows(x)
        shifted = torch.roll(x, shifts=(-2, -2), dims=(1, 2))
        return x + torch.roll(self.windows(shifted), shifts=(2, 2), dims=(1, 2))


GRID = ten(seq=(), height=(8, 4, 12, 16, 4, 20, 8, 24, 4, 8), width=(12, 4, 8, 16, 24, 4, 8, 12, 8, 20))


@door("x=float32[batch,height,width,32]", sizes=GRID)
def swin() -> nn.Module:
    torch.manual_seed(4)
    return Swin()


class Perceiver(nn.Module):
    """Eight latents read any number of tokens; then tokens read the latents."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(8, WIDTH))
        self.read, self.write = SelfAttention(), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        latents = self.latents.unsqueeze(0).expand(x.shape[0], 8, WIDTH)
        latents = self.read(latents, (1 - mask[:, None, None].float()) * -1e9, memory=x)
        return latents, self.write(x, latents, latents, need_weights=False)[0]


@door(X, MASK)
def perceiver() -> nn.Module:
    torch.manual_seed(4)
    return Perceiver()


class Chunks(nn.Module):
    """Pooled chunks of a document: [batch, chunk, seq] ids become [batch, chunk] vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.attention = Encoder(1), SelfAttention()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        B, C, T = ids.shape
        x = mean_pool(self.encoder(ids.view(B * C, T), mask.view(B * C, T)), mask.view(B * C, T))
        return self.attention(x.view(B, C, -1))


@door("ids=int64[batch,chunk,seq]:high=100", "mask=int64[batch,chunk,seq]", sizes=ten(seq=MORE, chunk=MORE[::-1]))
def chunks() -> nn.Module:
    torch.manual_seed(4)
    return Chunks()
