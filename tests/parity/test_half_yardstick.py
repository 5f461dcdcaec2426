"""The bound in half precision is by attention step by step, whose scores are rounded as those of a graph are."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.artifacts import RuntimeParity
from attnport.parity import comparing
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

FORM = "tensorrt_rtx.fp16_islands"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("half") / "out"
    export("self_attention", made)
    fuse(made, targets=["tensorrt_rtx.fp16_islands"])
    return made


@pytest.fixture(autouse=True)
def no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "DRAWS", 0)


def checked(folder: Path) -> RuntimeParity:
    return check(folder, ["tensorrt_rtx"], force=True).forms[FORM]


@pytest.mark.slow
def test_a_form_that_rounds_its_scores_is_judged_by_eager_that_rounds_them(folder: Path) -> None:
    found = checked(folder)
    assert found.verdict == "PASS", found.reason
    large = next(case for case in found.cases if case.case == "large values")
    assert large.rms_error is not None
    assert large.rms_bound is not None
    assert large.rms_error == pytest.approx(large.rms_bound / 2, rel=0.1)  # eager's own error


@pytest.mark.slow
def test_by_the_kernel_alone_it_would_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing.Eager, "_own_way", lambda self, plan: self.session(plan))
    found = checked(folder)
    assert found.verdict == "FAIL"
    assert "worst: case large values (batch=4, seq=32), output 'y': RMS error" in found.reason
