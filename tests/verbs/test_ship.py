"""ship joins the verbs: every stage reports, and the exit code is the first that applies of 1, 6, 4, 5, 3, 2."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_attention as tiny
from click.testing import CliRunner

from attnport import errors
from attnport.artifacts import (
    EngineRecord,
    FusionItem,
    FusionReport,
    FusionTable,
    LatencyReport,
    LatencyRow,
    Manifest,
    ParityReport,
    RuntimeParity,
    Stage,
)
from attnport.cli import cli
from attnport.folder.workspace import change, open_folder
from attnport.jsonfile import to_json
from attnport.reporting.choice import Choice, Deployable
from attnport.verbs.ship import ShipResult, ship
from attnport.verbs.verify import VerifyResult, VerifyRow

FUSED = FusionTable(
    1, 1, (FusionItem("a", "Attention", "none", "K", True, ""),), "model.ort_cpu.onnx", "fp32", "ort_cpu"
)
MISSED = FusionTable(
    1, 0, (FusionItem("a", "Attention", "none", None, False, "too long"),), "model.ort_cpu.onnx", "fp32", "ort_cpu"
)
PARITY = ParityReport("PASS", {"ort_cpu": RuntimeParity("PASS", "fine", "fp32")}, {})
LATENCY = LatencyReport(
    "torch_eager", {}, {"all": {"ort_cpu": LatencyRow("baseline", "", 1.0)}}, {"all": 1}, {"all": 1}
)
ENGINE = EngineRecord("tensorrt_rtx", "fp16", "x.engine", "tensorrt_rtx.fp16", (), (), "1", "", 1, 1)
VERBS = ("export", "fuse", "build", "check", "bench", "bundle", "report")


class Verbs:
    """Verbs that do their part at once, or raise what `failing` says; each records a stage like the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failing: dict[str, Exception] = {}
        self.given: dict[str, dict[str, Any]] = {}
        self.fused: list[str] = []
        self.built: list[tuple[str, str]] = []
        self.idle = False
        self.fusion, self.table = FusionReport({"ort_cpu": FUSED}), FUSED
        self.parity = tiny.on(open_folder(folder), PARITY)

    def does(self, verb: str, value: Callable[[], Any]) -> Callable[..., Any]:
        def work(*arguments: Any, **options: Any) -> Any:
            self.given[verb] = options
            if verb == "fuse":
                self.fused += arguments[1]
            if verb == "build":
                self.built.append(arguments[1:])
            if verb in self.failing:
                raise self.failing[verb]
            if not self.idle:
                self.record(verb)
                if verb == "bundle":  # it replaces the folder
                    (new := self.folder / "new").mkdir()
                    new.replace(self.folder / "bundle")
            return value()

        return work

    def record(self, verb: str) -> None:
        with change(self.folder) as edit:
            for name, value in (("fusion.json", self.fusion), ("parity.json", self.parity), ("latency.json", LATENCY)):
                edit.path(name).write_text(to_json(value))
            edit.finish(verb, "inputs")


