"""Modules whose values decide sizes: of what they give, and of what they compute with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._device import _device_constructors

import attnport
from attnport.artifacts import IOContract, TensorSpec
from attnport.errors import ExportError, ProfileError, UsageError
from attnport_bundle import load
from attnport_bundle.errors import BundleError
from attnport_bundle.feeds import check_outputs
from attnport_bundle.format.contract import Dim

ROWS, MASK, COUNTS = "x=float32[batch,seq,16]", "mask=bool[batch,seq]", "lengths=int64[batch]"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(16, 48)

    def attend(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        hidden = None if mask is None else mask[:, None, None]
        return scaled_dot_product_attention(q, k, v, attn_mask=hidden).transpose(1, 2).flatten(2)


class Kept(Attention):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attend(x, mask)[mask]


class Above(Attention):
    """As detection does. The random example has no such row."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.attend(x)[..., 0]
        return scores[scores > 0.1], (scores > 0.1).nonzero()


class Half(Attention):
    """As pruning of tokens does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = x.mean(-1).topk(int(x.shape[1] * 0.5) + 1, dim=1).indices
        return self.attend(x).gather(1, best[..., None].expand(-1, -1, 16))


class Repeated(Attention):
    """As FastSpeech does with durations."""

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return self.attend(torch.repeat_interleave(x, counts[0], dim=1))


class Cut(Attention):
    """As recipes for speech do with lengths."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(lengths.max())
        return self.attend(x[:, :longest], torch.arange(longest)[None] < lengths[:, None])


class Decides(Attention):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        cut = x[:, : int(lengths.max())]
        return self.attend(cut if cut.shape[1] > 4 else cut * 2)


class Quarter(Attention):
    """As masked autoencoders keep it; of 3 tokens, it is none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x[:, : int(x.shape[1] * (1 - 0.75))])


class Flagged(Attention):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.attend(x * 2 if lengths.max().item() else x)


class UntilNothingIsLeft(Attention):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        while (lengths > 0).nonzero().shape[0] > 0:
            x, lengths = x * 2, lengths - 1
        return x


class Experts(Attention):
    """As mixtures of experts do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 16)
        chosen, result = self.qkv(rows)[:, :6].argmax(-1), torch.zeros_like(rows)
        for expert in range(6):
            (taken,) = torch.where(chosen == expert)
            if taken.numel() == 0:
                continue
            result[taken] += rows[taken] * (expert + 1)
        return result.view_as(x)


