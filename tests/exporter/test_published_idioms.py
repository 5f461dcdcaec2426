"""Code that published modules are written with, and that torch's trace alone stops at or makes constants of."""

from __future__ import annotations

import functools
import math
import sys
import types
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as attend

import attnport
from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import ExportError
from attnport.exporter import capture
from attnport.exporter.named_axes import aligned, named_axes
from attnport.exporter.storage import save_exported

DIMS = (Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512))
SIDES = (Dim("height", 1, 128, 512), Dim("width", 1, 128, 512))
IDS = TensorSpec("ids", "int64", ("batch", "seq"), high=9)
IMAGE = TensorSpec("image", "float32", ("batch", 8, "height", "width"))
STRIP = TensorSpec("image", "float32", (2, 8, "height", 8))


class Words(nn.Module):
    """Embedded ids, of which 1 is padding."""

    inputs, dims = (IDS,), DIMS

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class LeavesOutAMask(Words):
    """As fairseq's layers and ESM."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)[:, None]
        padding: torch.Tensor | None = ids.eq(1)
        if not padding.any():
            padding = None
        return attend(x, x, x, attn_mask=None if padding is None else ~padding[:, None, None])


class LeavesOutAFullMask(Words):
    """The same by `all`, whose answer is read as a number."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)[:, None]
        kept = ids != 1
        mask = None if torch.all(kept).item() else kept[:, None, None]
        return attend(x, x, x, attn_mask=mask)


class ChecksValues(Words):
    """A check that raises where some values are wrong."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if torch.isnan(x).any():
            raise ValueError("not a number")
        return attend(x, x, x)


class CausalUnlessOne(Words):
    """As Whisper's decoder."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)[:, None]
        return attend(x, x, x, is_causal=ids.shape[1] > 1)


class RangeOfPositions(Words):
    """As Enformer's positions, which decay over a range that grows with the length."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        rates = 2 ** torch.linspace(1.0, math.log(ids.shape[1]) / math.log(2.0), 8)
        return attend(x * rates, x, x)


class SpacedPositions(Words):
    """As Perceiver's positions."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) * torch.linspace(-1.0, 1.0, steps=ids.shape[1])[:, None]
        return attend(x, x, x)


class PadsToWindows(Words):
    """As local-attention, whose windows also see the one before them; the padding is what a quotient lacks."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        length, parts = x.shape[1], x.shape[1] / 4
        if not parts.is_integer():
            x = functional.pad(x, (0, 0, 0, math.ceil(parts) * 4 - length))
        own = x.unflatten(1, (-1, 4))
        seen = functional.pad(own, (0, 0, 0, 0, 1, 0)).unfold(1, 2, 1).movedim(-1, 2).flatten(2, 3)
        return attend(own, seen, seen).flatten(1, 2)[:, :length]


class MeansOfSlots(Words):
    """As soft-moe-pytorch, which makes a mask where it pads, and a mean of what is not padded."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        shown, rest = torch.ones(x.shape[:2], dtype=torch.bool), -x.shape[1] % 4
        if rest:
            x, shown = functional.pad(x, (0, 0, 0, rest)), functional.pad(shown, (0, rest), value=False)
        kept = shown.unflatten(1, (-1, 4))[..., None]
        slots = x.unflatten(1, (-1, 4)).masked_fill(~kept, 0).sum(2) / kept.sum(2).clamp(min=1)
        scores = (x @ slots.mT).masked_fill(~shown[..., None], -torch.finfo(x.dtype).max)
        return (scores.softmax(1).mT @ x) * scores.softmax(1).amax(1)[..., None]


class SlopesOfHeads(Words):
    """As x-transformers: distances times a slope for each head, and fewer heads of keys."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k = x.unflatten(-1, (4, 2)).transpose(1, 2), x[..., :4].unflatten(-1, (2, 2)).transpose(1, 2)
        at = torch.arange(x.shape[1])
        slopes = torch.tensor([2.0 ** -(2 * head + 1) for head in range(4)])[:, None, None]
        bias = -(at[None, :] - at[:, None]).abs() * slopes
        hidden = torch.ones(len(at), len(at), dtype=torch.bool).triu(1)
        k = k.repeat_interleave(2, dim=1)
        return attend(q, k, k, attn_mask=bias.masked_fill(hidden, -torch.finfo(x.dtype).max)).transpose(1, 2).flatten(2)


class Retains(Words):
    """As yet-another-retnet: powers of a decay in place of a softmax."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        at = torch.arange(x.shape[1], dtype=x.dtype)
        distance = at[:, None] - at[None, :]
        decay = torch.tensor([0.9, 0.7])[:, None, None] ** distance.masked_fill(distance < 0, math.inf)
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        scores = torch.einsum("bhnd,bhmd->bhnm", q, q) * decay
        return (scores @ q / scores.abs().sum(-1, keepdim=True).clamp(min=1)).transpose(1, 2).flatten(2)


