"""A verdict stands on what it was computed from: it goes when that changed, and not when another is asked for."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
from fake_distributions import install_distribution

from attnport.artifacts import ParityReport
from attnport.errors import UsageError
from attnport.folder.workspace import change, open_folder, read_parity
from attnport.precisions import IntegerPlan, Score
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport.verbs.inspect import inspect

FORMS = ["ort_cpu", "openvino"]
NAMED = ["ort_cpu", "openvino", "torch_eager"]


@pytest.fixture(scope="module")
def _checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verdicts") / "out"
    export("self_attention", folder)
    fuse(folder, targets=FORMS)
    check(folder, NAMED)
    return folder


@pytest.fixture
def checked(_checked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_checked, tmp_path / "out"))


def rows(folder: Path) -> Mapping[str, str]:
    report = read_parity(folder, open_folder(folder))
    assert report is not None
    return {name: row.verdict for name, row in report.runtimes.items()}


def change_form(folder: Path, name: str) -> None:
    """Makes a form anew, with other bytes."""
    model = onnx.load(folder / f"model.{name}.onnx", load_external_data=False)
    model.doc_string += "again"
    with change(folder) as edit:
        edit.path(f"model.{name}.onnx").write_bytes(model.SerializeToString())
        edit.finish(f"fuse:{name}", "again")


def test_a_form_in_integers_that_was_made_again_is_judged_by_its_metric_again(checked: Path) -> None:
    change_form(checked, "ort_cpu")
    with change(checked) as edit:
        plan = IntegerPlan(8, "agreement", Score(0.9), Score(1.0), 0.005, 6, (), 0.1, (8, 8), 1, "")
        form = dataclasses.replace(edit.manifest.forms["ort_cpu"], integers=plan)
        edit.manifest = dataclasses.replace(edit.manifest, forms={**edit.manifest.forms, "ort_cpu": form})
        edit.finish("fuse:ort_cpu", "in integers")
    report = read_parity(checked, open_folder(checked))
    assert report is not None
    row = report.forms["ort_cpu"]
    assert (row.verdict, "judged by its metric" in row.reason) == ("FAIL", True)
    assert report.verdict == "FAIL"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Tells which runtimes were run since it was asked last."""
    from attnport.parity.comparing import Comparison

    run: list[str] = []
    real = Comparison._runtime
    monkeypatch.setattr(Comparison, "_runtime", lambda self, one: run.append(one.name) or real(self, one))

    def since() -> list[str]:
        found, run[:] = list(run), []
        return found

    return since


@pytest.mark.parametrize(
    "options", [{"shapes": ["batch=2,seq=5"]}, {"seed": 3}, {"thorough": True}], ids=["shape", "seed", "thorough"]
)
def test_other_cases_for_one_runtime_take_no_verdict_away(
    checked: Path, measured: Callable[[], list[str]], options: dict[str, object]
) -> None:
    before = rows(checked)
    report = check(checked, ["ort_cpu"], **options)  # type: ignore[arg-type]
    assert measured() == ["ort_cpu"]
    assert {name: row.verdict for name, row in report.runtimes.items()} == before
    assert set(report.forms) == set(FORMS)
    asked = report.runtimes["ort_cpu"].basis
    assert asked is not None
    assert asked.asked
    assert any("openvino" in note and ": from an earlier check, without options" in note for note in report.notes)
    check(checked, ["ort_cpu"], **options)  # type: ignore[arg-type]
    assert measured() == []
    (note,) = [each for each in check(checked, ["openvino"]).notes if ": from an earlier check, " in each]
    assert measured() == [] or "openvino" not in note


@pytest.mark.parametrize("options", [{"timeout_s": 900.0}, {"threads": 1}, {"isolate": True}], ids=str)
def test_limits_of_time_threads_and_processes_are_no_other_question(
    checked: Path, measured: Callable[[], list[str]], options: dict[str, object]
) -> None:
    check(checked, NAMED, **options)  # type: ignore[arg-type]
    assert measured() == []


def test_a_form_that_was_made_with_the_same_bytes_keeps_its_verdict(checked: Path, tmp_path: Path) -> None:
    fuse(checked, targets=FORMS, force=True)
    assert rows(checked) == dict.fromkeys(sorted(NAMED), "PASS")
    bundle(checked, tmp_path / "app", forms=["openvino"])


def test_a_form_that_is_another_loses_its_verdict_and_no_other_does(
    checked: Path, tmp_path: Path, measured: Callable[[], list[str]]
) -> None:
    change_form(checked, "openvino")
    assert rows(checked) == {"openvino": "NOT_RUN", "ort_cpu": "PASS", "torch_eager": "PASS"}
    found = inspect(checked)
    assert {one.name: one.parity for one in found.deploy} == {"openvino": "NOT_RUN", "ort_cpu": "PASS"}
    assert found.verdicts["parity of openvino"] == "NOT_RUN"
    bundle(checked, tmp_path / "app", forms=["openvino"])  # which checks it first
    assert measured() == ["openvino"]
    check(checked, NAMED)
    assert not measured()


def test_an_upgrade_of_a_runtime_asks_it_again_and_no_other(
    checked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Callable[[], list[str]]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    install_distribution(tmp_path / "site", "openvino-nightly", "2099.1")
    check(checked, NAMED)
    assert measured() == ["openvino"]


def test_an_upgrade_of_onnxruntime_gpu_is_another_question_to_fuse_and_bench(
    checked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnport.folder import workspace
    from attnport.verbs import bench

    asked: list[str] = []
    monkeypatch.setattr(workspace, "fresh", lambda folder, manifest, stage, digest: asked.append(digest) or True)
    monkeypatch.setattr(bench, "read", lambda kind, path: None)

    def digests() -> tuple[str, str]:
        fuse(checked, targets=["ort_cpu"])
        bench.bench(checked, ["ort_cpu"])
        return open_folder(checked).stages["fuse:ort_cpu"].inputs, asked[-1]

    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = []
    for version in ("1.31.0", "1.31.0", "1.32.0"):
        install_distribution(tmp_path / "site", "onnxruntime-gpu", version)
        found.append(digests())
    assert found[0] == found[1]
    assert not set(found[1]) & set(found[2])


def test_a_new_precision_asks_its_runtime_again(checked: Path, measured: Callable[[], list[str]]) -> None:
    fuse(checked, targets=["openvino.bf16"])
    assert rows(checked) == dict.fromkeys(sorted(NAMED), "PASS")
    check(checked, NAMED)
    assert measured() == ["openvino"]


def test_one_precision_of_a_runtime_is_checked_beside_what_is_known(
    checked: Path, measured: Callable[[], list[str]]
) -> None:
    fuse(checked, targets=["openvino.bf16"])
    before = rows(checked)
    report = check(checked, ["openvino.bf16"])
    assert set(report.runtimes) == {*before, "openvino.bf16"}
    assert report.runtimes["openvino.bf16"].plan == "bf16"
    assert report.runtimes["openvino"].verdict == "PASS"
    measured()
    check(checked, ["openvino.bf16"])
    assert measured() == []
    with pytest.raises(UsageError, match=r"torch_eager\.bf16: torch_eager runs the module"):
        check(checked, ["torch_eager.bf16"])


def test_a_report_that_was_changed_is_not_believed(checked: Path, measured: Callable[[], list[str]]) -> None:
    (checked / "parity.json").write_text((checked / "parity.json").read_text().replace("PASS", "FAIL"))
    report: ParityReport = check(checked, ["ort_cpu"])
    assert (measured(), report.verdict, list(report.runtimes)) == (["ort_cpu"], "PASS", ["ort_cpu"])
