"""A bundle of a module that fills places of its output with a fill value proves itself too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import attnport
from attnport.errors import ArtifactError
from attnport_bundle import load


class Masked(nn.Module):
    def __init__(self, fill: float | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.fill = nn.Linear(8, 16), fill
        self.register_buffer("out", torch.arange(16) > 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        return y.masked_fill(self.out, torch.finfo(y.dtype).min if self.fill is None else self.fill)


@pytest.mark.parametrize("fill", [-12345.0, -1e9, None], ids=str)
def test_a_filled_output_is_proved_where_it_lands(fill: float | None, tmp_path: Path) -> None:
    artifact = attnport.export(Masked(fill).eval(), tmp_path / "out", inputs=["x=float32[batch,seq,8]"])
    for precision, forms in (("bf16", ["openvino.bf16"]), ("fp32", ["openvino.bf16", "openvino"])):
        artifact.fuse("openvino", precision=precision)
        app = artifact.bundle(tmp_path / precision, forms=forms)
        for form in forms:
            done = attnport.verify(app)
            assert "PASS" in str(done), done
            with load(app, form=form) as model:
                assert model.form == form


def test_infinite_numbers_are_no_golden_ones(tmp_path: Path) -> None:
    artifact = attnport.export(Masked(float("-inf")).eval(), tmp_path / "out", inputs=["x=float32[batch,seq,8]"])
    assert artifact.fuse("ort_cpu") is not None
    assert artifact.check("ort_cpu").verdict == "PASS"
    with pytest.raises(ArtifactError, match="golden case"):
        artifact.bundle(tmp_path / "app", forms=["ort_cpu"])
