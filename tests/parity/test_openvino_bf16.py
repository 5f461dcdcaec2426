"""OpenVINO in bf16: asked for as a form, computed by the runtime from a graph in float32, judged as bf16."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnport.artifacts import ParityReport
from attnport.errors import UsageError
from attnport.exporter.targets import base as lowerings
from attnport.folder.workspace import open_folder
from attnport.runtimes import base
from attnport.runtimes.base import half_types, read_graph
from attnport.verbs._deployables import advise
from attnport.verbs.bench import bench
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import asked, fuse
from attnport.verbs.verify import verify

pytest.importorskip("openvino")
MODEL = Path(__file__).parent.parent / "ship_model.py"
pytestmark = pytest.mark.skipif(
    "bf16" not in base.get("openvino").probe().plans, reason="this CPU does not compute in bf16"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bf16") / "out"
    export(f"{MODEL}:spec", made)
    fuse(made, targets=["openvino"])
    fuse(made, targets=["openvino.bf16"])
    return made


@pytest.fixture(scope="module")
def report(folder: Path) -> ParityReport:
    return check(folder, ["openvino"])


@pytest.mark.slow
def test_the_form_is_a_graph_in_float32_and_proved_as_it_is_computed(folder: Path) -> None:
    form = open_folder(folder).forms["openvino.bf16"]
    assert form.plan == "bf16"
    assert half_types(read_graph(folder / form.file)) == set()
    table = fuse(folder, targets=["openvino.bf16"]).targets["openvino.bf16"]
    assert (table.proved_by, str(table)) == ("openvino", "1/1")


@pytest.mark.slow
def test_the_runtime_is_judged_as_bf16_and_the_graph_as_float32(report: ParityReport) -> None:
    row, plain = report.runtimes["openvino.bf16"], report.runtimes["openvino"]
    assert (row.verdict, row.plan, row.ran and row.ran.precision) == ("PASS", "bf16", "bf16")
    graph = report.forms["openvino.bf16"]
    assert (graph.verdict, graph.plan) == ("PASS", "fp32")

    def largest(found: object) -> float:
        return max(case.rms_error or 0.0 for case in found.cases)

    assert largest(row) > 100 * largest(plain)  # it really computes in bf16: as float32 it would fail


@pytest.mark.slow
def test_each_form_is_timed_beside_the_other(folder: Path, report: ParityReport) -> None:
    timed = bench(folder, ["openvino"], ["batch=2,seq=8"], threads=1, budget_s=1.0)
    (rows,) = timed.shapes.values()
    ran = {name: row.ran.precision for name, row in rows.items() if row.ran}
    assert ran == {"torch_eager": "fp32", "openvino": "fp32", "openvino.bf16": "bf16"}
    advice = advise(folder, open_folder(folder), report, timed)
    assert {"openvino", "openvino.bf16"} <= {advice.deploy and advice.deploy.measured_as, *advice.ties, *advice.others}
    assert advice.deploy
    chosen = advice.deploy.measured_as
    assert advice.deploy.plan == ran[chosen]
    if rows["openvino"].median_ns <= rows["openvino.bf16"].median_ns:
        assert chosen == "openvino"


def test_a_bundle_of_it_checks_itself(folder: Path, report: ParityReport, tmp_path: Path) -> None:
    result = verify(bundle(folder, tmp_path / "app", forms=("openvino.bf16", "openvino")))
    assert result.verdict == "PASS"


def test_a_plan_goes_to_the_targets_that_take_it() -> None:
    usual = {(lowering, lowering.plans[0]) for lowering in map(lowerings.get, lowerings.names())}
    assert set(asked([], None)) == usual
    in_bf16 = {lowering.name for lowering, plan in asked([], "bf16") if plan == "bf16"}
    assert in_bf16 == {"openvino", "ort_cuda", "tensorrt", "tensorrt_rtx"}
    openvino, ort_cpu = map(lowerings.get, ("openvino", "ort_cpu"))
    assert (openvino, "fp32") in asked([], "fp16")
    assert asked(["ort_cpu", "openvino"], "bf16") == [(ort_cpu, "bf16"), (openvino, "bf16")]
    assert asked(["openvino", "openvino.bf16"], None) == [(openvino, "fp32"), (openvino, "bf16")]
    with pytest.raises(UsageError, match=r"no target has the precision 'int3'; expected one of bf16, .*fp32"):
        asked([], "int3")


def test_a_named_target_that_does_not_take_the_plan_is_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="target openvino: got precision 'fp16'; expected one of fp32, bf16"):
        fuse(folder, targets=["openvino"], precision="fp16")
