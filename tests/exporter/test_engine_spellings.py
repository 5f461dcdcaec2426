"""Attentions as people write them, lowered and built for TensorRT-RTX: one kernel covers each, or it is pinned."""

from __future__ import annotations

from pathlib import Path

import pytest
from handwritten import CASES

from attnport.artifacts import Evidence
from attnport.errors import EngineBuildError
from attnport.exporter import storage
from attnport.exporter.engine import build_engine, prove, read_plan

from running import lowered

pytest.importorskip("tensorrt_rtx")

# The builder has no kernel for a masked attention of one head (1.7.1): the operator is refused, products stay apart.
ONE_HEAD = ("one_head_hidden", "one_head_operator")
NOT_LOWERED = ("learned_queries",)


def engine(name: str, plan: str, folder: Path) -> dict[str, object]:
    """What the engine's text says of each attention."""
    low = lowered(name, "tensorrt_rtx", plan)
    storage.save_form(low.model, folder / "form.onnx", "form.bin")
    build_engine("tensorrt_rtx", folder / "form.onnx", ALL[name].io, folder / "form.engine", plan=plan)
    plan_text = read_plan(folder / "form.engine")
    return {attention: prove(plan_text, anchors, 1) for attention, anchors in low.anchors.items()}


@pytest.mark.parametrize("name", [name for name in ALL if name not in (*ONE_HEAD, *NOT_LOWERED)])
def test_one_kernel_covers_it_in_fp16(name: str, tmp_path: Path) -> None:
    proofs = engine(name, "fp16", tmp_path)
    assert proofs
    assert all(isinstance(proof, Evidence) for proof in proofs.values()), proofs


@pytest.mark.parametrize("plan", ["bf16", "fp16_islands", "bf16_islands"])
@pytest.mark.parametrize("name", ["masked_fill", "causal_padding", "gqa", "alibi"])
def test_one_kernel_covers_it_in_every_plan_of_half_precision(name: str, plan: str, tmp_path: Path) -> None:
    proofs = engine(name, plan, tmp_path)
    assert all(isinstance(proof, Evidence) for proof in proofs.values()), proofs


@pytest.mark.parametrize("name", ONE_HEAD)
def test_a_masked_attention_of_one_head_is_not_fused(name: str, tmp_path: Path) -> None:
    try:
        proofs = engine(name, "fp16", tmp_path)
    except EngineBuildError:
        return
    assert not all(isinstance(proof, Evidence) for proof in proofs.values()), "the builder has learned it: lower it"


def test_the_suite_has_every_spelling() -> None:
    assert set(CASES) <= set(ALL)
    assert len(ALL) >= 30
