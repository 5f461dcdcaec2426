"""Every kind of mask, written with the torch builders and captured, is read back as what it was built from."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from representatives import representatives
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from written_graphs import written

from attnport.artifacts import IOContract, SourceAttention
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture
from attnport.exporter.fusion.recognise import Recognition, recognise
from attnport.masks import CARRIES, KINDS, MaskSpec, torch_biases, torch_builders

H, D = 2, 4
HEADS = ("batch", H, "seq", D)
INPUTS = {
    "x": TensorSpec("x", "float32", HEADS),
    "past": TensorSpec("past", "float32", ("batch", H, "past", D)),
    "memory": TensorSpec("memory", "float32", ("batch", H, "mem", D)),
    "keep": TensorSpec("keep", "int64", ("batch", "seq")),
    "hide": TensorSpec("hide", "bool", ("batch", 1, 1, "seq")),
    "added": TensorSpec("added", "float32", ("batch", 1, 1, "seq")),
    "pairs": TensorSpec("pairs", "bool", ("batch", 1, "seq", "seq")),
    "memory_keep": TensorSpec("memory_keep", "bool", ("batch", "mem")),
    "lengths": TensorSpec("lengths", "int64", ("batch",)),
    "ids": TensorSpec("ids", "int32", ("batch", "seq")),
    "marks": TensorSpec("marks", "int64", ("batch", "seq")),
    "memory_ids": TensorSpec("memory_ids", "int64", ("batch", "mem")),
}
LR = "lower_right"
SELF = {
    "none": MaskSpec(),
    "keep": MaskSpec(("padding",), "keep"),
    "hide": MaskSpec(("padding",), "hide", "hide"),
    "added": MaskSpec(("padding",), "added", "additive"),
    "pairs": MaskSpec(("explicit",), "pairs"),
    "lengths": MaskSpec(("padding",), "lengths", carries="lengths"),
    "causal": MaskSpec(("causal",)),
    "causal_padding": MaskSpec(("causal", "padding"), "keep"),
    "window": MaskSpec(("window",), window=2),
    "causal_window": MaskSpec(("causal", "window"), window=3),
    "prefix": MaskSpec(("causal", "prefix"), "lengths", carries="lengths"),
    "documents": MaskSpec(("documents",), "ids", carries="ids"),
    "packed": MaskSpec(("documents", "padding", "causal"), "ids", carries="ids"),
    "local_global": MaskSpec(("window", "global"), "marks", window=2, carries="marks"),
    "causal_global": MaskSpec(("window", "global", "causal"), "marks", window=1, carries="marks"),
}
CACHED = {
    "cached": MaskSpec(("causal",), alignment=LR),
    "cached_window": MaskSpec(("causal", "window"), window=3, alignment=LR),
    "cached_lengths": MaskSpec(("causal", "padding"), "lengths", carries="lengths", alignment=LR),
    "cached_prefix": MaskSpec(("causal", "prefix"), "lengths", carries="lengths", alignment=LR),
}
CROSS = {
    "cross": MaskSpec(("padding",), "memory_keep"),
    "cross_lengths": MaskSpec(("padding",), "lengths", carries="lengths"),
    "cross_causal": MaskSpec(("causal",)),
    "cross_from_end": MaskSpec(("causal",), alignment=LR),
    "cross_window": MaskSpec(("window",), window=1, alignment=LR),
    "cross_documents": MaskSpec(("documents",), "memory_ids", carries="ids"),
}
ALL = {**SELF, **CACHED, **CROSS}
QUICK = ("added", "packed", "causal_window", "prefix", "causal_global", "cached_lengths", "cross_from_end", "t5")
"""Each kind, alignment and content of an input once: 27 attentions in one module take ten seconds."""
BIASED = {"alibi": MaskSpec(("causal", "bias")), "t5": MaskSpec(("padding", "bias"), "keep")}


class Attend(nn.Module):
    """Attention of `x` to some keys under one mask; every other one is written out."""

    def __init__(self, mask: MaskSpec, *, operator: bool, bias: str = "") -> None:
        super().__init__()
        self.mask, self.operator, self.bias = mask, operator, bias
        self.table = nn.Parameter(torch.arange(8.0 * H).view(8, H))

    def forward(self, q: Any, k: Any, value: Any) -> Any:
        S, T = q.shape[2], k.shape[2]
        keep = None if self.mask.kinds == ("none",) else torch_builders.build(self.mask, value, S, T)
        if self.operator:
            return sdpa(q, k, k, attn_mask=None if keep is None else keep.expand(-1, -1, S, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(D)
        if self.bias == "alibi":
            scores = scores + torch_biases.alibi(H, S, T)
        elif self.bias == "t5":
            scores = scores + torch_biases.t5_bias(self.table, S, T, max_distance=9)
        return (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1) @ k


class Attends(nn.Module):
    """Attentions under these masks; each has the name of its mask."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.each = nn.ModuleDict()
        for number, name in enumerate(names):
            bias = name if name in BIASED else ""
            mask = replace(BIASED[name], kinds=BIASED[name].kinds[:1]) if bias else ALL[name]
            self.each[name] = Attend(mask, operator=bool(number % 2) and not bias, bias=bias)

    def forward(
        self, x: Any, past: Any, memory: Any, keep: Any, hide: Any, added: Any, pairs: Any, memory_keep: Any,
        lengths: Any, ids: Any, marks: Any, memory_ids: Any,
    ) -> Any:  # fmt: skip
        every = (x, past, memory, keep, hide, added, pairs, memory_keep, lengths, ids, marks, memory_ids)
        held = dict(zip(INPUTS, every, strict=True))
        total = x
        for name, attend in self.each.items():
            k = torch.cat([past, x], 2) if name.startswith("cached") else memory if name.startswith("cross") else x
            total = total + attend(x, k, held.get(str(attend.mask.input)))
        return total


