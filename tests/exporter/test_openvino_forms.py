"""What the form for OpenVINO writes out, as the plugin's own is several kernels, or computes something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from running import distance, export, on_openvino
from torch import nn
from written_graphs import written

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.counting import count_in_graph
from attnport.exporter.targets import base
from attnport.exporter.targets.base import Lowered
from attnport.exporter.targets.openvino import write_out_soft_caps
from attnport.masks import MaskSpec
from attnport.runtimes.openvino import RUNTIME

H, D, CAP = 4, 16, 2.0
SIZES = ((1, 1), (2, 5), (3, 17), (1, 33), (2, 64))
"""One token first, which OpenVINO compiles its kernel for."""
PLAIN = {
    "an operator": "o = Attention(q, k, v)",
    "products": "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) r = Tanh(s) p = Softmax(r) o = MatMul(p, v)",
}
CAPPED = {
    "none": ("", "o = Attention<softcap = 2.0>(q, k, v)", H),
    "causal": ("", "o = Attention<softcap = 2.0, is_causal = 1>(q, k, v)", H),
    "causal, grouped": ("", "o = Attention<softcap = 2.0, is_causal = 1>(q, k, v)", 2),
    "one head of keys": ("", "o = Attention<softcap = 2.0>(q, k, v)", 1),
    "padding": (
        ", int64[B,S] mask",
        "b = Cast<to = 9>(mask) m = Unsqueeze(b, at) o = Attention<softcap = 2.0>(q, k, v, m)",
        H,
    ),
    "bias": (", float[B,4,S,S] bias", "o = Attention<softcap = 2.0>(q, k, v, bias)", H),
}


def capped(name: str) -> tuple[onnx.ModelProto, Lowered]:
    more, body, groups = CAPPED[name]
    inputs = f"float[B,{H},S,{D}] q, float[B,{groups},S,{D}] k, float[B,{groups},S,{D}] v{more}"
    model = written(body, inputs, f"float[B,{H},S,{D}] o", at=np.array([1, 2]))
    graph = ir.from_proto(model)
    masks = [MaskSpec(("padding",), "mask", "keep")] if "mask" in more else []
    return model, base.get("openvino").lower(graph, count_in_graph(graph), plan="fp32", masks=masks)


def feeds_of(model: onnx.ModelProto, batch: int, seq: int) -> dict[str, np.ndarray[Any, Any]]:
    random, feeds = np.random.default_rng(seq), {}
    for value in model.graph.input:
        shape = [{"B": batch, "S": seq}.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = (2 * random.standard_normal(shape)).astype(np.float32)
    if "mask" in feeds:
        feeds["mask"] = (np.arange(seq)[None] < seq - np.arange(batch)[:, None]).astype(np.int64)
    return feeds


def by_definition(feeds: dict[str, np.ndarray[Any, Any]], causal: bool) -> np.ndarray[Any, Any]:
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(value, H // value.shape[1], axis=1) for value in (k, v))
    scores = CAP * np.tanh(q @ k.swapaxes(-1, -2) / np.sqrt(D) / CAP) + feeds.get("bias", 0.0)
    keep = np.tri(q.shape[2], dtype=bool) if causal else np.ones(1, bool)
    if "mask" in feeds:
        keep = keep & (feeds["mask"] != 0)[:, None, None]
    weights = np.where(keep, np.exp(scores), 0.0)
    found: np.ndarray[Any, Any] = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v
    return found


@pytest.mark.parametrize("name", CAPPED)
def test_attention_with_a_soft_cap_is_one_kernel(name: str, tmp_path: Path) -> None:
    model, low = capped(name)
    onnx.save(ir.to_proto(low.model), tmp_path / "model.onnx")
    assert RUNTIME.fusion_evidence(tmp_path / "model.onnx", low.anchors).keys() == low.anchors.keys() == {"module"}
    run = on_openvino(low.model)
    for sizes in SIZES:
        feeds = feeds_of(model, *sizes)
        assert distance(run(feeds), [by_definition(feeds, "causal" in name)]) < 5e-6, sizes


@pytest.mark.parametrize("name", PLAIN)
def test_attention_without_a_mask_is_right_after_a_call_with_one_token(name: str) -> None:
    shape = f"float[B,{H},S,{D}]"
    model = written(PLAIN[name], f"{shape} q, {shape} k, {shape} v", f"{shape} o")
    graph = ir.from_proto(model)
    low = base.get("openvino").lower(graph, count_in_graph(graph) if "operator" in name else (), plan="fp32", masks=())
    run = on_openvino(low.model)
    for sizes in SIZES:
        feeds = feeds_of(model, *sizes)
        scores = feeds["q"].astype(np.float64) @ feeds["k"].swapaxes(-1, -2)
        scores = scores / np.sqrt(D) if "operator" in name else np.tanh(scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        assert distance(run(feeds), [weights / weights.sum(-1, keepdims=True) @ feeds["v"]]) < 5e-6, sizes


def test_a_row_with_no_allowed_key_behind_a_soft_cap_gives_zero() -> None:
    model, low = capped("padding")
    feeds = feeds_of(model, 2, 5)
    feeds["mask"][0] = 0
    (found,) = on_openvino(low.model)(feeds)
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1], by_definition(feeds, False)[1], atol=5e-6)


def test_a_mask_beside_the_causal_one_is_kept() -> None:
    """In a graph made elsewhere, where the operator may stay as it is."""
    inputs = f"float[B,{H},S,{D}] q, float[B,{H},S,{D}] k, float[B,{H},S,{D}] v, float[B,{H},S,S] m"
    body = "o = Attention<softcap = 2.0, scale = 1.0, is_causal = 1>(q, k, v, m)"
    assert write_out_soft_caps(ir.from_proto(written(body, inputs, f"float[B,{H},S,{D}] o"))) == 0


def test_openvinos_own_soft_cap_is_several_kernels(tmp_path: Path) -> None:
    """Where it is one, the pass can go."""
    model, _ = capped("causal")
    onnx.save(model, tmp_path / "model.onnx")
    assert RUNTIME.fusion_evidence(tmp_path / "model.onnx", {"module": ("node_0",)}) == {}


class Positions(nn.Module):
    """A table of positions, brought to the size of a picture."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mode, self.table = mode, nn.Parameter(torch.randn(1, 3, 6, 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.interpolate(self.table, size=x.shape[2:], mode=self.mode, antialias=True)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_positions_are_resized_as_by_the_module(mode: str) -> None:
    x = TensorSpec("x", "float32", ("batch", 3, "height", "width"))
    dims = tuple(Dim(name, 1, 8, 64) for name in ("batch", "height", "width"))
    module = Positions(mode)
    exported = export(module, IOContract((x,), (TensorSpec("y", "float32", x.dims),), dims))
    run, own = on_openvino(exported.lowered("openvino").model), on_openvino(exported.model)
    for size in ((6, 9), (3, 4), (12, 18), (5, 20), (2, 7)):
        given = torch.zeros(2, 3, *size)
        assert distance(run({"x": given.numpy()}), [module(given).detach().numpy()]) < 1e-5
    smaller = torch.zeros(1, 3, 3, 4)
    # Where the plugin's own is right for a smaller picture, the pass can go.
    assert distance(own({"x": smaller.numpy()}), [module(smaller).detach().numpy()]) > 1e-2