class Dense(Attention):
    """As torch-geometric makes a batch of graphs."""

    def forward(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        graphs, counts = int(graph.max()) + 1, torch.bincount(graph)
        longest = int(counts.max())
        begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        places = torch.arange(x.shape[0]) - begins[graph] + graph * longest
        rows, real = x.new_zeros(graphs * longest, 16), torch.zeros(graphs * longest, dtype=torch.bool)
        rows[places], real[places] = x, True
        return self.attend(rows.view(graphs, longest, 16), real.view(graphs, longest))


def feeds(seed: int, seq: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([seq - 2, seq // 2])
    return {
        "x": torch.randn(2, seq, 16, generator=generator),
        "mask": torch.rand(2, seq, generator=generator) < 0.6,
        "counts": torch.randint(1, 4, (1, seq), generator=generator),
        "lengths": lengths,
    }


IDIOMS: dict[type[Attention], tuple[list[str], list[tuple[str | int, ...]]]] = {
    Kept: ([ROWS, MASK], [("?", 16)]),
    Above: ([ROWS], [("?",), ("?", 2)]),
    Half: ([ROWS], [("batch", "?", 16)]),
    Repeated: ([ROWS, "counts=int64[1,seq]"], [("batch", "?", 16)]),
    Cut: ([ROWS, COUNTS], [("batch", "?", 16)]),
}


@pytest.mark.parametrize("kind", IDIOMS)
def test_sizes_that_values_decide_are_those_of_the_module(kind: type[Attention], tmp_path: Path) -> None:
    declared, dims = IDIOMS[kind]
    module = kind().eval()
    artifact = attnport.export(module, tmp_path / "out", inputs=declared, dims=["seq=8:16:40"])
    assert [spec.dims for spec in artifact.manifest.io.outputs] == dims
    assert any("the contract has ? for a size" in note for note in artifact.manifest.notes)
    assert artifact.check("ort_cpu").verdict == "PASS"
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    sizes = set()
    for seed, seq in ((0, 9), (1, 16), (2, 33)):
        given = {one.name: feeds(seed, seq)[one.name] for one in session.get_inputs()}
        expected = module(**given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        got: Any = session.run(None, {name: value.numpy() for name, value in given.items()})
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
        sizes.add(got[0].shape[dims[0].index("?")])
    assert len(sizes) == 3


def test_experts_without_a_token_are_left_out_as_by_the_module(tmp_path: Path) -> None:
    """From an example: with 24 rows, the view takes multiples of 2 in place of 16."""
    module = Experts().eval()
    artifact = attnport.export(module, tmp_path / "out", args=(torch.randn(2, 12, 16),))
    assert artifact.check("ort_cpu").verdict == "PASS"
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    for seq in (1, 3, 40):
        x = torch.randn(1, seq, 16)
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], module(x).numpy(), rtol=1e-5, atol=1e-6)


def test_sizes_at_which_the_module_gives_nothing_are_left_out(tmp_path: Path) -> None:
    told: list[str] = []
    artifact = attnport.export(Quarter().eval(), tmp_path / "out", inputs=[ROWS], tell=told.append)
    assert str(artifact.manifest.io.dim("seq")) == "seq=4:128:512"
    assert any("gives an empty output" in each and "limited seq to 4 to 512" in each for each in told)
    assert len(set(told)) == len(told)
    assert artifact.check("ort_cpu").verdict == "PASS"


def test_graphs_of_several_sizes_are_a_dense_batch(tmp_path: Path) -> None:
    module, graph = Dense().eval(), torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
    attnport.export(module, tmp_path / "out", args=(torch.randn(9, 16), graph))
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    for graphs in (graph, torch.tensor([0, 1, 1, 1, 1, 1]), torch.arange(5)):
        x = torch.randn(len(graphs), 16)
        got: Any = session.run(None, {"x": x.numpy(), "graph": graphs.numpy()})[0]
        np.testing.assert_allclose(got, module(x, graphs).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_devices_in_a_context_are_those_of_torch_afterwards(tmp_path: Path) -> None:
    """transformers fills no buffer of a model that it loads then, where `torch.tensor([])` is not on `meta`."""
    _device_constructors.cache_clear()
    attnport.export(Half().eval(), tmp_path / "out", inputs=[ROWS], dims=["seq=8:16:40"])
    with torch.device("meta"):
        assert torch.tensor([]).is_meta


@pytest.mark.parametrize("kind", [Decides, Flagged, UntilNothingIsLeft])
def test_what_the_code_decides_by_values_is_refused(kind: type[Attention], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="needs the values of a tensor"):
        attnport.export(kind().eval(), tmp_path / "out", inputs=[ROWS, COUNTS], dims=["seq=8:16:40"])


def test_a_bundle_is_read_with_any_size_and_an_engine_is_refused(tmp_path: Path) -> None:
    module = Kept().eval()
    artifact = attnport.export(module, tmp_path / "out", inputs=[ROWS, f"{MASK}:padding"], dims=["seq=8:16:40"])
    artifact.fuse("ort_cpu")
    artifact.bundle(tmp_path / "bundle")
    assert "only a call tells it" in (tmp_path / "bundle" / "README.md").read_text()
    with load(tmp_path / "bundle") as model:
        for seq in (9, 16):
            given = {name: feeds(3, seq)[name] for name in ("x", "mask")}
            output = model.run(**{name: value.numpy() for name, value in given.items()})["output"]
            np.testing.assert_allclose(output, module(**given).detach().numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ProfileError, match=r"output=float32\[\?,16\]: nothing tells its size before a call"):
        artifact.build("tensorrt_rtx")


def test_only_an_output_has_an_unknown_size() -> None:
    rows, picked = TensorSpec("x", "float32", ("batch", 16)), TensorSpec("y", "float32", ("?", 16))
    io = IOContract((rows,), (picked,), (Dim("batch", 1, 2, 4),))
    io.check()
    check_outputs(io, {"batch": 2}, {"y": (7, 16)})
    with pytest.raises(BundleError, match=r"got shape \[7, 15\]"):
        check_outputs(io, {"batch": 2}, {"y": (7, 15)})
    with pytest.raises(UsageError, match="got dim '\\?'"):
        IOContract((TensorSpec("x", "float32", ("?", 16)),), (rows,), io.dims).check()
