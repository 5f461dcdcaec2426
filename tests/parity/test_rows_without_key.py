"""Rows without a key: what the module gives there is what every form gives wherever another row sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnport
from attnport.artifact import Artifact
from attnport.artifacts import FusionItem, ParityReport
from attnport.errors import ParityFailed
from attnport.exporter.targets import base
from attnport.verbs.check import check, raise_for
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

MODULE = Path(__file__).parent.parent.parent / "examples" / "custom_attention.py"
INPUTS = ("x=float32[batch,seq,256]", "attention_mask=int64[batch,seq]:padding")
ROW = ("one row fully masked", "output")
LOW = torch.finfo(torch.float32).min


@pytest.fixture(scope="module")
def of_nan(tmp_path_factory: pytest.TempPathFactory) -> ParityReport:
    """A check of attention whose hidden scores are -inf, so that a row without a key is NaN."""
    made = tmp_path_factory.mktemp("own") / "out"
    export(f"{MODULE}:make", made, inputs=INPUTS, dims=("batch=1:2:3", "seq=1:6:9"))
    fuse(made, targets=["ort_cpu"])
    return check(made, ["torch_eager", "onnx_reference", "ort_cpu"])


@pytest.mark.slow
def test_the_export_is_not_judged_where_the_module_gives_nan_and_says_so(of_nan: ParityReport) -> None:
    row = of_nan.runtimes["onnx_reference"]
    assert row.reason.endswith("1 results left out, in which the module itself gives NaN or Inf")
    assert ROW not in {(case.case, case.output) for case in row.cases}
    assert "the module itself gives NaN or Inf (one row fully masked)" in of_nan.notes[0]
    assert "rows without a key under attention_mask" in of_nan.notes[0]


def test_forms_are_judged_there(of_nan: ParityReport) -> None:
    for found in (of_nan.runtimes["torch_eager"], of_nan.runtimes["ort_cpu"], of_nan.forms["ort_cpu"]):
        verdicts = {(case.case, case.output): case.verdict for case in found.cases}
        assert verdicts[ROW] == "PASS"


class Undeclared(nn.Module):
    """Attention over keys that an input hides by a large number, of which nobody says that it is a mask."""

    def __init__(self, hide: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.hide = nn.Linear(16, 48), hide

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return (self.hide(q @ k.mT, valid[:, None, None]).softmax(-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("dtype", "hide", "adds"),
    [
        ("int64", lambda scores, valid: scores.masked_fill(valid == 0, -1e9), True),
        ("bool", lambda scores, valid: scores.masked_fill(valid == 0, -1e9), True),
        ("int64", lambda scores, valid: scores + (1 - valid.float()) * LOW, False),  # ONNX Runtime takes it for -inf
    ],
    ids=["integers", "booleans", "added"],
)
def test_an_item_without_keys_is_as_in_the_module_where_no_mask_is_declared(
    tmp_path: Path, dtype: str, hide: Callable[[Tensor, Tensor], Tensor], adds: bool
) -> None:
    inputs = {"x": "float32[batch,seq,16]", "valid": f"{dtype}[batch,seq]"}
    artifact = attnport.export(Undeclared(hide).eval(), tmp_path / "out", inputs=inputs, dims={"seq": (1, 8, 16)})
    fused = artifact.fuse(["ort_cpu", "openvino"])
    assert fused.targets["ort_cpu"].fused == fused.targets["openvino"].fused == 1
    (item,) = fused.targets["ort_cpu"].items
    assert ("if it is a mask of padding, export it as valid=...:padding" in item.cost) == adds
    report = artifact.check(["ort_cpu", "openvino"])
    assert {name: row.verdict for name, row in report.runtimes.items()} == {"ort_cpu": "PASS", "openvino": "PASS"}
    hidden = np.zeros((2, 5), dtype)
    x = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    with artifact.open("ort_cpu") as session, artifact.open("onnx_reference") as reference:
        np.testing.assert_allclose(*(run.run(x=x, valid=hidden)["output"] for run in (session, reference)), atol=1e-5)


def hidden_pairs(scores: Tensor, mask: Tensor) -> Tensor:
    """A mask of queries and keys: each row of padding has no key."""
    return scores.masked_fill(~(mask[:, None, :, None] & mask[:, None, None]), LOW)


def added_pairs(scores: Tensor, mask: Tensor) -> Tensor:
    """The same, by a number that scores are still seen beside."""
    return scores + (~(mask[:, None, :, None] & mask[:, None, None])) * -1e4


def causal(scores: Tensor, mask: Tensor) -> Tensor:
    """Padding at the left leaves its own rows without a key."""
    at = torch.arange(scores.shape[-1])
    return scores.masked_fill(~((at <= at[:, None]) & mask[:, None, None]), LOW)


def one_after_the_other(scores: Tensor, mask: Tensor, first: float = LOW) -> Tensor:
    """As `causal`, by two steps."""
    at = torch.arange(scores.shape[-1])
    return scores.masked_fill(~mask[:, None, None], first).masked_fill(at > at[:, None], LOW)


def by_two_numbers(scores: Tensor, mask: Tensor) -> Tensor:
    """A row without a key sees the keys with the larger number alone."""
    return one_after_the_other(scores, mask, -1e9)


def zeroed_after(scores: Tensor, mask: Tensor) -> Tensor:
    pairs = mask[:, None, :, None] & mask[:, None, None]
    return scores.masked_fill(~pairs, LOW).softmax(-1).masked_fill(~pairs, 0.0)


class Layers(nn.Module):
    """Attention written out, twice, with its mask by `hide`, and a convolution over tokens if `mixes`."""

    def __init__(self, hide: Callable[[Tensor, Tensor], Tensor], *, mixes: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hide, self.mixes = hide, mixes
        self.first, self.second = nn.Linear(16, 48), nn.Linear(16, 48)
        self.convolution = nn.Conv1d(16, 16, 5, padding=2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            weights = self.hide(q @ k.mT * 8**-0.5, mask)
            weights = weights if self.hide is zeroed_after else weights.softmax(-1)
            x = (weights @ v).transpose(1, 2).flatten(2)
        return self.convolution(x.mT).mT if self.mixes else x


def fused(module: nn.Module, folder: Path, target: str = "ort_cpu") -> tuple[Artifact, tuple[FusionItem, ...]]:
    given = {"x": "float32[batch,seq,16]", "mask": "bool[batch,seq]:padding"}
    artifact = attnport.export(module.eval(), folder, inputs=given, dims={"batch": (1, 3, 4), "seq": (1, 7, 16)})
    return artifact, artifact.fuse([target]).targets[target].items


def worst(artifact: Artifact, module: nn.Module, target: str = "ort_cpu") -> float:
    """The largest error of a form in valid rows, beside the module as it is."""
    torch.manual_seed(1)
    x, mask = torch.randn(3, 9, 16), torch.ones(3, 9, dtype=torch.bool)
    mask[1, 5:] = mask[2, :4] = False
    with torch.no_grad():
        expected = module(x, mask).numpy()
    with artifact.open(target) as session:
        (got,) = session.run(x=x.numpy(), mask=mask.numpy()).values()
    return float(np.abs(got - expected)[mask.numpy()].max())


@pytest.mark.parametrize(
    ("target", "hide"),
    [
        ("ort_cpu", hidden_pairs),
        ("ort_cpu", one_after_the_other),
        pytest.param("openvino", hidden_pairs, marks=pytest.mark.slow),
    ],
)
def test_a_mean_that_another_row_sees_is_kept_beside_the_fused_attention(
    tmp_path: Path, target: str, hide: Callable[..., Tensor]
) -> None:
    module = Layers(hide, mixes=True)
    artifact, items = fused(module, tmp_path / "out", target)
    assert [item.fused for item in items] == [True, True]
    assert worst(artifact, module, target) < 1e-5


def test_without_the_mean_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Layers(hidden_pairs, mixes=True)
    monkeypatch.setattr(base, "seen_without_key", lambda *given: {})
    artifact, _ = fused(module, tmp_path / "out")
    assert worst(artifact, module) > 1e-2
    assert artifact.check(["ort_cpu"]).verdict == "FAIL"


@pytest.mark.slow
@pytest.mark.parametrize("hide", [added_pairs, by_two_numbers])
def test_what_no_form_has_stays_as_exported_with_the_reason(tmp_path: Path, hide: Callable[..., Tensor]) -> None:
    module = Layers(hide, mixes=True)
    artifact, items = fused(module, tmp_path / "out")
    assert [item.fused for item in items] == [False, False]
    assert all("Conv" in item.reason and "stays as exported" in item.reason for item in items)
    assert worst(artifact, module) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("hide", [hidden_pairs, added_pairs, causal])
def test_rows_of_padding_that_no_row_sees_are_zero_and_need_nothing(
    hide: Callable[..., Tensor], tmp_path: Path
) -> None:
    module = Layers(hide, mixes=False)
    artifact, items = fused(module, tmp_path / "out")
    assert all(item.fused for item in items)
    nodes = (tmp_path / "out" / "model.ort_cpu.onnx").read_bytes()
    assert b"mean_BH1D" not in nodes
    assert worst(artifact, module) < 1e-5


@pytest.mark.slow
def test_a_module_that_gives_zero_itself_needs_nothing(tmp_path: Path) -> None:
    module = Layers(zeroed_after, mixes=True)
    artifact, items = fused(module, tmp_path / "out")
    assert all(item.fused for item in items)
    assert b"mean_BH1D" not in (tmp_path / "out" / "model.ort_cpu.onnx").read_bytes()
    assert worst(artifact, module) < 1e-5


def others(scores: Tensor, mask: Tensor) -> Tensor:
    """A token sees all but itself, so that a single one has no key, and gives NaN."""
    at = torch.arange(scores.shape[-1])
    return scores.masked_fill(~((at != at[:, None]) & mask[:, None, None]), -torch.inf)


def test_a_module_that_gives_nan_at_some_size_is_no_dim_that_froze(tmp_path: Path) -> None:
    artifact, items = fused(Layers(others, mixes=False), tmp_path / "out")
    assert all(item.fused for item in items)
    report = artifact.check(["ort_cpu"])
    assert report.verdict == "PASS"
    assert any("the module itself gives NaN or Inf" in note for note in report.notes)


class TalkingHeads(nn.Module):
    """Attention whose heads are mixed, which no form fuses; by `masked_first`, behind its mask of -inf."""

    def __init__(self, *, masked_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.mix, self.masked_first = nn.Linear(16, 48), nn.Linear(2, 2, bias=False), masked_first

    def mixed(self, scores: Tensor) -> Tensor:
        y: Tensor = self.mix(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.first(x).chunk(3, -1))
        scores, hidden = q @ k.mT * 8**-0.5, ~mask[:, None, None]
        if self.masked_first:
            weights = self.mixed(scores.masked_fill(hidden, -torch.inf)).softmax(-1)
        else:
            weights = self.mixed(scores.masked_fill(hidden, -torch.inf).softmax(-1))
        return (weights @ v).transpose(1, 2).flatten(2)


def test_nan_that_a_form_has_from_the_module_is_told_with_what_to_change(tmp_path: Path) -> None:
    artifact, items = fused(TalkingHeads(), tmp_path / "out")
    assert [item.fused for item in items] == [False]
    with pytest.raises(ParityFailed) as told:
        raise_for(artifact.check(["ort_cpu"]), ["ort_cpu"])
    assert "as in the module itself: in rows without a key under mask all scores are -inf" in told.value.message
    assert "Never send one; or, in the module, fill hidden scores with torch.finfo(scores.dtype).min" in told.value.hint


def test_nan_in_rows_that_have_keys_is_told_to_come_of_the_module(tmp_path: Path) -> None:
    artifact, _ = fused(TalkingHeads(masked_first=True), tmp_path / "out")
    with pytest.raises(ParityFailed) as told:
        raise_for(artifact.check(["torch_eager"]), ["torch_eager"])
    assert "the float64 reference itself has NaN or Inf" in told.value.message
    assert "hide scores behind that, right before the softmax" in told.value.hint
    assert "text without a real token" not in told.value.hint


class Pooled(nn.Module):
    """A vector for each item: tokens weighted by the softmax of a score."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.score = nn.Linear(16, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weights = self.score(x).squeeze(-1).masked_fill(~mask, -1e9).softmax(-1)
        return (weights.unsqueeze(-1) * x).sum(1)


def test_a_pooling_by_a_score_passes(tmp_path: Path) -> None:
    artifact, _ = fused(Pooled(), tmp_path / "out")
    report = artifact.check(["ort_cpu"])
    assert report.verdict == "PASS"
    assert any(
        "items whose keys are all hidden are not compared" in note and "fully masked" in note for note in report.notes
    )