class SumsOfKeys(Words):
    """As kornia's LoFTR: attention without scores, whose values are divided by their number."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids).unflatten(-1, (2, 4))
        q, length = functional.elu(x) + 1, x.size(1)
        kv = torch.einsum("nshd,nshv->nhdv", q, x / length)
        each = 1 / (torch.einsum("nlhd,nhd->nlh", q, q.sum(dim=1)) + 1e-6)
        return torch.einsum("nlhd,nhdv,nlh->nlhv", q, kv, each) * length


class LayersOfTorch(Words):
    """As gluonts and joeynmt, by layers of torch, whose fast path is one operator, and their causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        found: torch.Tensor = self.layers(self.words(ids), mask=mask)
        return found


class CountsWhatIsShown(Words):
    """As ESM-1b of fair-esm: a position is the number of words up to it, from the padding's own number on."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shown = ids.ne(1).int()
        at = (torch.cumsum(shown, dim=1).type_as(shown) * shown).long() + 1
        return attend(x := self.words(ids) + at[..., None], x, x)


class TiedRows(nn.Module):
    """As the MSA transformer of fair-esm: rows share scores, which are divided by the root of their number."""

    inputs = (TensorSpec("x", "float32", ("batch", "rows", "seq", 8)),)
    dims = (*DIMS, Dim("rows", 1, 8, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("brid,brjd->bij", x, x) / math.sqrt(x.shape[1])
        return torch.einsum("bij,brjd->brid", scores.softmax(-1), x)


class ShiftedWindows(nn.Module):
    """As Swin of torchvision: whole windows by padding, rolled, and a mask that is written in parts."""

    inputs, dims = (STRIP,), (*DIMS[:1], *SIDES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = functional.pad(image, (0, -image.shape[3] % 4, 0, -image.shape[2] % 4)).movedim(1, -1)
        batch, height, width, size = x.shape
        mask, count = x.new_zeros((height, width)), 0
        for rows in ((0, -4), (-4, -2), (-2, None)):
            for columns in ((0, -4), (-4, -2), (-2, None)):
                mask[rows[0] : rows[1], columns[0] : columns[1]] = count
                count += 1
        parts = mask.view(height // 4, 4, width // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
        x = torch.roll(x, (-2, -2), (1, 2)).view(batch, height // 4, 4, width // 4, 4, size)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch, -1, 16, size)
        bias = (parts[:, None] - parts[:, :, None]).ne(0) * -100.0
        x = attend(x, x, x, attn_mask=bias[None]).view(batch, height // 4, width // 4, 4, 4, size)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, size)
        return torch.roll(x, (2, 2), (1, 2))[:, : image.shape[2], : image.shape[3]]


class AcrossChannels(nn.Module):
    """As XCiT of timm: scores of channels, over all pixels, of rows of length one."""

    inputs, dims = (IMAGE,), (*DIMS[:1], *SIDES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        q = functional.normalize(x := image.flatten(2), dim=-1)
        return ((q @ q.mT * 3).softmax(-1) @ x).reshape(image.shape)


class ResizedTable(nn.Module):
    """As timm's vision transformers of any size, whose table of positions is resized."""

    inputs, dims = (IMAGE,), (*DIMS[:1], *SIDES)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(1, 8, 4, 4))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        table = functional.interpolate(self.table, size=image.shape[2:], mode="bicubic", antialias=True)
        return attend(x := (image + table).flatten(2).mT, x, x)


