"""Padded batches compute their real tokens alone: the same on every row that counts, left alone where tokens mix."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from representatives import representatives
from torch import Tensor, nn
from torch.nn import functional

import attnport
from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.cases.inputs import case as case_of
from attnport.dims import Dim, TensorSpec
from attnport.exporter import storage
from attnport.exporter.capture import capture
from attnport.exporter.targets import base as lowerings
from attnport.exporter.targets.base import Lowered
from attnport.masks import MaskSpec
from attnport.runtimes import base as runtimes
from attnport.runtimes.base import Opening

WIDTH, HEADS = 32, 4
BATCH, SEQ = Dim("batch", 1, 3, 8), Dim("seq", 2, 7, 16)
IDS = TensorSpec("input_ids", "int64", ("batch", "seq"), high=50)
ROWS = TensorSpec("rows", "float32", ("batch", "seq", WIDTH))
POOLED = TensorSpec("pooled", "float32", ("batch", WIDTH))


class Block(nn.Module):
    """One step of an encoder: rows `[batch, seq, WIDTH]` and which tokens are real, bool, to rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.table = nn.LayerNorm(WIDTH), nn.Parameter(torch.randn(16, WIDTH))


class FeedForward(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return self.norm(x + self.second(functional.gelu(self.first(x))))


class Attend(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q, k, v = (self.first(x) + self.norm(x).repeat(1, 1, 2)).chunk(2, -1)[0], x, self.norm(x)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        return x + y.transpose(1, 2).flatten(2)


class Positions(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class Gate(Block):
    """Heads that are weighed against each other, for each token."""

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        heads = x.unflatten(-1, (HEADS, -1))
        return (heads * heads.mean(-1, keepdim=True).softmax(-2)).flatten(2)


class Flat(Block):
    """A product of `[batch*seq, WIDTH]`, as of GPT-2's Conv1D."""

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        flat = torch.addmm(self.first.bias, x.reshape(-1, WIDTH), self.first.weight.T)
        return functional.silu(flat[:, :WIDTH]).reshape(x.shape)


class FromItem(Block):
    """The mean of an item's real tokens, added to each of its tokens."""

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        keep = real[..., None].to(x.dtype)
        return x + self.norm((x * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True).clamp(min=1))


class FromFirst(Block):
    """The row of the first token, added to each; it counts even where it is padding."""

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return x + x[:, :1]


class Mean(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return x + x.mean(1, keepdim=True)


class Convolution(Block):
    def __init__(self) -> None:
        super().__init__()
        self.along = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return x + self.along(x.transpose(1, 2)).transpose(1, 2)


class Roll(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return x + torch.cat([x[:, 1:], x[:, :1]], 1)


class NormOverTokens(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return (x - x.amax(1, keepdim=True)) * 0.1


class SoftmaxOverTokens(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        return x * x.softmax(1)


class Unmasked(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return x + functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)


class OtherItem(Block):
    """Attention that hides the padding of the first item from all."""

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, q, q, attn_mask=real[:1, None, None, :])
        return x + y.transpose(1, 2).flatten(2)


ALONE: list[type[Block]] = [FeedForward, Attend, Positions, Gate, Flat, FromItem, FromFirst]
MIXING: list[type[Block]] = [Mean, Convolution, Roll, NormOverTokens, SoftmaxOverTokens, Unmasked, OtherItem]


class Encoder(nn.Module):
    """An embedding, blocks, and the rows with the mean of the real ones."""

    def __init__(self, blocks: list[type[Block]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(block() for block in blocks)

    def forward(self, input_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x, real = self.embedding(input_ids), mask != 0 if self.keeps else mask == 0
        for block in self.blocks:
            x = block(x, real)
        return x, torch.where(real[..., None], x, 0.0).sum(1)

    keeps = True


def spec_of(blocks: list[type[Block]], polarity: str = "keep") -> ModelSpec:
    module = Encoder(blocks).eval()
    module.keeps = polarity == "keep"
    mask = TensorSpec("mask", "int64" if polarity == "keep" else "bool", ("batch", "seq"))
    io = IOContract((IDS, mask), (ROWS, POOLED), (BATCH, SEQ), (MaskSpec(("padding",), "mask", polarity),))
    return ModelSpec("encoder", Source("encoder"), io, lambda: module)


def lowered(spec: ModelSpec, target: str, folder: Path) -> Lowered:
    """The form of a target, saved as `form.onnx`."""
    captured = capture(spec.make(), spec.io)
    storage.save_exported(captured.model, folder / "model.onnx", "weights.bin")
    model = storage.load(folder / "model.onnx")
    made = lowerings.get(target).lower(model, captured.attentions, plan="fp32", masks=spec.io.masks)
    storage.save_form(made.model, folder / "form.onnx", "form.bin")
    return made


def masks(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Which tokens are real, by what padding looks like."""
    right = np.arange(9) < random.integers(1, 10, (4, 1))
    empty = random.random((4, 9)) < 0.5
    empty[1] = False
    return {
        "right": right,
        "left": right[:, ::-1],
        "interior": random.random((4, 9)) < 0.5,
        "one item empty": empty,
        "all empty": np.zeros((4, 9), bool),
        "full": np.ones((4, 9), bool),
        "one token": np.arange(9) == random.integers(0, 9, (4, 1)),
        "one item": right[:1],
    }


def worst(spec: ModelSpec, target: str, form: Path) -> dict[str, float]:
    """By mask, the largest error of a form on valid rows, and infinity where a row of padding is not finite."""
    reference = runtimes.get("torch_eager").open(Opening(spec.io, spec=spec, float64=True, contract=True))
    session = runtimes.get(target).open(Opening(spec.io, model=form))
    random, found = np.random.default_rng(0), dict[str, float]()
    for name, real in masks(random).items():
        ids = random.integers(0, 50, real.shape)
        dtype = spec.io.inputs[1].dtype
        case = case_of(
            spec.io, name, "masks", {"input_ids": ids, "mask": (real if dtype == "int64" else ~real).astype(dtype)}
        )
        got, expected = session.run(case.feeds), reference.run(case.feeds)
        errors = [np.abs(got[key] - array)[case.valid[key]].max(initial=0.0) for key, array in expected.items()]
        finite = all(np.isfinite(array).all() for array in got.values())
        found[name] = float(max(errors)) if finite else np.inf
    return found


def chain(seed: int) -> list[type[Block]]:
    """Three to six blocks that work on tokens alone or hide padding."""
    random = np.random.default_rng(seed)
    return [ALONE[at] for at in random.integers(0, len(ALONE), random.integers(3, 7))]


@pytest.mark.parametrize(
    ("seed", "target"),
    representatives(itertools.product(range(12), ["ort_cpu", "openvino"]), [(0, "ort_cpu"), (1, "openvino")]),
)
def test_random_encoders_equal_the_module_on_valid_rows(seed: int, target: str, tmp_path: Path) -> None:
    spec = spec_of(chain(seed), "keep" if seed % 3 else "hide")
    form = lowered(spec, target, tmp_path)
    assert form.padding == {"mask": ""}
    errors = worst(spec, target, tmp_path / "form.onnx")
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize("block", representatives(ALONE, (Attend, Flat, FromFirst)))
def test_each_block_runs_on_real_tokens(block: type[Block], tmp_path: Path) -> None:
    spec = spec_of([FeedForward, block, FeedForward])
    assert lowered(spec, "ort_cpu", tmp_path).padding == {"mask": ""}
    assert max(worst(spec, "ort_cpu", tmp_path / "form.onnx").values()) < 1e-4
    model = ir.load(tmp_path / "form.onnx")
    products = [node for node in model.graph if node.op_type in ("MatMul", "Gemm")]
    assert products
    assert all("mask_tokens" in map(str, node.outputs[0].shape or ()) for node in products)


@pytest.mark.parametrize("block", representatives(MIXING, (Mean, Roll, Unmasked, OtherItem)))
def test_what_mixes_tokens_is_left_alone_and_says_where(block: type[Block], tmp_path: Path) -> None:
    spec = spec_of([FeedForward, block, FeedForward])
    reason = lowered(spec, "ort_cpu", tmp_path).padding["mask"]
    assert "blocks.1" in reason
    assert max(worst(spec, "ort_cpu", tmp_path / "form.onnx").values()) < 1e-4
    assert not any((node.name or "").startswith("real_tokens") for node in ir.load(tmp_path / "form.onnx").graph)


class Across(nn.Module):
    """Attends from one input to another, of which alone the mask hides keys."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.attend = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, WIDTH), Attend()

    def forward(self, x: Tensor, input_ids: Tensor, mask: Tensor) -> Tensor:
        there = self.words(input_ids)
        keep = mask[:, None, None].bool()
        return x + self.first(
            functional.scaled_dot_product_attention(*(each[:, None] for each in (x, there, there)), keep)[:, 0]
        )


def test_rows_of_an_input_whose_keys_no_attention_hides_are_all_computed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Across().eval()
    given = (
        torch.randn(3, 6, WIDTH),
        torch.randint(0, 50, (3, 6)),
        torch.tensor([[1] * 6, [1] * 3 + [0] * 3, [1] + [0] * 5]),
    )
    inputs = ["x=float32[batch,seq,32]", "input_ids=int64[batch,seq]:high=50", "mask=int64[batch,seq]:padding"]
    artifact = attnport.export(module, tmp_path / "out", inputs=inputs)
    artifact.fuse("ort_cpu")
    with artifact.open("ort_cpu") as session, torch.no_grad():
        names = ("x", "input_ids", "mask")
        got = session.run(**{name: array.numpy() for name, array in zip(names, given, strict=True)})["output"]
        np.testing.assert_allclose(got, module(*given).numpy(), atol=1e-5)


class TimeFirst(nn.Module):
    """A product of `[seq*batch, WIDTH]`, whose rows are not in the order of `[batch, seq]`, beside one that is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        batch, seq, _ = rows.shape
        turned = torch.addmm(self.linear.bias, rows.transpose(0, 1).reshape(-1, WIDTH), self.linear.weight)
        flat = torch.addmm(self.linear.bias, rows.reshape(-1, WIDTH), self.linear.weight)
        return turned.reshape(seq, batch, WIDTH).transpose(0, 1) * 2 + flat.reshape(batch, seq, WIDTH)


@pytest.mark.parametrize("target", ["ort_cpu", "openvino"])
def test_rows_in_both_orders_are_told_apart(target: str, tmp_path: Path) -> None:
    module = TimeFirst().eval()
    mask = TensorSpec("mask", "int64", ("batch", "seq"))
    given = TensorSpec("given", "float32", ("batch", "seq", WIDTH))
    io = IOContract((given, mask), (ROWS,), (BATCH, SEQ), (MaskSpec(("padding",), "mask"),))

    class Named(nn.Module):
        def forward(self, given: Tensor, mask: Tensor) -> Tensor:
            return module(given, mask) + mask[..., None] * 0

    spec = ModelSpec("time", Source("time"), io, lambda: Named().eval())
    assert lowered(spec, target, tmp_path).padding == {"mask": ""}
    session = runtimes.get(target).open(Opening(io, model=tmp_path / "form.onnx"))
    random = np.random.default_rng(0)
    feeds = {"given": random.standard_normal((3, 5, WIDTH), np.float32), "mask": np.tri(3, 5, 1, dtype=np.int64)}
    with torch.no_grad():
        expected = module(torch.from_numpy(feeds["given"]), torch.from_numpy(feeds["mask"])).numpy()
    real = feeds["mask"] == 1
    assert np.abs(session.run(feeds)["rows"] - expected)[real].max() < 1e-4


class OrdersMixed(Block):
    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        turned, flat = self.first(x.transpose(0, 1)).flatten(0, 1), self.first(x).flatten(0, 1)
        return self.second(turned + flat).unflatten(0, x.shape[:2])


def test_rows_in_two_orders_that_are_added_mix_tokens(tmp_path: Path) -> None:
    spec = spec_of([FeedForward, OrdersMixed, FeedForward])
    reason = lowered(spec, "ort_cpu", tmp_path).padding["mask"]
    assert re.search(r"(Add|Mul) in blocks\.1\S* has tokens at places where they are not followed", reason)
    assert max(worst(spec, "ort_cpu", tmp_path / "form.onnx").values()) < 1e-4


class Torchs(Block):
    """A layer of torch's own, whose rows go position by position inside."""

    first_norm, batch_first = True, True

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, norm_first=self.first_norm, batch_first=self.batch_first
        )

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        if self.batch_first:
            return self.layer(x, src_key_padding_mask=~real)
        return self.layer(x.transpose(0, 1), src_key_padding_mask=~real).transpose(0, 1)


class TorchsPostNorm(Torchs):
    first_norm = False


class TorchsByPosition(Torchs):
    batch_first = False


@pytest.mark.parametrize(
    ("layer", "target"),
    representatives(
        itertools.product([Torchs, TorchsPostNorm, TorchsByPosition], ["ort_cpu", "openvino"]),
        [(TorchsPostNorm, "ort_cpu"), (TorchsByPosition, "openvino")],
    ),
)
def test_layers_of_torchs_own_run_on_real_tokens(layer: type[Block], target: str, tmp_path: Path) -> None:
    spec = spec_of([layer, FeedForward, layer])
    assert lowered(spec, target, tmp_path).padding == {"mask": ""}
    assert max(worst(spec, target, tmp_path / "form.onnx").values()) < 1e-4
    model = ir.load(tmp_path / "form.onnx")
    products = [node for node in model.graph if node.op_type in ("MatMul", "Gemm")]
    names = ("mask_tokens", "mask_tokens_turned", "mask_tokens_flat_turned")
    assert all(
        set(names) & set(map(str, node.outputs[0].shape or ())) for node in products if "qk" not in str(node.name)
    )


@pytest.mark.parametrize("last", [FeedForward, Positions])  # the second is computed for all tokens
def test_rows_of_padding_are_zero_in_outputs(last: type[Block], tmp_path: Path) -> None:
    spec = spec_of([FeedForward, Attend, FeedForward, last])
    lowered(spec, "ort_cpu", tmp_path)
    session = runtimes.get("ort_cpu").open(Opening(spec.io, model=tmp_path / "form.onnx"))
    real = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    rows = session.run({"input_ids": np.ones((3, 4), np.int64), "mask": real})["rows"]
    assert not rows[:2][real[:2] == 0].any()
    assert rows[:2][real[:2] == 1].all(-1).all()
    assert rows[2].any(-1).all()  # an item without a key is computed whole


@pytest.mark.parametrize("fault", ["hides", "constants"])
def test_a_wrong_proof_would_be_seen(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnport.exporter.tokens import real

    blocks: list[type[Block]] = [FeedForward, Unmasked]
    if fault == "hides":
        monkeypatch.setattr(lowerings, "hides_padding", lambda keeps, mask: True)
    else:
        blocks = [FeedForward, Mean]
        monkeypatch.setattr(real, "picked_positions", lambda *given: set())
    spec = spec_of(blocks)
    assert lowered(spec, "ort_cpu", tmp_path).padding == {"mask": ""}
    assert max(worst(spec, "ort_cpu", tmp_path / "form.onnx").values()) > 1e-3


class Two(nn.Module):
    """Two encoders, each with tokens and a mask of a length of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (Encoder([Attend, FeedForward]) for _ in range(2))

    def forward(self, input_ids: Tensor, mask: Tensor, other_ids: Tensor, other_mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(input_ids, mask)[0], self.second(other_ids, other_mask)[0]


def test_tokens_of_two_lengths_are_two_sizes(tmp_path: Path) -> None:
    """ONNX Runtime lets values of sizes of one name share memory."""
    dims, module = ("batch", "other"), Two().eval()
    inputs = (IDS, TensorSpec("mask", "int64", ("batch", "seq")),
              TensorSpec("other_ids", "int64", dims, high=50), TensorSpec("other_mask", "int64", dims))  # fmt: skip
    outputs = (ROWS, TensorSpec("others", "float32", (*dims, WIDTH)))
    padding = (MaskSpec(("padding",), "mask"), MaskSpec(("padding",), "other_mask"))
    io = IOContract(inputs, outputs, (BATCH, SEQ, Dim("other", 2, 7, 16)), padding)
    form = lowered(ModelSpec("two", Source("two"), io, lambda: module), "ort_cpu", tmp_path)
    assert form.padding == {"mask": "", "other_mask": ""}
    session = runtimes.get("ort_cpu").open(Opening(io, model=tmp_path / "form.onnx"))
    for seq, other in ((4, 4), (4, 11), (11, 4)):
        feeds = {each.name: np.ones((5, other if "other" in each.name else seq), np.int64) for each in inputs}
        expected = module(*map(torch.from_numpy, feeds.values()))
        for got, right in zip(session.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(got, right.detach().numpy(), atol=1e-4)
