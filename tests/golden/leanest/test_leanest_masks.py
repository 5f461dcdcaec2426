"""For every kind of mask, an engine of our own path wants no more scratch memory than a form written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from attention_block import BOOL, Block, engine
from leanest_masks import LEANEST
from torch_masks import ATTENDS, engine_of_ours

from attnport.artifacts import Evidence

pytest.importorskip("tensorrt_rtx")
FACTS_MB = {"causal": 50, "padding": 50, "causal_padding": 59, "window": 59, "alibi": 59, "gathered": 168}
"""Measured when the project began: one block, B=4, at T=4096, in the form that was then the best."""
ONE = "causal_padding"


def _each(name: str) -> Any:
    return pytest.param(name, marks=() if name == ONE else pytest.mark.slow)


@pytest.mark.parametrize("kind", [_each(kind) for kind in LEANEST])
def test_our_own_lowering_is_fused_and_within_a_tenth_of_the_leanest(kind: str, tmp_path: Path) -> None:
    write, sizes = LEANEST[kind]
    leanest, proof, _ = engine(write, tmp_path, sizes)
    assert isinstance(proof, Evidence), proof
    ours, proof, form = engine_of_ours(kind, tmp_path)
    assert isinstance(proof, Evidence), (form, proof)
    assert ours.scratch_bytes <= 1.1 * leanest.scratch_bytes, form
    assert ours.scratch_bytes <= 1.1e6 * FACTS_MB.get(kind, float("inf"))


@pytest.mark.parametrize(
    ("kind", "tiles"),
    [
        ("padding", "hidden tiles skipped by a run-time tile map"),
        ("causal_padding", "hidden tiles skipped by a run-time tile map"),
        ("causal", "tiles right of `row + 0` skipped"),
        ("window", "tiles left of"),
    ],
)
def test_hidden_tiles_are_skipped(kind: str, tiles: str, tmp_path: Path) -> None:
    write, sizes = LEANEST[kind]
    assert tiles in engine(write, tmp_path, sizes)[2]


def test_the_bar_is_one_that_wasteful_forms_do_not_pass(tmp_path: Path) -> None:
    def written_out(b: Block) -> ir.Value:
        causal = b.op("LessOrEqual", b.index("j"), b.index("i"))
        return b.operator(b.op("And", causal, b.padding()))

    def guarded_within(b: Block) -> ir.Value:
        b.anchors = ("qk", "softmax", "pv")
        causal = b.op("LessOrEqual", b.index("j"), b.index("i"))
        scores = b.hidden(b.op("Equal", b.op("And", causal, b.padding()), b.input("true", BOOL, 1)), b.scores())
        weights = b.op("Softmax", scores, name="softmax", axis=-1)
        return b.op("MatMul", b.op("Where", b.op("IsNaN", weights), b.const(0.0), weights), b.v, name="pv")

    leanest, _, _ = engine(LEANEST[ONE][0], tmp_path)
    for write in (written_out, guarded_within):
        wasteful, proof, _ = engine(write, tmp_path)
        assert isinstance(proof, Evidence), "fused, and yet wasteful"
        assert wasteful.scratch_bytes > 1.1 * leanest.scratch_bytes


def test_an_attention_that_no_kernel_covers_is_told_from_a_fused_one(tmp_path: Path) -> None:
    def capped(b: Block) -> ir.Value:
        return b.products(b.op("Tanh", b.scores()))

    record, proof, _ = engine(capped, tmp_path)
    assert isinstance(proof, str)
    assert record.scratch_bytes > 1e9


def test_every_kind_is_written_both_by_hand_and_in_torch() -> None:
    assert list(ATTENDS) == list(LEANEST)
