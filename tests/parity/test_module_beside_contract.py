"""A module that does not follow the mask contract by itself: its export is no failure, and its forms follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.artifacts import ParityReport
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

MODULE = Path(__file__).parent.parent.parent / "examples" / "custom_attention.py"
INPUTS = ("x=float32[batch,seq,256]", "attention_mask=int64[batch,seq]:padding")
ROW = ("one row fully masked", "output")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention whose hidden scores are -inf, so that a row without a key is NaN."""
    made = tmp_path_factory.mktemp("own") / "out"
    export(f"{MODULE}:make", made, inputs=INPUTS, dims=("batch=1:2:3", "seq=1:6:9"))
    fuse(made, targets=["ort_cpu"])
    return made


@pytest.fixture(scope="module")
def report(folder: Path) -> ParityReport:
    return check(folder, ["torch_eager", "onnx_reference", "ort_cpu"])


@pytest.mark.slow
def test_the_export_is_not_judged_where_the_module_differs_and_says_so(report: ParityReport) -> None:
    row = report.runtimes["onnx_reference"]
    assert row.reason.endswith("1 results left out, in which the module itself differs from the mask contract")
    assert ROW not in {(case.case, case.output) for case in row.cases}
    assert "the raw module differs from the mask contract in 1 results: one row fully masked" in report.notes[0]


def test_forms_and_the_module_under_the_contract_are_judged_there(report: ParityReport) -> None:
    for found in (report.runtimes["torch_eager"], report.runtimes["ort_cpu"], report.forms["ort_cpu"]):
        verdicts = {(case.case, case.output): case.verdict for case in found.cases}
        assert verdicts[ROW] == "PASS"


def test_the_module_is_run_as_it_is_written_only_where_the_contract_changes_something(folder: Path) -> None:
    said: list[str] = []
    check(folder, ["torch_eager"], force=True, progress=said.append)
    found = [line for line in said if line.startswith("module without the mask contract")]
    assert found == ["module without the mask contract: 1/1 one row fully masked"]
