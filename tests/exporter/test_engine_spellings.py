"""Attentions as people write them, lowered and built for TensorRT-RTX: one kernel covers each, or it is pinned."""

from __future__ import annotations

from pathlib import Path

import pytest
from representatives import representatives
from running import lowered
from spellings import ALL, AXES, CASES

from attnport.artifacts import Evidence
from attnport.errors import EngineBuildError
from attnport.exporter import storage
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import prove, read_engine_text

pytest.importorskip("tensorrt_rtx")

# What has no kernel with the pinned builder (1.7.1), and why; it only shrinks.
NO_KERNEL = {
    "one_sequence": "one head of one item, both sizes fixed at 1",
    "non_local": "one head over as many positions as an image has, a product of two sizes",
    "one_query": "one masked head of one query",
    "one_head_operator": "one masked head, twice over the same inputs",
}
FIRST_OF_EACH_AXIS = [next(iter(axis)) for axis in AXES.values()]
QUICK = {("fp16", "windows_any_number"), ("fp16", "rotary_half"), ("bf16", "gqa"), ("fp16_islands", "causal_padding")}


def engine(name: str, plan: str, folder: Path) -> dict[str, object]:
    """What the engine's text says of each attention."""
    low = lowered(name, "tensorrt_rtx", plan)
    storage.save_form(low.model, folder / "form.onnx", "form.bin")
    build_engine("tensorrt_rtx", folder / "form.onnx", ALL[name].io, folder / "form.engine", plan=plan)
    engine_text = read_engine_text(folder / "form.engine")
    return {attention: prove(engine_text, low.anchors.get(attention, ()), 1) for attention in low.anchors or {"module"}}


PLANS = ("fp16", "bf16", "fp16_islands")
# Each in one plan, in turn, as a build takes a second; the first of each axis in every plan.
BUILT = {
    (plan, name) for at, name in enumerate(sorted(set(ALL) - set(NO_KERNEL))) for plan in (PLANS[at % len(PLANS)],)
}
BUILT |= {(plan, name) for name in FIRST_OF_EACH_AXIS for plan in (*PLANS, "bf16_islands")} | QUICK


@pytest.mark.parametrize(("plan", "name"), representatives(sorted(BUILT), QUICK))
def test_one_kernel_covers_it(name: str, plan: str, tmp_path: Path) -> None:
    proofs = engine(name, plan, tmp_path)
    assert proofs
    assert all(isinstance(proof, Evidence) for proof in proofs.values()), proofs


@pytest.mark.parametrize("name", representatives(NO_KERNEL, ["one_query"]))
def test_what_has_no_kernel_is_not_fused(name: str, tmp_path: Path) -> None:
    try:
        proofs = engine(name, "fp16", tmp_path)
    except EngineBuildError:
        return
    assert not all(isinstance(proof, Evidence) for proof in proofs.values()), "the builder has learned it: take it out"


def test_nearly_every_spelling_has_a_kernel() -> None:
    assert set(NO_KERNEL) <= set(CASES)
    assert len(ALL) - len(NO_KERNEL) >= 150
