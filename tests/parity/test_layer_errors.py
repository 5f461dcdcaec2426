"""Errors from layer to layer: of a fine model, of one with a planted fault, and what is measured when."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import layered_model
import pytest
from click.testing import CliRunner
from test_check_bisect import SPEC, other_weight, plant

from attnport.artifacts import CaseResult, ParityReport, RuntimeParity
from attnport.cases.inputs import Case, cases
from attnport.cli import cli
from attnport.errors import ArtifactError
from attnport.folder.workspace import open_folder
from attnport.parity.evaluate import Means
from attnport.parity.layers import FILE, layers, layers_of, nearest, read_layers
from attnport.verbs.check import CaseOptions, check, inside, why_no_layers
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

THREE = ["torch_eager", "ort_cpu", "onnx_reference"]
PLACES = ["words", "layers.0", "layers.1", "layers.2", "hidden"]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ParityReport]:
    folder = tmp_path_factory.mktemp("layered") / "layered"
    export(SPEC, folder)
    fuse(folder, targets=["ort_cpu"])
    return folder, check(folder, THREE)


@pytest.mark.slow
def test_a_fine_model_has_an_error_for_each_layer_and_runtime(checked: tuple[Path, ParityReport]) -> None:
    folder, report = checked
    found = layers(inside(folder, report, CaseOptions(), Means()))
    assert [layer.name for layer in found.layers] == PLACES
    assert all(layer.reference_rms > 0.1 for layer in found.layers)
    assert list(found.runtimes) == THREE
    for series in found.runtimes.values():
        assert [error.verdict for error in series.errors] == ["PASS"] * len(PLACES)
    eager = found.runtimes["torch_eager"].errors
    assert 0 < eager[-1].rms_error < 1e-5
    assert eager[1].rms_bound > 2 * eager[1].rms_error
    before = (folder / FILE).stat().st_mtime_ns
    assert why_no_layers(folder, report, CaseOptions(), Means()) == ""
    assert found == read_layers(folder, open_folder(folder))
    assert (folder / FILE).stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_case_is_one_of_the_report_and_its_last_layer_has_the_reports_own_error(
    checked: tuple[Path, ParityReport],
) -> None:
    folder, report = checked
    found = layers(inside(folder, report, CaseOptions(), Means()))
    (said,) = (case for case in report.runtimes["torch_eager"].cases if case.case == found.case)
    assert found.runtimes["torch_eager"].errors[-1].rms_error == pytest.approx(said.rms_error, rel=1e-6)


@pytest.mark.slow
def test_a_planted_fault_shows_from_its_layer_on_and_nowhere_before(tmp_path: Path) -> None:
    folder = tmp_path / "faulty"
    export(SPEC, folder)
    fuse(folder, targets=["ort_cpu"])
    plant(folder, "ort_cpu", other_weight("layers.1.up", 0.05))
    done = CliRunner().invoke(cli, ["check", str(folder), "--bisect", *(f"--runtime={name}" for name in THREE)])
    assert done.exit_code == 4, done.output
    found = read_layers(folder, open_folder(folder))
    assert found is not None
    verdicts = [error.verdict for error in found.runtimes["ort_cpu"].errors]
    assert verdicts == ["PASS", "PASS", "FAIL", "FAIL", "FAIL"]
    assert {error.verdict for error in found.runtimes["onnx_reference"].errors} == {"PASS"}
    check(folder, ["torch_eager"], force=True)
    assert read_layers(folder, open_folder(folder)) is None, "parity was checked anew"


@pytest.mark.slow
def test_layers_are_thinned_to_what_memory_is_given_and_the_last_one_stays(checked: tuple[Path, ParityReport]) -> None:
    folder, report = checked
    traced = inside(folder, report, CaseOptions(), Means())
    found = layers(dataclasses.replace(traced, cap_bytes=1))
    assert [layer.name for layer in found.layers] == ["hidden"]
    assert len(layers(traced).layers) == len(PLACES)


def test_a_runtime_in_which_nothing_can_be_marked_says_so(checked: tuple[Path, ParityReport]) -> None:
    folder, report = checked
    rows = {**report.runtimes, "torch_compile": dataclasses.replace(report.runtimes["torch_eager"])}
    rows["tensorrt"] = RuntimeParity("NOT_RUN", "no GPU", "fp16")
    found = layers(inside(folder, dataclasses.replace(report, runtimes=rows), CaseOptions(), Means()))
    assert found.runtimes["torch_compile"].errors == ()
    assert "no tensor can be marked" in found.runtimes["torch_compile"].reason
    assert "tensorrt" not in found.runtimes


def test_a_layer_is_a_path_up_to_its_first_number_and_holds_the_last_tensor_that_all_have() -> None:
    modules = {
        "a": "enc.words", "b": "enc.layer.0.attention", "c": "enc.layer.0.out", "d": "enc.layer.1.out",
        "e": "enc.layer.1.experts.3", "f": "", "y": "enc.norm",
    }  # fmt: skip
    everything = set(modules)
    assert layers_of([everything, everything], modules, ["y"]) == [
        ("enc.words", "a"),
        ("enc.layer.0", "c"),
        ("enc.layer.1", "e"),
        ("y", "y"),
    ]
    assert layers_of([everything, everything - {"c", "e"}], modules, ["y"])[1:3] == [
        ("enc.layer.0", "b"),
        ("enc.layer.1", "d"),
    ]
    assert layers_of([], modules, ["y"]) == []
    wrapped = {"a": "0.layer.0", "b": "0.layer.1"}
    assert layers_of([set(wrapped)], wrapped, []) == [("0.layer.0", "a"), ("0.layer.1", "b")]


def _result(case: str, share: float, nonfinite: int = 0) -> CaseResult:
    return CaseResult(case, "y", "PASS", "", 1, share, 1.0, share, 10.0, None, None, nonfinite)


def test_the_case_nearest_to_its_bound_is_taken_and_an_extreme_one_only_without_any_other() -> None:
    known: list[Case] = cases(layered_model.IO)
    usual = [case.name for case in known if case.group != "extremes"][:2]
    extreme = next(case.name for case in known if case.group == "extremes")

    def report(*results: CaseResult) -> ParityReport:
        return ParityReport("PASS", {"a": RuntimeParity("PASS", "", "fp32", None, results)}, {})

    assert nearest(report(_result(usual[0], 0.4), _result(usual[1], 0.6), _result(extreme, 9)), known).name == usual[1]
    assert nearest(report(_result(usual[0], 0.1, 3), _result(usual[1], 0.6)), known).name == usual[0]
    assert nearest(report(_result(extreme, 0.2)), known).name == extreme
    exact = dataclasses.replace(_result(usual[0], 0.1), rms_bound=0.0, max_bound=0.0)
    assert nearest(report(exact, _result(usual[1], 5.0)), known).name == usual[0]  # any error is beyond a bound of 0
    with pytest.raises(ArtifactError, match="no case of the parity report"):
        nearest(report(_result("sentences 1-32", 0.2)), known)
