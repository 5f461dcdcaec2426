"""docs/packages.md is what its script makes of the results, and says what is wrong, silent or missing."""

from __future__ import annotations

import json
from typing import Any

from scripts import ROOT, load

make = load("docs/make_packages.py")


def result(*, right: bool = True, exported: bool = True, **changed: Any) -> dict[str, Any]:
    known = {"package": "own", "made": True, "right": right, "exported": exported, "export_s": 2.0, "peak_mib": 300}
    return {**known, "reason": "" if right else "it is off", "of": "torch 2.13.0 onnxruntime 1.31.1 abc", **changed}


def test_the_page_is_made_of_the_results() -> None:
    found = json.loads((ROOT / "benchmarks" / "sweep_packages.json").read_text("utf-8"))
    assert (ROOT / "docs" / "packages.md").read_text("utf-8") == make.page(found)


def test_what_is_lost_silent_or_wrongly_passed_is_named() -> None:
    limited = ["got size 7 on axis 1; expected 6 (without a note)"]
    fused = {"attentions": 5, "fused": {"ort_cpu": 3, "openvino": 1}, "no_kernel": {"ort_cpu": 1, "openvino": 0}}
    found = {
        "fine": {"torch": result(), "examples": result(**fused), "declared": result(export_s=5.0, **fused)},
        "lost": {"torch": result(), "examples": result(right=False, exported=False), "declared": result()},
        "quiet": {"examples": result(right=False, reason=limited[0], limited=limited, silent=True)},
        "worse": {"declared": result(right=False, verdict="PASS")},
    }
    page = make.page(found)
    assert "Right with torch.onnx alone and not from an example: 1: lost." in page
    assert "Right with torch.onnx alone and not with declarations: 0." in page
    assert "without a note: 1: quiet." in page
    assert "PASS in `check`: 1: worse." in page
    assert "Fused on ONNX Runtime: 3 of 5 attentions (75% without 1 that no fused kernel computes)." in page
    assert "Fused on OpenVINO: 1 of 5 attentions." in page
    assert "| quiet |  |  | limited |" in page
    assert "| worse |" in page
    assert "**wrong**" in page
