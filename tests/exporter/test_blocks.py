"""Local attention in blocks gives what the window says, at every length, and is left alone where it cannot."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from representatives import crossed, representatives
from running import Exported, Run, distance, export, on_openvino, on_ort
from spellings.case import contract
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnport.dims import TensorSpec
from attnport.exporter.forms.blocks import WIDEST, Window
from attnport.exporter.targets.base import Lowered
from attnport.masks import MaskSpec

pytest.importorskip("onnxruntime")

H, D = 4, 8
NEAR = 64
"""The narrow windows' width, for which a block has 64 queries."""
RUNS: dict[str, Callable[[ir.Model], Run]] = {"ort_cpu": on_ort, "openvino": on_openvino}


@dataclass(frozen=True)
class Local:
    """A local attention: how far keys may be before and after, and what else its mask holds."""

    before: int
    after: int
    groups: int = H
    padding: bool = True
    bias: bool = False
    documents: bool = False

    @property
    def window(self) -> Window:
        return Window(self.before, self.after)

    def lengths(self) -> list[int]:
        """Around one block, around the longest single block, and longer with a last block of every kind."""
        block, short = self.window.block, self.window.short
        return [1, block - 1, short, short + 1, short + block - 1, short + 2 * block + block // 2 + 3]


CASES = {
    "symmetric": Local(NEAR, NEAR),
    "narrow": Local(5, 5),
    "causal": Local(NEAR, 0),
    "wide_causal": Local(160, 0),
    "uneven": Local(70, 9),
    "one_key": Local(0, 0),
    "grouped": Local(NEAR, NEAR, groups=2),
    "without_padding": Local(NEAR, NEAR, padding=False),
}
LEFT_ALONE = {
    "bias": (Local(NEAR, NEAR, bias=True), "bias"),
    "documents": (Local(NEAR, NEAR, documents=True), "pairs of tokens"),
    "wide": (Local(WIDEST + 1, 0), "not much shorter"),
}


class Attend(torch.nn.Module):
    """A layer's attention between `[B,T,H D]` tensors, so that heads are split and merged in the graph."""

    def __init__(self, case: Local) -> None:
        super().__init__()
        self.case = case

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, ids: Any = None) -> Any:
        at = torch.arange(q.shape[1])
        i, j = at[:, None], at[None, :]
        keep = ((i - j <= self.case.before) & (j - i <= self.case.after))[None, None]
        if mask is not None:
            keep = keep & (mask != 0)[:, None, None, :]
        if ids is not None:
            keep = keep & (ids[:, None, :, None] == ids[:, None, None, :])
        given = keep if bias is None else torch.where(keep, bias, -torch.inf)
        q, k, v = (x.unflatten(-1, (-1, D)).transpose(1, 2) for x in (q, k, v))
        q = q * 1.5  # as rotary embedding does: q is computed with the heads first, v is only transposed
        out = sdpa(q, k, v, attn_mask=given, enable_gqa=self.case.groups != H)
        return out.transpose(1, 2).flatten(2)


def _contract(case: Local) -> Any:
    inputs = [
        TensorSpec(name, "float32", ("batch", "seq", heads * D))
        for name, heads in (("q", H), ("k", case.groups), ("v", case.groups))
    ]
    inputs += [TensorSpec("mask", "int64", ("batch", "seq"))] * case.padding
    inputs += [TensorSpec("bias", "float32", (1, H, "seq", "seq"))] * case.bias
    inputs += [TensorSpec("ids", "int64", ("batch", "seq"))] * case.documents
    masks = (MaskSpec(("padding",), "mask"),) if case.padding else ()
    return contract(*inputs, outputs=(TensorSpec("y", "float32", ("batch", "seq", H * D)),), masks=masks)


@functools.cache
def exported(case: Local) -> Exported:
    return export(Attend(case), _contract(case))


def lowered(case: Local, target: str) -> Lowered:
    result = exported(case).lowered(target)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    return result


def feeds(case: Local, batch: int, length: int, layout: str) -> dict[str, Any]:
    random = np.random.default_rng(length + batch)
    made: dict[str, Any] = {
        name: random.standard_normal((batch, length, heads * D)).astype(np.float32)
        for name, heads in (("q", H), ("k", case.groups), ("v", case.groups))
    }
    if case.padding:
        at = np.arange(length)[None, :]
        cut = random.integers(0, length, (batch, 1))
        mask = {
            "full": np.ones((batch, length)),
            "right": at <= cut,
            "left": at >= cut,
            "interior": (random.random((batch, length)) < 0.6) | (at == cut),
            "empty": (random.random((batch, length)) < 0.6) & (np.arange(batch)[:, None] > 0),
        }[layout]
        made["mask"] = mask.astype(np.int64)
    return made