class PlacesOfWindows(nn.Module):
    """As the picture encoder of segment-anything: windows, with a bias for rows and one for columns."""

    inputs, dims = (STRIP,), (*DIMS[:1], *SIDES)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(7, 8))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        high, wide = ((4 - size % 4) % 4 for size in image.shape[2:])
        x = functional.pad(image.movedim(1, -1), (0, 0, 0, wide, 0, high))
        batch, height, width, _ = x.shape
        x = x.view(batch, height // 4, 4, width // 4, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 8)
        at = torch.arange(4)[:, None] - torch.arange(4)[None] + 3
        q = x.view(-1, 4, 4, 8)
        rows, columns = (torch.einsum(by, q, self.table[at]) for by in ("bhwc,hkc->bhwk", "bhwc,wkc->bhwk"))
        bias = (rows[..., None] + columns[..., None, :]).flatten(3).flatten(1, 2)
        x = attend(x, x, x, attn_mask=bias).view(batch, height // 4, width // 4, 4, 4, 8)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, 8)[:, : image.shape[2], : image.shape[3]]


class Areas(nn.Module):
    """As the area attention of ultralytics: all pixels, in four parts."""

    inputs = (IMAGE,)
    dims = (*DIMS[:1], Dim("height", 4, 16, 64, 4), Dim("width", 1, 16, 64))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, size, height, width = image.shape
        x = image.flatten(2).mT.reshape(batch * 4, height * width // 4, size)
        return attend(x, x, x).reshape(batch, height, width, size)


class Squeezed(Words):
    """As iTransformer of gluonts: a squeeze that names no axis."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        scale = x.abs().mean((0, 2), keepdim=True).squeeze()
        return attend(x * scale[..., None], x, x)


class OverEdges(nn.Module):
    """As GATConv of torch-geometric: a softmax over the edges that lead to one node."""

    inputs = (TensorSpec("x", "float32", ("batch", 8)), TensorSpec("edges", "int64", (2, "seq"), high=1))
    dims = DIMS

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        start, end = edges
        scores = functional.leaky_relu(x[start].sum(-1) + x[end].sum(-1), 0.2)
        most = scores.new_zeros(x.shape[0]).scatter_reduce(0, end, scores, "amax", include_self=False)
        weights = (scores - most[end]).exp()
        sums = weights.new_zeros(x.shape[0]).scatter_add(0, end, weights)
        return torch.zeros_like(x).index_add(0, end, x[start] * (weights / (sums[end] + 1e-16))[:, None])


class DropsOutNothing(Words):
    """As OpenFold and Boltz: the mask of dropout is drawn in eval mode, too, where nothing is below 0."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        rate = 0.25 * self.training
        kept = (torch.rand_like(x[:, :1]) >= rate) & (torch.rand(len(x), 1, 1) >= rate)
        return x + attend(x, x, x) * kept / (1 - rate)


class CutIntoPatches(Words):
    """As PatchTST of gluonts: patches by `unfold`, the last one padded by what was there last."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids).mean(-1)
        patches = nn.ReplicationPad1d((0, 2))(x[:, None])[:, 0].unfold(-1, 4, 2)
        return attend(patches, patches, patches)


class LevelsOfSizes(nn.Module):
    """As Deformable DETR and what follows it: sizes become a tensor, which is asserted to fit, and numbers again."""

    inputs, dims = (IMAGE,), (*DIMS[:1], *SIDES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        levels = [image, functional.max_pool2d(image, 1)]
        shapes = torch.as_tensor([tuple(level.shape[2:]) for level in levels], dtype=torch.long)
        flat = torch.cat([level.flatten(2) for level in levels], dim=2).mT
        assert (shapes[:, 0] * shapes[:, 1]).sum() == flat.shape[1]
        parts = flat.split([high * wide for high, wide in shapes.tolist()], dim=1)
        last = parts[1].mT.reshape(image.shape[0], 8, *shapes[1].tolist()).mean((2, 3))
        return attend(flat, flat, flat) + last[:, None] * torch.tensor([1.0, image.shape[2]])[1]


class Spectrogram(nn.Module):
    """As transformers of sounds that begin with their samples."""

    inputs, dims = (TensorSpec("sound", "float32", ("batch", "seq")),), (DIMS[0], Dim("seq", 3, 128, 512))

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(4))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = torch.stft(sound, 4, 2, window=self.window, return_complex=True).abs().mT
        return attend(x, x, x)


@functools.lru_cache(maxsize=8)
def table_of(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float32)[:, None].sin()


class KeptTables(Words):
    """Tables by their length, in the cache of a function and in a dict, and the set of all lengths of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, torch.Tensor] = {}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        length = x.shape[1]
        if (length, "cosines") not in self.kept:
            self.kept[length, "cosines"] = torch.arange(length, dtype=torch.float32)[:, None].cos()
        x = x + table_of(length) + self.kept[length, "cosines"]
        return attend(x, x, x) if len({length, ids.shape[1]}) == 1 else x


class PooledKeys(nn.Module):
    """As PVT's linear attention and P2T: keys are means of a few cells of the picture."""

    inputs, dims = (IMAGE,), (*DIMS[:1], *SIDES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        cells = nn.AdaptiveAvgPool2d((3, None))(image) + functional.adaptive_avg_pool2d(image, (3, 1))
        keys = functional.adaptive_avg_pool2d(cells, 2).flatten(2).mT
        return attend(image.flatten(2).mT, keys, keys)


class NumbersOfSizes(Words):
    """As the positions of DINOv3 in timm: places divided by `float` of their number."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        length = int(ids.shape[1])
        places = torch.arange(length) / float(length)
        assert isinstance(length, int)
        assert isinstance(1.0, float)
        return attend(x + places[:, None], x, x).reshape(len(ids), int(length * 2 / 2), 8)


class GrowsToSize(nn.Module):
    """As the decoder of a U-Net, whose pictures grow to the sizes that they had."""

    inputs, dims = (IMAGE,), (*DIMS[:1], *SIDES)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = nn.Conv2d(8, 8, 3, 2, 1), nn.ConvTranspose2d(8, 8, 3, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.down(image)
        rows = x.flatten(2).mT
        y = attend(rows, rows, rows).mT.reshape(x.shape)
        return image + self.up(y, output_size=image.shape[2:])


class ResizedByFactor(ResizedTable):
    """As DINO and DINOv2 themselves, which resize their table by a factor, a tenth of a place more than whole ones."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        sizes = [size + 0.1 for size in image.shape[2:]]
        factors = tuple(size / math.sqrt(16) for size in sizes)
        table = functional.interpolate(self.table, scale_factor=factors, mode="bicubic")
        assert int(sizes[0]) == table.shape[-2]
        line = functional.interpolate(self.table, scale_factor=factors, mode="bilinear")
        return attend(x := (image + table + line).flatten(2).mT, x, x)


class MaskOfData(Words):
    """As the Annotated Transformer, and softmax of old code."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, keep = self.words(ids), (ids != 1).unsqueeze(-2)
        before = torch.tril(torch.ones(1, ids.shape[1], ids.shape[1])).type_as(keep.data)
        scores = (x @ x.mT).masked_fill((keep & before) == 0, -1e9)
        return (scores - scores.data.amax(-1, keepdim=True)).softmax(-1) @ x


class WritesAtASize(Words):
    """As the selective attention of x-transformers: a place that is written to follows from a size."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        y, count = x.clone(), x.shape[1]
        y[:, -count] = 0.0
        y[:, count // 2, 2:] += x[:, 0, :6]
        y[..., count - 1, 0] = x.mean((1, 2))
        y[0, None, count // 3 - 1] = x[0, :1]  # of fewer than three, the last
        return attend(y, y, y)


class TableOfTheUsualSize(Words):
    """As the patches of CogVideoX: a table of positions that is made anew for any other size."""

    usual = 12

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        places = torch.arange(self.usual if ids.shape[1] == self.usual else ids.shape[1])
        table = torch.einsum("i,j->ij", places, torch.arange(8) / 3).sin()
        return attend(x + table, x, x)


class OverlappingChunks(nn.Module):
    """As Longformer and LED, whose heads are a transposed view in memory."""

    inputs, dims = (STRIP,), (Dim("height", 4, 128, 512, 4),)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        rows = image.permute(0, 2, 1, 3).contiguous().view(2, -1, 4, 16).transpose(1, 2)
        chunks = rows.view(2, 4, torch.div(rows.shape[2], 4, rounding_mode="trunc"), 4, 16)
        sizes, strides = list(chunks.size()), list(chunks.stride())
        sizes[2], strides[2] = sizes[2] * 2 - 1, strides[2] // 2
        return chunks.as_strided(size=sizes, stride=strides).softmax(-1)


def graph_of(module: Any, folder: Path) -> ort.InferenceSession:
    """The exported graph, opened."""
    names = {name for spec in module.inputs for name in spec.dims if isinstance(name, str)}
    dims = tuple(dim for dim in module.dims if dim.name in names)
    contract = IOContract(module.inputs, (TensorSpec("output", "float32", (1,)),), dims, ())
    found = capture.capture(module.eval(), contract, observed=True)
    save_exported(found.model, folder / "model.onnx", "weights.bin")
    return ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def test_the_rank_behind_a_squeeze_is_known(tmp_path: Path) -> None:
    graph_of(Squeezed(), tmp_path)
    graph = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph
    squeezes = [node for node in graph.node if node.op_type == "Squeeze"]
    assert squeezes
    assert all(len(node.input) == 2 for node in squeezes)


def test_openvino_opens_a_spectrum_of_any_length(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    graph_of(Spectrogram(), tmp_path)
    compiled = openvino.compile_model(tmp_path / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    sound = torch.randn(2, 21)
    found = compiled({"sound": sound.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), Spectrogram()(sound), rtol=1e-4, atol=1e-4)


def test_layers_of_torch_need_no_second_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_retraced", lambda *args, **options: None)
    graph_of(LayersOfTorch(), tmp_path)


@pytest.mark.parametrize(
    "kind",
    [LeavesOutAMask, LeavesOutAFullMask, ChecksValues, CausalUnlessOne, RangeOfPositions, SpacedPositions,
     PadsToWindows, MeansOfSlots, SlopesOfHeads, Retains, SumsOfKeys, LayersOfTorch, CountsWhatIsShown, TiedRows,
     ShiftedWindows, AcrossChannels, ResizedTable, PlacesOfWindows, Areas, OverEdges, CutIntoPatches, Squeezed,
     DropsOutNothing, TableOfTheUsualSize, WritesAtASize, LevelsOfSizes, MaskOfData, Spectrogram,
     KeptTables, PooledKeys, GrowsToSize, ResizedByFactor, OverlappingChunks],
)  # fmt: skip
def test_the_graph_is_the_module_at_every_size(kind: type[nn.Module], tmp_path: Path) -> None:
    module: Any = kind()
    session = graph_of(module, tmp_path)
    for sizes in ((2, 3, 8, 5), (1, 12, 4, 16), (3, 4, 20, 9)):
        named = dict(zip(("batch", "seq", "height", "width"), sizes, strict=True)) | {"rows": sizes[0] + 1}
        generator = torch.Generator().manual_seed(sizes[0])
        feeds = {
            spec.name: torch.randint(0, spec.high, spec.shape(named), generator=generator)
            if spec.high
            else torch.randn(spec.shape(named), generator=generator)
            for spec in module.inputs
        }
        with torch.no_grad():
            expected = module(**feeds)
        (got,) = session.run(None, {name: value.numpy() for name, value in feeds.items()})
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=1e-4)


class ReturnsEarly(Words):
    """A module that treats one token apart."""

    def __init__(self, short: bool) -> None:
        super().__init__()
        self.short = short

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if ids.shape[1] == 1:
            return x[:, 0] if self.short else x
        return attend(x, x, x) * 2


@pytest.mark.parametrize("short", [False, True])
def test_a_size_of_1_that_is_treated_apart_is_left_out_and_told(short: bool, tmp_path: Path) -> None:
    told: list[str] = []
    ids = torch.randint(0, 9, (2, 12))
    found = attnport.export(ReturnsEarly(short), tmp_path / "found", args=(ids,), tell=told.append)
    assert str(found.manifest.io.dim("seq")) == "seq=2:128:512"
    assert any("limited seq to 2 to 512" in each for each in told)
    with pytest.raises(ExportError) as caught:
        attnport.export(ReturnsEarly(short), tmp_path / "declared", args=(ids,), dims=["seq=1:12:512"])
    assert "seq=1" in caught.value.message


class SeveralOutputs(Words):
    """A module that torch has to read, as `len` makes a number of a size, with outputs in a structure."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first = kind, nn.Parameter(torch.randn(2, 8))

    def forward(self, ids: torch.Tensor) -> Any:
        x = torch.cat([self.first.expand(len(ids), -1, -1), self.words(ids)], dim=1)
        first, rest = torch.split(attend(x, x, x), [2, x.shape[1] - 2], dim=1)
        return {"tuple": (rest, None, first), "list": [rest, (first,)], "dict": {"rest": rest, "first": first}}[
            self.kind
        ]


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
def test_a_module_of_several_outputs_is_read_by_torch(kind: str, tmp_path: Path) -> None:
    made = attnport.export(SeveralOutputs(kind), tmp_path, args=(torch.randint(0, 9, (2, 12)),))
    assert [spec.dims for spec in made.manifest.io.outputs] == [("batch", "seq", 8), ("batch", 2, 8)]


def test_what_a_module_keeps_between_runs_stays_as_it_is(tmp_path: Path) -> None:
    module, ids = KeptTables().eval(), torch.randint(0, 9, (2, 12))
    table_of.cache_clear()
    with torch.no_grad():
        expected = module(ids)
    before, kept = table_of.cache_info().currsize, list(module.kept)
    report = attnport.export(module, tmp_path, args=(ids,)).check(["ort_cpu"])  # in float64, too
    assert report.runtimes["ort_cpu"].verdict == "PASS"
    assert (table_of.cache_info().currsize, list(module.kept)) == (before, kept)
    with torch.no_grad():
        torch.testing.assert_close(module(ids), expected)


def test_numbers_of_sizes_are_kept_where_torch_cannot_read_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retraced = capture._retraced

    def unread(*given: Any, strict: bool = False, **options: Any) -> Any:
        return None if strict else retraced(*given, **options)

    monkeypatch.setattr(capture, "_retraced", unread)
    session = graph_of(NumbersOfSizes(), tmp_path)
    ids = torch.randint(0, 9, (3, 7))
    (found,) = session.run(None, {"ids": ids.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), NumbersOfSizes()(ids), rtol=1e-4, atol=1e-4)
    assert "int" not in globals()


def test_an_assertion_that_is_left_out_is_told() -> None:
    contract = IOContract(LevelsOfSizes.inputs, (TensorSpec("output", "float32", (1,)),), LevelsOfSizes.dims, ())
    (place,) = capture.capture(LevelsOfSizes().eval(), contract, observed=True).decided
    assert "assert (shapes[:, 0]" in place
    assert place.endswith("where the assertion holds")


def test_an_example_of_the_usual_size_is_no_size_to_fix(tmp_path: Path) -> None:
    made = attnport.export(TableOfTheUsualSize(), tmp_path, args=(torch.randint(0, 9, (2, 12)),))
    assert [str(spec) for spec in made.manifest.io.inputs] == ["ids=int64[batch,seq]"]
    assert made.check(["ort_cpu"]).runtimes["ort_cpu"].verdict == "PASS"


def test_a_way_that_was_chosen_is_told() -> None:
    module = LeavesOutAMask().eval()
    found = capture.capture(
        module, IOContract((IDS,), (TensorSpec("output", "float32", (1,)),), DIMS, ()), observed=True
    )
    assert len(found.decided) == 1
    assert "if not padding.any():" in found.decided[0]
    assert found.decided[0].endswith("where any() is true and all() is false")


class FarOnly(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 60).any():
            x = -x
        return attend(x, x, x)


def test_a_way_that_no_tried_values_go_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        attnport.export(FarOnly().eval(), tmp_path / "out", args=(torch.randn(2, 5, 8),))
    assert "if (x > 60).any():" in caught.value.message
    assert "torch.where" in str(caught.value.hint)


class RefusesNaN(Words):
    """As modules that look at what they are given."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if torch.isnan(x).any():
            raise ValueError("NaN")
        return x


def test_the_way_that_does_not_raise_is_taken_and_named() -> None:
    found = capture.capture(
        RefusesNaN().eval(), IOContract((IDS,), (TensorSpec("output", "float32", (1,)),), DIMS, ()), observed=True
    )
    (place,) = found.decided
    assert place.endswith("where any() is false and all() is true")


@pytest.fixture
def einx(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package that computes with axes by name and makes numbers of all sizes, as einx does."""
    made = types.ModuleType("einx")

    def where(description: str, mask: torch.Tensor, x: torch.Tensor, other: float) -> torch.Tensor:
        assert description == "b n, b n d, -> b n d"
        batch, length = map(int, mask.shape)
        return torch.where(mask.reshape(batch, length, 1), x, other)

    def multiply(description: str, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        assert description == "b n d, s -> (b s) n d"
        batch, length, width = map(int, x.shape)
        return (x[:, None] * scales[:, None, None]).reshape(batch * len(scales), length, width)

    def add(description: str, *values: torch.Tensor) -> torch.Tensor:
        raise AssertionError(f"{description} is left to einx")

    for operation in (where, multiply, add):
        operation.__module__ = "einx.operations"
        monkeypatch.setattr(made, operation.__name__, operation, raising=False)
    monkeypatch.setitem(sys.modules, "einx", made)
    return made


class NamedAxes(Words):
    """As every model of x-transformers with a mask."""

    def __init__(self, package: types.ModuleType) -> None:
        super().__init__()
        self.where = [package]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.where[0].where("b n, b n d, -> b n d", ids != 1, self.words(ids), 0.0)
        streams = self.where[0].multiply("b n d, s -> (b s) n d", x, torch.tensor([1.0, 2.0]))
        return attend(streams, streams, streams)


def test_operations_on_named_axes_keep_sizes(einx: types.ModuleType, tmp_path: Path) -> None:
    module = NamedAxes(einx)
    session = graph_of(module, tmp_path)
    ids = torch.tensor([[2, 3, 1, 1], [5, 2, 3, 1], [8, 8, 8, 8]])
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"ids": ids.numpy()})[0]), module(ids))
    assert einx.where.__module__ == "einx.operations"  # put back


@pytest.mark.parametrize(
    ("description", "shapes", "expected"),
    [
        ("b i, b j -> b (i j)", [(2, 3), (2, 4)], lambda x, y: (x[..., None] + y[:, None]).flatten(1)),
        ("... i, ... j -> ... (i j)", [(2, 5, 3), (2, 5, 4)], lambda x, y: (x[..., None] + y[:, :, None]).flatten(2)),
        ("... i, ... j -> ... (i j)", [(3,), (4,)], lambda x, y: (x[:, None] + y).flatten()),
        ("a b ..., c -> (a b) ... c", [(2, 3, 5, 6), (4,)], lambda x, y: (x[..., None] + y).flatten(0, 1)),
        ("... i, j -> (... i) 1 j", [(2, 5, 3), (4,)], lambda x, y: (x[..., None, None] + y).flatten(0, 2)),
    ],
)
def test_axes_of_a_result_become_one(einx: types.ModuleType, description: str, shapes: Any, expected: Any) -> None:
    one, other = (torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) for shape in shapes)
    add = next(patch for patch in named_axes() if patch.owner is einx and patch.name == "add").value
    torch.testing.assert_close(add(description, one, 100 * other), expected(one, 100 * other))


@pytest.mark.parametrize(
    ("description", "shapes", "expected"),
    [
        ("b n, b n d -> b n d", [(2, 3), (2, 3, 4)], [(2, 3, 1), (2, 3, 4)]),
        ("j, i -> i j", [(3,), (4,)], [(1, 3), (4, 1)]),
        ("b h i j, h", [(2, 3, 4, 4), (3,)], [(2, 3, 4, 4), (1, 3, 1, 1)]),
        ("... d, d", [(2, 3, 4), (4,)], [(2, 3, 4), (1, 1, 4)]),
        ("j, i -> 1 i j", [(3,), (4,)], [(1, 1, 3), (1, 4, 1)]),
        ("b ..., b -> b ...", [(2, 3, 4), (2,)], [(2, 3, 4), (2, 1, 1)]),
    ],
)
def test_values_are_aligned_by_the_names_of_their_axes(description: str, shapes: Any, expected: Any) -> None:
    values = aligned(description, tuple(torch.randn(shape) for shape in shapes))
    assert values is not None
    assert [tuple(each.shape) for each in values] == expected


@pytest.mark.parametrize("description", ["b (h d), h -> b h d", "b [d], d -> b", "b 1, b -> b", "b d, d -> b"])
def test_other_descriptions_are_left_to_the_package(description: str) -> None:
    assert aligned(description, (torch.randn(2, 4), torch.randn(4))) is None
