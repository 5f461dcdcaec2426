"""A dim that takes multiples of a number, from the module to the bundle."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import attnport
from attnport.cases.inputs import cases
from attnport.errors import FeedError, ProfileError, SpecError, UsageError
from attnport.parity.sizes import size_cases

MODULE = """
import torch
from torch import nn

class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, mask):
        B, T, E = x.shape
        q, k, v = self.qkv(x).view(B, T // 4, 4, 3, E).unbind(3)
        keep = mask.view(B, T // 4, 1, 4) != 0
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep).reshape(B, T, E)

def make():
    torch.manual_seed(2)
    return Windows()
"""
INPUTS = ["x=float32[batch,seq,8]", "mask=int64[batch,seq]:padding"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "windows.py").write_text(MODULE)
    return f"{tmp_path / 'windows.py'}:make"


@pytest.mark.slow
def test_a_step_is_found_and_kept_by_all_that_make_sizes(text: str, tmp_path: Path) -> None:
    said: list[str] = []
    artifact = attnport.export(text, tmp_path / "out", inputs=INPUTS, tell=said.append)
    assert said == ["dim seq: the module runs at multiples of 4, so it takes 4 to 512 in steps of 4"]
    io = artifact.manifest.io
    assert str(io.dim("seq")) == "seq=4:128:512:4"
    assert io.outputs[0].dims == ("batch", "seq", 8)  # else nobody knows which of its rows are padding
    for _, case in size_cases(io):
        assert case.feeds["x"].shape[1] % 4 == 0
    lengths = {case.feeds["x"].shape[1] for case in cases(io)}
    assert not [length for length in lengths if length % 4]
    assert len(lengths) > 3
    artifact.fuse("ort_cpu")
    parity = artifact.check("ort_cpu")
    assert parity.verdict == "PASS"
    artifact.bundle(tmp_path / "app", lang="python")
    from attnport_bundle import load

    with load(tmp_path / "app") as model:
        shape = (1, 6, 8)
        with pytest.raises(FeedError, match=r"got seq=6 on axis 1; expected 4 to 512 in steps of 4\.$"):
            model.run(x=np.ones(shape, np.float32), mask=np.ones(shape[:2], np.int64))
        with pytest.raises(FeedError, match=r"expected 4 to 512.*\. At export, --dim seq=4:128:516:4 allows it"):
            model.run(x=np.ones((1, 516, 8), np.float32), mask=np.ones((1, 516), np.int64))


@pytest.mark.parametrize(
    ("dim", "error", "said"),
    [
        ("seq=1:128:512", SpecError, "dims=['seq=4:128:512:4']"),
        ("seq=4:128:512:2", SpecError, "dims=['seq=4:128:512:4']"),
        ("seq=4:130:512:4", ProfileError, "multiples of a step"),
        ("seq=4:8:16:0", ProfileError, "a step of 1 or more"),
    ],
)
def test_a_range_with_another_step_is_refused_with_the_one_that_fits(
    dim: str, error: type[UsageError], said: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        attnport.export(text, tmp_path / "out", inputs=INPUTS, dims=dim)
    assert said in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.slow
def test_a_declared_step_may_be_a_multiple(text: str, tmp_path: Path) -> None:
    artifact = attnport.export(text, tmp_path / "out", inputs=INPUTS, dims="seq=8:16:64:8")
    seq = artifact.manifest.io.dim("seq")
    assert (seq.step, seq.span) == (8, "8 to 64 in steps of 8")
    assert math.gcd(*(case.feeds["x"].shape[1] for _, case in size_cases(artifact.manifest.io))) == 8