def reference(case: Local, given: dict[str, Any]) -> Any:
    """In float64, by definition: a row with no allowed key gives zero."""
    q, k, v = (given[name].astype(np.float64) for name in "qkv")
    batch, length, _ = q.shape
    q, k, v = (x.reshape(batch, length, -1, D).swapaxes(1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, H // case.groups, axis=1) for x in (k, v))
    scores = 1.5 * q @ k.swapaxes(-1, -2) / np.sqrt(D)
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    keep = ((i - j <= case.before) & (j - i <= case.after))[None, None]
    if case.padding:
        keep = keep & (given["mask"] != 0)[:, None, None, :]
    scores = np.where(keep, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.nan_to_num(np.exp(scores - scores.max(-1, keepdims=True)))
        weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True))
    return (weights @ v).swapaxes(1, 2).reshape(batch, length, H * D)


def error(case: Local, run: Run, batch: int, length: int, layout: str) -> float:
    given = feeds(case, batch, length, layout)
    return distance([run(given)[0]], [reference(case, given)])


@pytest.mark.parametrize(
    ("target", "name"),
    representatives(
        itertools.product(RUNS, CASES),
        [*(("ort_cpu", name) for name in ("grouped", "symmetric")), ("openvino", "symmetric")],
    ),
)
def test_blocks_give_what_the_window_says(target: str, name: str) -> None:
    case = CASES[name]
    result = lowered(case, target)
    ((form, note),) = zip(result.forms.values(), [result.notes.get(each, "") for each in result.forms], strict=True)
    assert f"blocks of {case.window.block} queries" in form
    assert not note
    run = RUNS[target](result.model)
    for at, length in enumerate(case.lengths()):
        layouts = ["full", "right", "left", "interior", "empty"] if case.padding else ["full"]
        every = length in (case.window.block - 1, case.window.short + case.window.block - 1)
        for layout in layouts if every else layouts[:1]:
            assert error(case, run, 1 + at % 2, length, layout) < 3e-6, (length, layout)


@pytest.mark.parametrize(
    "off",
    representatives([Local(NEAR + 1, NEAR), Local(NEAR - 1, NEAR), Local(NEAR, NEAR + 1)], [Local(NEAR + 1, NEAR)]),
)
def test_a_window_that_is_off_by_one_is_seen(off: Local) -> None:
    run = on_ort(lowered(off, "ort_cpu").model)
    for length in (NEAR + 3, off.window.short + 1):
        assert error(CASES["symmetric"], run, 2, length, "full") > 1e-3


def test_a_padding_mask_that_is_left_out_is_seen() -> None:
    case = CASES["symmetric"]
    given = feeds(case, 2, case.window.short + 5, "interior")
    unpadded = given | {"mask": np.ones_like(given["mask"])}
    got = on_ort(lowered(case, "ort_cpu").model)(unpadded)[0]
    assert distance([got], [reference(case, given)]) > 1e-3


@pytest.mark.parametrize(("target", "name"), crossed(RUNS, LEFT_ALONE))
def test_what_cannot_be_in_blocks_is_left_alone_with_a_reason(target: str, name: str) -> None:
    case, reason = LEFT_ALONE[name]
    result = lowered(case, target)
    (note,) = result.notes.values()
    assert note.startswith("not in blocks: ")
    assert reason in note
    assert "blocks" not in "".join(result.forms.values())


@pytest.mark.parametrize("target", RUNS)
def test_one_operator_of_the_counted_name_computes_all_blocks(target: str) -> None:
    result = lowered(CASES["symmetric"], target)
    ((anchor,),) = result.anchors.values()
    assert [node.name for node in result.model.graph if node.op_type == "Attention"] == [anchor]


def test_no_tensor_of_the_graph_is_as_large_as_all_pairs_of_tokens() -> None:
    length = 2000
    case = CASES["symmetric"]
    model = ir.to_proto(lowered(case, "ort_cpu").model)
    kept = {value.name for value in model.graph.output}
    known = [value for node in model.graph.node for value in node.output if value and value not in kept]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in known)
    sizes = [array.size for array in on_ort(ir.from_proto(model))(feeds(case, 1, length, "full"))]
    assert max(sizes) < length * length / 8
