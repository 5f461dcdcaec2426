"""On CUDA, q, k and v of a self-attention come from one matrix product; what else there is stays as it is."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from running import Exported, export, on_reference
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import attnport
from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.verbs.export import export as exported_to
from attnport.verbs.fuse import fuse

H, D, K = 2, 8, 12
DIMS = (Dim("batch", 1, 2, 4), Dim("seq", 1, 5, 8), Dim("mem", 1, 6, 8))
X, MASK = TensorSpec("x", "float32", ("batch", "seq", K)), TensorSpec("mask", "bool", ("batch", 1, "seq", "seq"))
MEMORY = TensorSpec("memory", "float32", ("batch", "seq", K))


class SelfAttention(nn.Module):
    """Three layers and an attention.

    Args:
        biases: Which layers add a bias.
        groups: Heads of keys and values.
        other: Whether keys and values are of another input, as long as the first.
    """

    def __init__(self, biases: str = "qkv", groups: int = H, *, other: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.groups, self.other = groups, other
        self.q = nn.Linear(K, H * D, bias="q" in biases)
        self.k = nn.Linear(K, groups * D, bias="k" in biases)
        self.v = nn.Linear(K, groups * D, bias="v" in biases)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        of = memory if self.other else x
        q = self.q(x).unflatten(-1, (H, D)).transpose(1, 2)
        k, v = (layer(of).unflatten(-1, (self.groups, D)).transpose(1, 2) for layer in (self.k, self.v))
        out = sdpa(q, k, v, attn_mask=mask, enable_gqa=self.groups != H)
        return out.transpose(1, 2).flatten(2) + (0 if self.other else memory.sum())


@functools.cache
def exported(biases: str = "qkv", groups: int = H, other: bool = False) -> tuple[SelfAttention, Exported]:
    module = SelfAttention(biases, groups, other=other)
    out = TensorSpec("out", "float32", ("batch", "seq", H * D))
    return module, export(module, IOContract((X, MEMORY, MASK), (out,), DIMS[:2]))


def feeds(empty: bool) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((3, 5, K)).astype(np.float32) for name in ("x", "memory")}
    mask = random.random((3, 1, 5, 5)) < 0.6
    mask[:, :, :, 0] = True
    if empty:
        mask[0] = False
    return given | {"mask": mask}


def operator(model: ir.Model) -> ir.Node:
    (node,) = (node for node in model.graph if node.op_type == "MultiHeadAttention")
    return node


@pytest.mark.parametrize("biases", ["qkv", "qv", ""])
@pytest.mark.parametrize("empty", [False, True])
def test_one_product_computes_the_same(biases: str, empty: bool) -> None:
    module, made = exported(biases)
    model = made.lowered("ort_cuda", "fp16").model
    assert [node.op_type for node in model.graph].count("MatMul") == 1
    assert operator(model).inputs[1] is None
    given = feeds(empty)
    with torch.no_grad():
        expected = module(*(torch.from_numpy(given[name]) for name in ("x", "memory", "mask"))).numpy()
    given = {name: value.astype(np.float16) if value.dtype == np.float32 else value for name, value in given.items()}
    got = on_reference(model)(given)[0]
    np.testing.assert_allclose(got, expected, atol=3e-2)
    assert np.abs(got - expected).max() > 0


@pytest.mark.parametrize(
    ("options", "plan"), [({}, "fp32"), ({"groups": 1}, "fp16"), ({"other": True}, "fp16")], ids=str
)
def test_where_it_does_not_fit_there_are_three(options: dict[str, int], plan: str) -> None:
    """In float32 the kernels were not measured; grouped heads and other memory have no packed form."""
    model = exported(**options)[1].lowered("ort_cuda", plan).model
    assert [node.op_type for node in model.graph].count("MatMul") == 3
    assert operator(model).inputs[1] is not None


@pytest.mark.slow
@pytest.mark.parametrize("biases", ["qkv", ""])
def test_the_form_is_read_back_as_a_file(biases: str, tmp_path: Path) -> None:
    module, made = exported(biases)
    proto = ir.to_proto(made.lowered("ort_cuda", "fp16").model)
    (tmp_path / "form.onnx").write_bytes(proto.SerializeToString())
    exported_to(f"onnx:{tmp_path / 'form.onnx'}", tmp_path / "out")
    (item,) = fuse(tmp_path / "out", targets=["ort_cpu"]).targets["ort_cpu"].items
    assert item.fused
    assert item.mask == "explicit(mask)"
    given = feeds(empty=False)
    with torch.no_grad():
        expected = module(*(torch.from_numpy(given[name]) for name in ("x", "memory", "mask"))).numpy()
    with attnport.open(tmp_path / "out").open("ort_cpu") as running:
        (got,) = running.run(**given).values()
    np.testing.assert_allclose(got, expected, atol=5e-3)


class TwiceWithOtherHeads(nn.Module):
    """The same three layers in two attentions, of 2 and of 4 heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(H * D, H * D) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for heads in (H, 2 * H):
            q, k, v = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in self.layers)
            x = sdpa(q, k, v).transpose(1, 2).flatten(2)
        return x


def test_a_weight_of_two_attentions_is_packed_by_the_heads_of_each() -> None:
    module = TwiceWithOtherHeads()
    x, out = (TensorSpec(name, "float32", ("batch", "seq", H * D)) for name in ("x", "out"))
    model = export(module, IOContract((x,), (out,), DIMS[:2])).lowered("ort_cuda", "fp16").model
    assert [node.op_type for node in model.graph].count("MatMul") == 2
    given = np.random.default_rng(0).standard_normal((2, 5, H * D)).astype(np.float16)
    with torch.no_grad():
        expected = module(torch.from_numpy(given.astype(np.float32))).numpy()
    np.testing.assert_allclose(on_reference(model)({"x": given})[0], expected, atol=5e-3)
