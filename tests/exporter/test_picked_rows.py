"""Where one position is all that is read, it alone is computed, up to the last layer's queries; else all are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.exporter import storage
from attnport.exporter.capture import capture
from attnport.exporter.targets import base as lowerings
from attnport.exporter.targets.base import REAL_TOKENS
from attnport.masks import MaskSpec
from attnport.runtimes import base as runtimes
from attnport.runtimes.base import Opening

WIDTH, HEADS = 32, 4
BATCH, SEQ = Dim("batch", 1, 3, 8), Dim("seq", 2, 7, 16)


class Layer(nn.Module):
    """One of an encoder."""

    causal = False

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=self.causal)
        x = self.first(x + self.o(y.transpose(1, 2).flatten(2)))
        return self.second(x + self.back(functional.gelu(self.wide(x))))


class Causal(Layer):
    causal = True


class Encoder(nn.Module):
    """Two layers behind an embedding; a subclass says what is read of their rows."""

    layer: type[Layer] = Layer
    masked: str | None = "padding"
    outputs: tuple[TensorSpec, ...] = (TensorSpec("pooled", "float32", ("batch", WIDTH)),)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.pooler = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(self.layer() for _ in range(2))

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        x = self.embedding(input_ids)
        keep = None if mask is None else (mask[:, None, None, :] if mask.ndim == 2 else mask[:, None]) != 0
        for layer in self.layers:
            x = layer(x, keep)
        return self.read(x)

    def read(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """As of BERT's pooler."""
        return self.pooler(x[:, 0]).tanh()


class First(Encoder):
    pass


class FirstKept(Encoder):
    """A slice, which keeps its axis."""

    def read(self, x: Tensor) -> Tensor:
        return self.pooler(x[:, :1])[:, 0]


class OwnMask(Encoder):
    """A mask with a row for each query."""

    masked = "explicit"


class Last(Encoder):
    masked = None

    def read(self, x: Tensor) -> Tensor:
        return self.pooler(x[:, -1])


class CausalLayers(Encoder):
    layer, masked = Causal, None