@pytest.fixture
def verbs(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    import importlib

    made = Verbs(tiny_artifact)
    checked = VerifyResult("app", "bundle", "PASS", 0, (VerifyRow("a", "PASS", ""),))
    values: dict[str, Callable[[], Any]] = {
        "fuse": lambda: made.fusion,
        "build": lambda: (ENGINE, made.table),
        "check": lambda: made.parity,
        "bench": lambda: LATENCY,
        "bundle": lambda: tiny_artifact / "bundle",
        "report": lambda: tiny_artifact / "report.html",
    }
    for verb, value in values.items():
        monkeypatch.setattr(importlib.import_module(f"attnport.verbs.{verb}"), verb, made.does(verb, value))
    monkeypatch.setattr(importlib.import_module("attnport.verbs.verify"), "verify", lambda path: checked)
    exports = made.does("export", lambda: (open_folder(tiny_artifact), None))
    monkeypatch.setattr(importlib.import_module("attnport.verbs.ship"), "exported", exports)
    return made


def statuses(result: ShipResult) -> dict[str, str]:
    return {stage.stage: stage.status for stage in result.stages}


def test_every_stage_is_done_in_order(verbs: Verbs) -> None:
    result = ship("tiny", verbs.folder)
    assert tuple(statuses(result)) == VERBS
    assert set(statuses(result).values()) == {"done"}
    assert result.exit_code == 0
    assert (result.fusion, result.parity, result.latency) == (verbs.fusion, verbs.parity, LATENCY)


def test_of_a_runtime_that_is_named_its_forms_alone_are_written_judged_timed_and_packed(verbs: Verbs) -> None:
    result = ship("tiny", verbs.folder, runtimes=["openvino.bf16"])
    assert tuple(statuses(result)) == tuple(verb for verb in VERBS if verb != "build")
    assert verbs.fused == ["openvino.bf16"]
    assert [verbs.given[verb]["runtimes"] for verb in ("check", "bench")] == [("openvino.bf16",)] * 2
    assert verbs.given["bundle"]["forms"] == ("openvino.bf16",)  # not ort_cpu, which the folder has and which passed
    assert result.recommendation is not None
    assert result.recommendation.deploy is None


def test_a_runtime_that_is_named_and_was_not_run_is_no_success(verbs: Verbs) -> None:
    verbs.parity = tiny.on(
        open_folder(verbs.folder), ParityReport("NOT_RUN", {"openvino": RuntimeParity("NOT_RUN", "gone", "fp32")}, {})
    )
    assert ship("tiny", verbs.folder).exit_code == 0
    result = ship("tiny", verbs.folder, runtimes=["openvino"])
    assert result.exit_code == errors.UnavailableError.exit_code
    assert result.parity == verbs.parity  # what was judged of the others counts


@pytest.mark.parametrize(
    ("runtimes", "tune", "problem"),
    [
        (["torch_eager"], False, "no form"),
        (["openvino", "torch_eager.bf16"], False, "runs the module"),
        (["opnvino"], False, "there is none"),
        (["ort_cuda"], True, "tune tries"),
    ],
)
def test_a_runtime_of_which_nothing_can_be_shipped_is_refused_before_any_stage(
    runtimes: list[str], tune: bool, problem: str, verbs: Verbs
) -> None:
    with pytest.raises(errors.UsageError, match=problem):
        ship("tiny", verbs.folder, runtimes=runtimes, tune=tune)
    assert not verbs.given


def test_an_engine_is_built_of_the_runtime_that_is_named_in_its_precision(verbs: Verbs) -> None:
    result = ship("tiny", verbs.folder, runtimes=["tensorrt_rtx.bf16"])
    assert statuses(result)["build"] == "done"
    assert verbs.built == [("tensorrt_rtx", "bf16")]


def test_shapes_are_benchs_and_a_wrong_one_is_told_before_anything_is_built(verbs: Verbs) -> None:
    ship("tiny", verbs.folder, shapes=["batch=1/2"])
    assert verbs.given["bench"]["shapes"] == ("batch=1/2",)
    ship("tiny", verbs.folder)
    assert verbs.given["bench"]["shapes"] == ()
    verbs.given.clear()
    with pytest.raises(errors.UsageError, match="cannot read 'batch'"):
        ship("tiny", verbs.folder, shapes=["batch"])
    assert not verbs.given
    with pytest.raises(errors.ProfileError, match="batch=999"):
        ship("tiny", verbs.folder, shapes=["batch=999"])
    assert set(verbs.given) == {"export"}


def test_a_stage_is_up_to_date_only_when_nothing_ran(verbs: Verbs) -> None:
    ship("tiny", verbs.folder)
    verbs.idle = True
    again = statuses(ship("tiny", verbs.folder))
    assert {verb for verb, status in again.items() if status == "up to date"} == {*VERBS}
    verbs.idle = False
    assert set(statuses(ship("tiny", verbs.folder)).values()) == {"done"}


def test_a_stage_that_was_forced_is_done(verbs: Verbs) -> None:
    ship("tiny", verbs.folder)
    verbs.idle = True
    assert set(statuses(ship("tiny", verbs.folder, force=True)).values()) == {"done"}


FAILURES: list[tuple[dict[str, Exception], int]] = [
    ({"bench": errors.UsageError("x")}, 2),
    ({"bench": errors.UsageError("x"), "report": errors.UnavailableError("x")}, 3),
    ({"build": errors.FusionMissing("x"), "report": errors.UnavailableError("x")}, 5),
    ({"build": errors.FusionMissing("x"), "check": errors.ParityFailed("x")}, 4),
    ({"check": errors.ParityFailed("x"), "bundle": errors.IntegrityError("x")}, 6),
    ({"bundle": errors.IntegrityError("x"), "report": RuntimeError("x")}, 1),
    ({verb: RuntimeError("x") for verb in VERBS[1:]}, 1),
    ({"report": OSError(28, "No space left on device")}, 2),
    ({"check": errors.UsageError("no space"), "bundle": errors.ParityFailed("parity was not checked")}, 2),
    ({"check": errors.UnavailableError("x"), "bundle": errors.ParityFailed("parity was not checked")}, 3),
    ({"build": errors.MissingDependency("x")}, 0),
]


@pytest.mark.parametrize(("failing", "code"), FAILURES, ids=lambda value: str(value)[:60])
def test_the_exit_code_is_the_first_that_applies(failing: dict[str, Exception], code: int, verbs: Verbs) -> None:
    verbs.failing = failing
    result = ship("tiny", verbs.folder)
    assert result.exit_code == code
    assert tuple(statuses(result)) == VERBS  # every other stage still reported
    for verb, status in statuses(result).items():
        lack = isinstance(failing.get(verb), errors.MissingDependency)
        assert status == ("not run" if lack else "failed" if verb in failing else "done")


def test_bugs_are_handed_on(verbs: Verbs) -> None:
    told: list[Exception] = []
    verbs.failing = {"fuse": RuntimeError("first"), "report": RuntimeError("second")}
    ship("tiny", verbs.folder, on_bug=told.append)
    assert {str(bug) for bug in told} == {"first", "second"}


def test_a_parity_failure_and_a_missed_fusion_are_found_in_the_reports(verbs: Verbs) -> None:
    passed = verbs.parity
    failed = ParityReport("FAIL", {"ort_cpu": RuntimeParity("FAIL", "far off", "fp32")}, {})
    verbs.parity = tiny.on(open_folder(verbs.folder), failed)
    assert ship("tiny", verbs.folder).exit_code == 4
    verbs.parity, verbs.fusion = passed, FusionReport({"ort_cpu": MISSED})
    assert ship("tiny", verbs.folder).exit_code == 0
    assert ship("tiny", verbs.folder, require=True).exit_code == 5
    verbs.fusion, verbs.table = FusionReport({"ort_cpu": FUSED}), MISSED  # of the engine
    assert ship("tiny", verbs.folder).exit_code == 0
    assert ship("tiny", verbs.folder, require=True).exit_code == 5


def test_a_report_of_an_earlier_run_is_not_shown_for_a_stage_that_failed(verbs: Verbs) -> None:
    ship("tiny", verbs.folder)
    verbs.failing = {"check": RuntimeError("x"), "bench": errors.UnavailableError("x")}
    result = ship("tiny", verbs.folder)
    assert result.parity is None
    assert result.latency is None


def test_the_bundle_that_was_made_is_what_comes_next(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Deployable("ort_cpu", "onnxruntime", "fp32", {"model.ort_cpu.onnx": 1}, "PASS", "1/1", "ort_cpu")
    choice = Choice(chosen, commands=("attnport bundle tiny -o app/ --form ort_cpu --lang python",))
    result = dataclasses.replace(ship("tiny", verbs.folder), recommendation=choice)
    shown = " ".join(str(result).split())
    assert f"(cd {verbs.folder}/bundle/python && python -m attnport_bundle selftest)" in shown
    assert shown.index("bundle/python") < shown.index("attnport bundle tiny -o app/")
    verbs.failing = {"bundle": errors.UsageError("x")}
    alone = dataclasses.replace(ship("tiny", verbs.folder), recommendation=choice)
    assert "(cd app/python && python -m attnport_bundle selftest)" in " ".join(str(alone).split())


def test_a_failed_export_ends_it(verbs: Verbs) -> None:
    verbs.failing = {"export": errors.ExportError("x")}
    with pytest.raises(errors.ExportError):
        ship("tiny", verbs.folder)


def test_the_command_prints_stages_as_json_and_failures_on_stderr(verbs: Verbs) -> None:
    verbs.failing = {"check": errors.ParityFailed("ort_cpu is far off")}
    result = CliRunner().invoke(cli, ["ship", "tiny", "-o", str(verbs.folder), "--json"])
    assert result.exit_code == 4
    found = json.loads(result.stdout)
    assert [stage["stage"] for stage in found["stages"]] == list(VERBS)
    assert found["exit_code"] == 4
    assert "error: check: ort_cpu is far off" in result.stderr


def test_the_command_prints_what_a_bug_was_on_demand(verbs: Verbs) -> None:
    verbs.failing = {"check": RuntimeError("oops")}
    result = CliRunner().invoke(cli, ["ship", "tiny", "-o", str(verbs.folder), "--traceback"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "oops" in result.stderr


def test_stages_are_told_apart_by_when_they_were_done() -> None:
    stage = Stage("inputs", (), "now", 1.0)
    assert stage == dataclasses.replace(stage)
    assert stage != dataclasses.replace(stage, seconds=1.001)
    assert Manifest.__dataclass_fields__["stages"] is not None


def test_a_file_of_sentences_that_cannot_be_read_ends_it_before_any_stage(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"nope\.txt cannot be read"):
        ship("self_attention", tmp_path / "out", text=tmp_path / "nope.txt")
    assert list(tmp_path.iterdir()) == []


def test_what_the_model_does_not_take_is_told_before_anything_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnport.verbs import export

    def traced(*given: object, **options: object) -> None:
        raise AssertionError("it was traced")

    monkeypatch.setattr(export, "_capture", traced)
    (tmp_path / "text").write_text("a cat")
    with pytest.raises(errors.UsageError, match="self_attention has no tokenizer, so it cannot read text"):
        ship("self_attention", tmp_path / "out", text=tmp_path / "text")
    with pytest.raises(errors.ProfileError, match=r"got dim 'sequ'.*"):
        ship("self_attention", tmp_path / "out", shapes=["sequ=8"])
    assert not (tmp_path / "out").exists()
