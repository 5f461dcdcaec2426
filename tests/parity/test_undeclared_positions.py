"""Rows that change with padding in the module itself: by positions nobody declared, or by what it does not mask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import ParityReport, Session
from attnport.console.terminal import shown as as_text
from attnport.errors import ParityFailed
from attnport.parity import evaluate
from attnport.parity.invariance import ON_THE_LEFT
from attnport.reporting.parity import section
from attnport.verbs.bundle import bundle
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
OPPOSITE = "return x - (x * (1 - seen)).sum(1, keepdim=True) / (1 - seen).sum(1, keepdim=True).clamp(min=1)"
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


def test_a_module_whose_own_rows_change_with_padding_is_no_failure_of_a_runtime_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    report = checked(tmp_path, LEAKING)
    assert report.verdict == "PASS"
    (note,) = [note for note in report.notes if "padding beside an item changes its rows in the module itself" in note]
    assert "the module does not honour mask, which is declared as a mask of padding. A runtime that computes" in note
    assert not any(NOTE in note for note in report.notes)
    assert {pair.verdict for pair in report.runtimes["ort_cpu"].invariance} == {"NOT_RUN"}
    told = list[str]()
    bundle(tmp_path / "out", tmp_path / "app", tell=told.append)
    assert any("padding beside an item changes its rows in the module itself" in note for note in told)


def test_a_mask_of_the_opposite_meaning_fails_and_is_named(tmp_path: Path) -> None:
    report = checked(tmp_path, OPPOSITE)
    assert report.verdict == "FAIL"
    assert "padding changes valid rows" in report.runtimes["ort_cpu"].reason
    why = (
        "he module takes mask in the opposite meaning of what is declared: with "
        "inputs=['mask=int64[batch,seq]:padding:hide'], padding changes no valid row"
    )
    assert f"t{why}" in report.notes
    for named in ((), ("ort_cpu",)):
        with pytest.raises(ParityFailed) as caught:
            raise_for(report, named, again="attnport check out")
        assert caught.value.hint == f"T{why}. Export it again, with that declared."


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


STRIDED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.halve = nn.Conv1d(8, 16, 5, stride=2, padding=2)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, mel, lengths):
        shown = torch.arange(mel.shape[2])[None] < lengths[:, None]
        heard = self.halve({heard}).transpose(1, 2)
        counts = (lengths + 1) // 2
        hide = torch.arange(heard.shape[1])[None] >= counts[:, None]
        return self.attention(heard, heard, heard, key_padding_mask=hide, need_weights=False)[0], counts

def make():
    return Model().eval()
"""


@pytest.mark.parametrize(
    ("heard", "leaks"), [("mel * shown[:, None].to(mel.dtype)", False), ("mel + 10 * ~shown[:, None]", True)]
)
def test_rows_that_follow_from_positions_are_compared_unless_they_change_in_the_module_itself(
    tmp_path: Path, heard: str, leaks: bool
) -> None:
    source = tmp_path / "model.py"
    source.write_text(STRIDED.format(heard=heard))
    inputs = ("mel=float32[batch,8,frames]", "lengths=int64[batch]:padding")
    manifest = export(f"{source}:make", tmp_path / "out", inputs=inputs, dims=("batch=1:4:4", "frames=1:16:48"))
    rows, counts = manifest.io.outputs
    assert rows.dims[1] != "frames"
    fuse(tmp_path / "out", targets=["ort_cpu"])
    report = check(tmp_path / "out", ["ort_cpu"])
    found = report.runtimes["ort_cpu"]
    assert report.verdict == found.verdict == "PASS"
    by_output = {output: {one.verdict for one in found.invariance if one.output == output}
                 for output in (rows.name, counts.name)}  # fmt: skip
    assert by_output == {rows.name: {"NOT_RUN" if leaks else "PASS"}, counts.name: {"PASS"}}
    told = [note for note in report.notes if note.startswith(f"{rows.name}: padding beside an item changes its rows")]
    assert len(told) == leaks
    shown = as_text(report)
    assert ("1 of 2 outputs" in shown) is leaks
    assert ("1 of 2 outputs" in str(list(section(report, "out")))) is leaks
