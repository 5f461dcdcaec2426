"""Golden cases as export and check store them: eager at a plan is the measure of error of that plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention as tiny
import torch

from attnport.artifacts import AUTO, CASTS, IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.errors import ArtifactError
from attnport.parity.golden import CASES, add_eager, bounds, read_goldens, write_golden
from attnport.runtimes import torch_eager


def spec() -> ModelSpec:
    return ModelSpec("tiny", Source("tiny"), tiny.IO, tiny.module)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "golden.npz"
    write_golden(spec(), path)
    assert {name.split("/")[1] for name in np.load(path)} == {"in", "valid", "out", "eager"}
    add_eager(spec(), path, lambda: path, {*CASTS, AUTO})
    return path


def test_every_plan_has_a_bound_of_its_own_rounding(stored: Path) -> None:
    plans = {*CASTS, AUTO}
    goldens = read_goldens(stored, tiny.IO, plans)
    assert {one.plan for one in goldens.bounds} == plans
    assert {one.case for one in goldens.bounds} <= {name.replace(" ", "_") for name in CASES}
    bound = {one.plan: one.rms_bound for one in goldens.bounds if (one.case, one.output) == ("primes", "hidden")}
    assert bound["fp32"] < bound["fp16_islands"] < bound["fp16"] < bound["bf16"]
    assert bound["fp32"] < bound["bf16_islands"] < bound["bf16"]
    assert 0.5 < bound[AUTO] / bound["fp16"] < 2
    assert {array.dtype.kind for array in np.load(stored).values()} <= set("fib"), "types that NumPy itself has"


def test_a_plan_that_torch_cannot_compute_in_has_no_bound(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnport.errors import UnavailableError

    right = torch_eager.TorchEager.open

    def opened(self: Any, opening: Any) -> Any:
        if opening.plan == "fp16":
            raise UnavailableError("no kernel for Half")
        return right(self, opening)

    monkeypatch.setattr(torch_eager.TorchEager, "open", opened)
    path = tmp_path / "golden.npz"
    write_golden(spec(), path)
    add_eager(spec(), path, lambda: path, {"fp16", "bf16"})
    read_goldens(tmp_path / "golden.npz", tiny.IO, {"fp32", "bf16"})
    with pytest.raises(ArtifactError, match=r"lacks .*/eager\.fp16/"):
        read_goldens(tmp_path / "golden.npz", tiny.IO, {"fp16"})


def test_a_plan_that_is_there_is_not_computed_again(stored: Path) -> None:
    def unwanted() -> Path:
        raise AssertionError("nothing was to be written")

    add_eager(spec(), stored, unwanted, {*CASTS, AUTO})


def test_a_case_that_check_ran_more_than_once_is_allowed_what_check_allows(stored: Path, tmp_path: Path) -> None:
    from attnport.parity.bound import Yardstick
    from attnport.parity.metrics import Errors

    path = tmp_path / "golden.npz"
    path.write_bytes(stored.read_bytes())
    before = {(one.case, one.output): one for one in bounds(dict(np.load(path)), tiny.IO, "fp32")}
    which = "primes", "hidden"
    rms, largest = 20 * before[which].rms_bound, 20 * before[which].max_bound
    worst = {"primes": {"hidden": Errors(rms=rms, max=largest)}, "of another check": {"hidden": Errors(rms=1, max=1)}}
    for redrawn in (worst, {"primes": {"hidden": Errors(rms=rms / 2, max=largest / 2)}}):
        add_eager(spec(), path, lambda: path, {"fp32"}, {"fp32": redrawn})
    after = {(one.case, one.output): one for one in read_goldens(path, tiny.IO, {"fp32"}).bounds}
    expected = Yardstick("fp32", worst).bounds("primes", "hidden", 0.0)
    assert after[which].rms_bound == pytest.approx(expected[0], rel=0.05)
    assert after[which].max_bound == pytest.approx(expected[1], rel=0.05)
    assert {**after, which: before[which]} == before


def test_a_plan_is_added_for_inputs_in_bfloat16_too(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * x

    batch = Dim("batch", 1, 2, 4)
    io = IOContract(
        (TensorSpec("x", "bfloat16", ("batch", 3)),), (TensorSpec("y", "bfloat16", ("batch", 3)),), (batch,)
    )
    path = tmp_path / "golden.npz"
    twice = ModelSpec("twice", Source("twice"), io, lambda: Twice().eval())
    write_golden(twice, path)
    add_eager(twice, path, lambda: path, {"bf16"})
    assert "bf16" in {one.plan for one in read_goldens(path, io, {"bf16"}).bounds}


def test_a_twin_that_is_not_finite_gives_no_bound(stored: Path) -> None:
    arrays = dict(np.load(stored))
    arrays["primes/eager.fp16/hidden"] = np.full_like(arrays["primes/eager.fp16/hidden"], np.inf)
    with pytest.raises(ArtifactError, match="primes, output hidden, PyTorch at fp16: NaN or Inf"):
        bounds(arrays, tiny.IO, "fp16")
    bounds(arrays, tiny.IO, "fp32")
