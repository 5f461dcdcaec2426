"""One kernel of TensorRT-RTX covers an attention of any head dim from 8 to 256, odd ones too, in every plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.artifacts import Evidence, ModelSpec
from attnport.exporter import storage
from attnport.exporter.capture import capture
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import prove, read_engine_text
from attnport.exporter.targets import base
from attnport.models.base import get

pytest.importorskip("tensorrt_rtx")

HEADS = 2
DEPTHS = (8, 9, 12, 16, 20, 24, 31, 32, 40, 48, 64, 80, 96, 100, 128, 160, 192, 255, 256)
# Each depth in fp16; the other plans have the same kernels, so the ends and what has to be padded is enough.
PLANS = {"fp16": DEPTHS, "bf16": (8, 12, 20, 100, 128, 256), "fp16_islands": (8, 12, 20, 100, 128, 256)}
# No mask, a mask, a bias with a mask, keys that heads share, keys of another sequence.
ATTENTIONS = (
    "self_attention",
    "masked_self_attention",
    "alibi_attention",
    "grouped_query_attention",
    "cross_attention",
)
QUICK = {
    ("self_attention", 256, "bf16"),
}


def spec_of(name: str, depth: int) -> ModelSpec:
    """The ModelSpec of an attention of attnport with this head dim."""
    sizes = {"depth": depth} if name == "self_attention" else {"heads": HEADS}
    if name == "grouped_query_attention":
        sizes["groups"] = 1
    return get(name, width=HEADS * depth, **sizes)


def proofs(name: str, depth: int, plan: str, folder: Path) -> dict[str, object]:
    """What the engine's text says of each counted attention."""
    spec = spec_of(name, depth)
    found = capture(spec.make(), spec.io)
    low = base.get("tensorrt_rtx").lower(found.model, found.attentions, plan=plan, masks=spec.io.masks)
    storage.save_form(low.model, folder / "form.onnx", "form.bin")
    build_engine("tensorrt_rtx", folder / "form.onnx", spec.io, folder / "form.engine", plan=plan)
    text = read_engine_text(folder / "form.engine")
    return {one.name: prove(text, low.anchors.get(one.name, ()), 1) for one in found.attentions}


@pytest.mark.parametrize(
    ("name", "depth", "plan"),
    [
        pytest.param(name, depth, plan, marks=[] if (name, depth, plan) in QUICK else [pytest.mark.slow])
        for number, (name, plan, depth) in enumerate(
            (name, plan, depth) for name in ATTENTIONS for plan, depths in PLANS.items() for depth in depths
        )
        if number % 3 == 0 or (name, depth, plan) in QUICK
    ],
)
def test_one_kernel_covers_every_head_dim(name: str, depth: int, plan: str, tmp_path: Path) -> None:
    found = proofs(name, depth, plan, tmp_path)
    assert found
    assert all(isinstance(proof, Evidence) for proof in found.values()), found


def test_a_head_dim_beyond_the_kernels_is_noticed(tmp_path: Path) -> None:
    assert not any(
        isinstance(proof, Evidence) for proof in proofs("masked_self_attention", 264, "fp16", tmp_path).values()
    )
