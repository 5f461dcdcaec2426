"""A plain module says nothing of positions: whether it has some shows in its own rows, never in a runtime's alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import ParityReport, Session
from attnport.errors import ParityFailed
from attnport.parity import evaluate
from attnport.parity.invariance import ON_THE_LEFT
from attnport.verbs.check import check, raise_for
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

MODULE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, mask):
        seen = mask[:, :, None].to(x.dtype)
        {body}

def make():
    return Model().eval()
"""
STILL = "return x - (x * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)"
MOVING = "return x + torch.arange(x.shape[1], dtype=x.dtype)[None, :, None] / 64"
LEAKING = "return x - x.mean(1, keepdim=True)"
NOTE = "padding on the left moves the module's own rows"


def checked(folder: Path, body: str) -> ParityReport:
    source = folder / "model.py"
    source.write_text(MODULE.format(body=body))
    inputs = ("x=float32[batch,seq,8]", "mask=int64[batch,seq]:padding")
    export(f"{source}:make", folder / "out", inputs=inputs, dims=("batch=1:4:4", "seq=1:16:48"))
    fuse(folder / "out", targets=["ort_cpu"])
    return check(folder / "out", ["ort_cpu", "torch_eager"])


def test_a_module_with_positions_is_not_padded_on_the_left_and_the_report_says_so(tmp_path: Path) -> None:
    report = checked(tmp_path, MOVING)
    assert report.verdict == "PASS", report.runtimes["ort_cpu"].reason
    assert any(NOTE in note for note in report.notes)
    compared = {pair.comparison for pair in report.runtimes["ort_cpu"].invariance}
    assert compared
    assert ON_THE_LEFT not in compared


@pytest.mark.slow
def test_a_module_without_positions_is_padded_on_both_sides(tmp_path: Path) -> None:
    report = checked(tmp_path, STILL)
    assert report.verdict == "PASS", report.runtimes["ort_cpu"].reason
    assert not any(NOTE in note for note in report.notes)
    assert ON_THE_LEFT in {pair.comparison for pair in report.runtimes["ort_cpu"].invariance}


def test_a_module_whose_padding_leaks_on_either_side_fails(tmp_path: Path) -> None:
    report = checked(tmp_path, LEAKING)
    assert report.verdict == "FAIL"
    assert "padding changes valid rows" in report.runtimes["ort_cpu"].reason
    assert not any(NOTE in note for note in report.notes)
    with pytest.raises(ParityFailed) as caught:
        raise_for(report)
    assert "The module itself fails: check that each mask input has the declared meaning" in caught.value.hint


@pytest.mark.slow
def test_a_runtime_that_alone_moves_with_padding_on_the_left_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = evaluate._run

    def lying(session: Session, feeds: Mapping[str, Any]) -> Any:
        found = honest(session, feeds)
        if session.ran.provider == "CPUExecutionProvider" and feeds["mask"].shape[0] == 1 and not feeds["mask"][0, 0]:
            return {name: array + 1 for name, array in found.items()}
        return found

    monkeypatch.setattr(evaluate, "_run", lying)
    report = checked(tmp_path, STILL)
    assert report.runtimes["ort_cpu"].verdict == "FAIL"
    assert ON_THE_LEFT in report.runtimes["ort_cpu"].reason
    with pytest.raises(ParityFailed) as caught:
        raise_for(report)
    assert "by itself" not in caught.value.hint