class WholeToo(Encoder):
    outputs = (*Encoder.outputs, TensorSpec("rows", "float32", ("batch", "seq", WIDTH)))

    def read(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.pooler(x[:, 0]), x


class TwoRows(Encoder):
    def read(self, x: Tensor) -> Tensor:
        return self.pooler(x[:, 0]) + x[:, 1]


class Mean(Encoder):
    """Rows that see each other once more."""

    def read(self, x: Tensor) -> Tensor:
        return self.pooler(x - x.mean(1, keepdim=True))[:, 0]


def spec_of(kind: type[Encoder]) -> ModelSpec:
    module = kind().eval()
    inputs = [TensorSpec("input_ids", "int64", ("batch", "seq"), high=50)]
    masks: tuple[MaskSpec, ...] = ()
    if kind.masked:
        dims = ("batch", "seq") if kind.masked == "padding" else ("batch", "seq", "seq")
        inputs.append(TensorSpec("mask", "int64", dims, high=2))
        masks = (MaskSpec((kind.masked,), "mask", "keep"),)
    return ModelSpec(
        "encoder", Source("encoder"), IOContract(tuple(inputs), kind.outputs, (BATCH, SEQ), masks), lambda: module
    )


def lowered(spec: ModelSpec, target: str, folder: Path, **without: str) -> ir.Model:
    """The form of a target, saved as `form.onnx`."""
    captured = capture(spec.make(), spec.io)
    storage.save_exported(captured.model, folder / "model.onnx", "weights.bin")
    model = storage.load(folder / "model.onnx")
    plain = lowerings.get(target)
    plain.lower(model, captured.attentions, plan="fp32", masks=spec.io.masks, without=without)
    storage.save_form(model, folder / "form.onnx", "form.bin")
    return ir.load(folder / "form.onnx")


def of_one_row(model: ir.Model) -> list[str]:
    """What computes one row of each item, by operator and the module's layer."""
    found = []
    for node in model.graph:
        dims = [str(dim) for dim in node.outputs[0].shape or ()]
        row = 2 if node.op_type == "Attention" else 1
        if node.op_type in ("MatMul", "Attention") and dims[row:-1] == ["1"]:
            found.append(node.op_type)
    return found


def worst(spec: ModelSpec, target: str, form: Path) -> float:
    """The largest error of a form, of rows with a key."""
    reference = runtimes.get("torch_eager").open(Opening(spec.io, spec=spec, float64=True, contract=True))
    session = runtimes.get(target).open(Opening(spec.io, model=form))
    random, found = np.random.default_rng(0), 0.0
    for batch, seq in ((1, 2), (4, 9), (3, 16)):
        feeds = {"input_ids": random.integers(0, 50, (batch, seq))}
        for mask in spec.io.masks:
            lengths = random.integers(1, seq + 1, (batch, 1))
            feeds[str(mask.input)] = (np.arange(seq) < lengths).astype(np.int64)
            if "explicit" in mask.kinds:
                feeds[str(mask.input)] = (random.random((batch, seq, seq)) < 0.7) | np.eye(seq, dtype=bool)
                feeds[str(mask.input)] = feeds[str(mask.input)].astype(np.int64)
        got, expected = session.run(feeds), reference.run(feeds)
        real = feeds["mask"] == 1 if "mask" in feeds and feeds["mask"].ndim == 2 else np.ones((batch, seq), bool)
        for name, array in expected.items():
            valid = real if array.ndim == 3 else slice(None)
            found = max(found, float(np.abs(got[name] - array)[valid].max()))
    return found


ALL_OF_IT = ["MatMul", "Attention", "MatMul", "MatMul", "MatMul"]
"""The last layer's queries, attention, its output, and both products behind it."""


@pytest.mark.parametrize("target", ["ort_cpu", "openvino"])
@pytest.mark.parametrize("kind", [First, FirstKept, OwnMask, Last])
def test_the_last_layer_computes_the_one_row_that_is_read(kind: type[Encoder], target: str, tmp_path: Path) -> None:
    spec = spec_of(kind)
    assert of_one_row(lowered(spec, target, tmp_path))[:5] == ALL_OF_IT
    assert worst(spec, target, tmp_path / "form.onnx") < 1e-5


def test_the_other_rows_of_real_tokens_alone_are_computed_below(tmp_path: Path) -> None:
    model = lowered(spec_of(First), "ort_cpu", tmp_path)
    products = [[str(dim) for dim in node.outputs[0].shape or ()] for node in model.graph if node.op_type == "MatMul"]
    assert [dims[1] for dims in products if len(dims) == 3] == [*["mask_tokens"] * 6, "1", *["mask_tokens"] * 2, *"111"]


def test_of_causal_attention_what_stands_behind_it_computes_one_row(tmp_path: Path) -> None:
    spec = spec_of(CausalLayers)
    assert of_one_row(lowered(spec, "ort_cpu", tmp_path)) == ["MatMul"] * 3
    assert worst(spec, "ort_cpu", tmp_path / "form.onnx") < 1e-5


@pytest.mark.parametrize("kind", [WholeToo, TwoRows, Mean])
def test_rows_that_something_else_reads_are_computed(kind: type[Encoder], tmp_path: Path) -> None:
    spec = spec_of(kind)
    assert len(of_one_row(lowered(spec, "ort_cpu", tmp_path))) <= (kind is Mean)  # its pooler stands behind the mean
    assert worst(spec, "ort_cpu", tmp_path / "form.onnx") < 1e-5


def test_a_form_without_that_step_computes_all_rows(tmp_path: Path) -> None:
    assert not of_one_row(lowered(spec_of(First), "ort_cpu", tmp_path, **{REAL_TOKENS: "refused"}))