@functools.cache
def found(quick: bool) -> Recognition:
    """What is read in a module of all masks, or of those that are tried quickly: one export."""
    dims = (Dim("batch", 1, 2, 8), Dim("seq", 1, 5, 64), Dim("past", 1, 3, 64), Dim("mem", 1, 7, 64))
    masks = tuple(mask for mask in ALL.values() if mask.input)
    io = IOContract(tuple(INPUTS.values()), (TensorSpec("y", "float32", HEADS),), dims, masks)
    captured = capture(Attends(QUICK if quick else [*ALL, *BIASED]).eval(), io)
    return recognise(captured.model, captured.attentions, masks=masks)


def read_of(name: str) -> MaskSpec:
    read = found(name in QUICK)
    assert not read.reasons
    spec = next(each.mask.spec for each in read.attentions if each.name == f"each.{name}")
    return replace(spec, kinds=tuple(sorted(spec.kinds)))


def test_every_kind_and_content_is_captured() -> None:
    assert {kind for mask in (*ALL.values(), *BIASED.values()) for kind in mask.kinds} == set(KINDS)
    assert {mask.carries for mask in ALL.values()} == set(CARRIES)


@pytest.mark.parametrize("name", representatives(ALL, set(QUICK) & set(ALL)))
def test_a_mask_that_was_built_is_read_back(name: str) -> None:
    expected = replace(ALL[name], kinds=tuple(sorted(ALL[name].kinds)))
    assert read_of(name) == expected


@pytest.mark.parametrize("name", representatives(BIASED, set(QUICK) & set(BIASED)))
def test_a_bias_beside_a_mask_is_read_as_one(name: str) -> None:
    assert read_of(name) == replace(BIASED[name], kinds=tuple(sorted(BIASED[name].kinds)))


@pytest.mark.parametrize(
    ("mask", "kinds"),
    [
        (MaskSpec(("padding",), "m"), ("padding",)),
        (MaskSpec(("documents",), "m", carries="ids"), ("bias",)),
    ],
    ids=str,
)
def test_only_what_is_declared_a_mask_is_taken_for_a_truth_value(mask: MaskSpec, kinds: tuple[str, ...]) -> None:
    proto = written(
        "c = Cast<to=1>(m) e = Unsqueeze(c, axes) r = Sub(one, e) a = Mul(r, low) "
        "s0 = MatMul(q, k) s = Add(s0, a) p = Softmax(s) y = MatMul(p, v)",
        "float[B,2,S,4] q, float[B,2,4,T] k, float[B,2,T,4] v, int64[B,T] m",
        "float[B,2,S,4] y", axes=[1, 2], one=np.float32(1), low=np.float32(-1e4),
    )  # fmt: skip
    read = recognise(ir.from_proto(proto), [SourceAttention("a", "", "softmax")], masks=[mask])
    assert read.attentions[0].mask.spec.kinds == kinds
