"""Faults planted in known layers: the search names the layer, each time."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import layered_model
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from representatives import representatives

from attnport.artifacts import Capabilities, Evidence, IOContract, ParityReport, Session
from attnport.cli import cli
from attnport.errors import UnavailableError
from attnport.exporter import capture
from attnport.exporter.naming import SCOPES
from attnport.folder.workspace import change
from attnport.parities import Finding
from attnport.parity.evaluate import Means
from attnport.parity.layers import Traced, findings
from attnport.processes.isolated import Limits
from attnport.runtimes import base
from attnport.verbs import check as checking
from attnport.verbs.check import CaseOptions, check, inside
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

Edit = Callable[[onnx.ModelProto], None]
SPEC = f"{layered_model.__file__}:spec"
THREE = ["torch_eager", "ort_cpu", "onnx_reference"]


@pytest.fixture(scope="session")
def _layered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layered") / "layered"
    export(SPEC, folder)
    fuse(folder, targets=["ort_cpu", "tensorrt_rtx.fp16"])
    return folder


@pytest.fixture(scope="session")
def _traced() -> Callable[..., Any]:
    real = capture.named_program
    return functools.cache(lambda dtype: real(layered_model.make().to(dtype), layered_model.IO))


@pytest.fixture
def layered(_layered: Path, tmp_path: Path, _traced: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an exported folder of three layers that a test may change; its module is traced once for all tests."""
    monkeypatch.setattr(capture, "named_program", lambda module, io: _traced(next(module.parameters()).dtype))
    return Path(shutil.copytree(_layered, tmp_path / "layered"))


def plant(folder: Path, key: str, edit_model: Edit) -> None:
    """Changes a form, or the model as exported (key ""), as a faulty tool would have written it."""
    with change(folder) as edit:
        file = edit.manifest.forms[key].file if key else "model.onnx"
        model = onnx.load(folder / file)
        edit_model(model)
        edit.path(file).write_bytes(model.SerializeToString())
        forms = {key: edit.manifest.forms[key]} if key else {}
        edit.manifest = dataclasses.replace(edit.manifest, forms=forms)
        edit.finish("fuse", "changed")


def node_in(model: onnx.ModelProto, module: str, operator: str) -> onnx.NodeProto:
    """The first node of an operator in a module."""
    for node in model.graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
        if node.op_type == operator and f"'{module}'" in scopes:
            return node
    raise AssertionError(f"{module} has no {operator}")


def other_weight(module: str, amount: float = 1e-3) -> Edit:
    """One element of a layer's weight, moved a little."""

    def edit(model: onnx.ModelProto) -> None:
        name = node_in(model, module, "MatMul").input[1]
        tensor = next(each for each in model.graph.initializer if each.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array[1, 2] += amount
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return edit


def approximate_gelu(module: str) -> Edit:
    """GELU by its tanh formula, wrong in the fourth digit."""

    def edit(model: onnx.ModelProto) -> None:
        node = node_in(model, module, "Gelu")
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("approximate", "tanh"))

    return edit


def no_mask(module: str) -> Edit:
    """An attention that sees padding."""

    def edit(model: onnx.ModelProto) -> None:
        node_in(model, module, "Attention").input[3] = ""

    return edit


def shifted_mask(module: str) -> Edit:
    """An attention whose mask is that of the keys one to the left."""

    def edit(model: onnx.ModelProto) -> None:
        node = node_in(model, module, "Attention")
        place = list(model.graph.node).index(node)
        for name, value in (("none", 0), ("last", -1), ("big", 2**40)):
            model.graph.initializer.append(numpy_helper.from_array(np.array([value]), f"fault/{name}"))
        mask = node.input[3]
        first = helper.make_node("Slice", [mask, "fault/last", "fault/big", "fault/last"], ["fault/tail"])
        front = helper.make_node("Slice", [mask, "fault/none", "fault/last", "fault/last"], ["fault/head"])
        joined = helper.make_node("Concat", ["fault/tail", "fault/head"], ["fault/mask"], axis=-1)
        node.input[3] = "fault/mask"
        for offset, made in enumerate((first, front, joined)):
            model.graph.node.insert(place + offset, made)

    return edit


def bisect(folder: Path, report: ParityReport, *, isolate: bool = False, **options: int) -> tuple[Finding, ...]:
    traced = inside(folder, report, CaseOptions(), Means(limits=Limits(every=isolate)))
    return findings(dataclasses.replace(traced, **options))


def searched(folder: Path, runtimes: list[str] | None = None, **options: Any) -> tuple[Finding, ...]:
    report = check(folder, runtimes or THREE)
    assert report.verdict == "FAIL"
    return bisect(folder, report, **options)


def verdicts_of(found: Finding) -> dict[str, str]:
    return {name: error.verdict for name, error in found.readings.items()}


FAULTS: dict[str, tuple[str, Callable[[str], Edit]]] = {
    "query weight": ("attention.query", other_weight),
    "value weight": ("attention.value", other_weight),
    "down weight": ("down", other_weight),
    "approximate": ("act", approximate_gelu),
    "no mask": ("attention", no_mask),
    "shifted mask": ("attention", shifted_mask),
}


# A weight, an operator and a mask in one layer quickly, every fault in every layer at length.
QUICK = [("value weight", 1), ("approximate", 0), ("shifted mask", 2)]


@pytest.mark.parametrize(
    ("fault", "layer"), representatives(itertools.product(FAULTS, range(layered_model.LAYERS)), QUICK)
)
def test_the_layer_of_a_planted_fault_is_named(fault: str, layer: int, layered: Path) -> None:
    part, make = FAULTS[fault]
    module = f"layers.{layer}.{part}"
    plant(layered, "ort_cpu", make(module))
    (found,) = searched(layered)
    assert (found.subject, found.reason) == ("ort_cpu", "")
    assert (found.module, found.fused) == (module, False)
    verdicts = verdicts_of(found)
    assert verdicts["ort_cpu"] == verdicts["model.ort_cpu.onnx in onnx_reference"] == "FAIL"
    assert verdicts["torch_eager"] == verdicts["onnx_reference"] == "PASS"
    assert "itself is wrong" in found.notes[-1]


@pytest.mark.parametrize(("plan", "amount"), [("fp32", 1e-3), pytest.param("bf16", 1.0, marks=pytest.mark.slow)])
def test_openvino_is_searched_in_its_own_process(layered: Path, plan: str, amount: float) -> None:
    pytest.importorskip("openvino")
    if plan not in base.get("openvino").probe().plans:
        pytest.skip(f"OpenVINO does not compute in {plan} on this CPU")
    name = "openvino" if plan == "fp32" else f"openvino.{plan}"
    fuse(layered, targets=[f"openvino.{plan}"])
    plant(layered, name, other_weight("layers.1.attention.value", amount))
    found = {one.subject: one for one in searched(layered, ["torch_eager", "openvino", "onnx_reference"])}
    assert found[name].reason == ""
    assert found[name].module == "layers.1.attention.value"
    verdicts = verdicts_of(found[name])
    assert (verdicts[name], verdicts["torch_eager"]) == ("FAIL", "PASS")
    assert plan != "fp32" or verdicts["onnx_reference"] == "PASS"


@pytest.mark.slow
def test_a_named_runtime_that_was_not_run_keeps_its_verdict_and_exit_code(layered: Path) -> None:
    done = CliRunner().invoke(cli, ["check", str(layered), "--runtime", "tensorrt_rtx", "--bisect"])
    assert done.exit_code == 3
    assert "tensorrt_rtx was not run" in done.stderr
    assert "errors by layer were not measured" in done.stderr
    assert "graphs of forms, apart from their runtimes: PASS tensorrt_rtx.fp16" in done.stdout


def test_a_model_that_was_exported_wrong_is_held_against_torch(layered: Path) -> None:
    plant(layered, "", other_weight("layers.1.up"))
    (found,) = searched(layered, ["torch_eager", "onnx_reference"])
    assert (found.subject, found.module) == ("onnx_reference", "layers.1.up")


@pytest.mark.slow
def test_a_half_precision_form_is_searched_at_its_own_precision(layered: Path) -> None:
    plant(layered, "tensorrt_rtx.fp16", other_weight("layers.2.up", 0.3))
    (found,) = searched(layered, ["torch_eager", "tensorrt_rtx"])
    assert (found.subject, found.module) == ("form tensorrt_rtx.fp16", "layers.2.up")
    eager = found.readings["torch_eager"]
    assert eager.rms_error is not None
    assert eager.rms_error > 1e-5  # fp16, not fp32


def test_a_folder_without_a_fault_has_nothing_to_search(layered: Path) -> None:
    report = check(layered, THREE)
    assert bisect(layered, report) == ()


@pytest.mark.slow
def test_a_runtime_in_a_process_of_its_own_is_searched_too(layered: Path) -> None:
    plant(layered, "ort_cpu", other_weight("layers.1.attention.out"))
    found = searched(layered, ["ort_cpu"], isolate=True)
    assert [one.module for one in found] == ["layers.1.attention.out"]


@pytest.mark.slow
def test_little_memory_finds_the_same_in_more_runs(layered: Path) -> None:
    plant(layered, "ort_cpu", other_weight("layers.1.attention.key"))
    (found,) = searched(layered, ["ort_cpu"], cap_bytes=1 << 13)
    assert (found.module, found.notes[1:]) == ("layers.1.attention.key", ())
    (found,) = searched(layered, ["ort_cpu"], cap_bytes=1)
    assert found.tensor == "hidden"  # nothing but the output is within such a cap, and that is said
    assert "were not measured" in found.notes[-1]


class Faulty(base.Runtime):
    """ONNX Runtime on a model that it changes when it opens it, unless `hides` says so of what is marked."""

    name = "ort_cpu"
    opens = "onnx"
    form = "ort_cpu"
    isolated = False
    edit: Edit
    hides: Callable[[list[str]], bool]

    def probe(self) -> Capabilities:
        return Capabilities(self.name, True)

    def session(self, opening: base.Opening) -> Session:
        assert opening.model is not None
        model = onnx.load(opening.model)
        if not self.hides([output.name for output in model.graph.output][1:]):
            self.edit(model)
        changed = opening.model.with_name("changed.onnx")
        changed.write_bytes(model.SerializeToString())
        return self.real.open(dataclasses.replace(opening, model=changed))

    def fusion_evidence(
        self,
        model: Path,
        anchors: Mapping[str, tuple[str, ...]],
        plan: str = "fp32",
        io: IOContract | None = None,
    ) -> dict[str, Evidence]:
        outputs = len(onnx.load(model, load_external_data=False).graph.output)
        return {name: Evidence("kernel", "") for name in anchors if outputs == 1 or "layers.1" not in name}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    get = base.get

    def install(edit: Edit, *, hides: Callable[[list[str]], bool] = lambda marked: False) -> None:
        runtime = Faulty()
        runtime.edit, runtime.hides, runtime.real = edit, hides, get("ort_cpu")
        monkeypatch.setattr(base, "get", lambda name: runtime if name == "ort_cpu" else get(name))

    return install


@pytest.mark.slow
def test_a_wrong_runtime_is_told_from_a_wrong_graph(layered: Path, faulty: Callable[..., None]) -> None:
    faulty(approximate_gelu("layers.2.act"))
    found = next(one for one in searched(layered) if one.subject == "ort_cpu")
    assert found.module == "layers.2.act"
    assert "the runtime is wrong" in found.notes[-1]


@pytest.mark.slow
def test_a_fault_that_marking_takes_away_lies_in_what_is_fused(layered: Path, faulty: Callable[..., None]) -> None:
    faulty(approximate_gelu("layers.1.act"), hides=lambda marked: bool(marked))
    found = next(one for one in searched(layered) if one.subject == "ort_cpu")
    assert (found.tensor, found.module, found.fused) == ("hidden", "", True)
    assert "ends the fusion of layers.1" in found.notes[-1]


def test_a_fault_that_marking_inside_of_a_layer_takes_away_names_that_layer(
    layered: Path, faulty: Callable[..., None]
) -> None:
    faulty(approximate_gelu("layers.1.act"), hides=lambda marked: any("gelu" in name for name in marked))
    found = next(one for one in searched(layered) if one.subject == "ort_cpu")
    assert (found.module, found.fused) == ("layers.1", True)


def test_what_is_no_graph_is_refused_with_the_reason(layered: Path) -> None:
    plant(layered, "ort_cpu", other_weight("layers.1.up"))
    report = check(layered, ["torch_eager", "ort_cpu"])
    row = report.runtimes["ort_cpu"]
    torch_too = ParityReport("FAIL", {"torch_eager": row}, {}, ())
    (found,) = bisect(layered, torch_too)
    assert "runs a whole module" in found.reason
    raised = [dataclasses.replace(one, rms_error=None, nonfinite=0) for one in row.cases]
    crashed = ParityReport("FAIL", {"ort_cpu": dataclasses.replace(row, cases=tuple(raised))}, {}, ())
    (found,) = bisect(layered, crashed)
    assert "no case failed by its numbers" in found.reason


def test_a_failure_that_does_not_come_again_is_no_finding(layered: Path) -> None:
    report = check(layered, ["ort_cpu"])
    row = report.runtimes["ort_cpu"]
    cases = tuple(dataclasses.replace(one, verdict="FAIL") for one in row.cases)
    claimed = ParityReport("FAIL", {"ort_cpu": dataclasses.replace(row, verdict="FAIL", cases=cases)}, {}, ())
    (found,) = bisect(layered, claimed)
    assert "no output diverges" in found.reason


def test_a_runtime_that_does_not_open_is_a_reason_and_no_end(layered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(layered, "ort_cpu", other_weight("layers.1.up"))
    report = check(layered, ["ort_cpu"])

    def gone(self: base.Runtime, opening: base.Opening) -> Session:
        raise UnavailableError("it is gone.")

    monkeypatch.setattr(type(base.get("ort_cpu")), "open", gone)
    (found,) = bisect(layered, report)
    assert found.reason == "it is gone."


def test_the_command_prints_the_layer_and_exits_as_a_check_does(layered: Path) -> None:
    plant(layered, "ort_cpu", other_weight("layers.1.up"))
    command = ["check", str(layered), "--bisect", *(f"--runtime={name}" for name in THREE)]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 4
    assert "ort_cpu goes wrong in layers.1.up" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    data = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert data["parity"]["verdict"] == "FAIL"
    assert data["findings"][0]["module"] == "layers.1.up"
    file, _, code = data["findings"][0]["line"].partition(", line ")
    assert file == "layered_model.py"
    assert "self.up(" in code


def test_a_case_that_only_the_options_make_is_searched_as_it_was_checked(
    layered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(layered, "ort_cpu", other_weight("layers.1.up"))
    shape = "batch=2,seq=11"
    options = checking.CaseOptions(shapes=(shape,), seed=3)
    whole = check(layered, ["ort_cpu"], shapes=options.shapes, seed=options.seed)
    row = whole.runtimes["ort_cpu"]
    row = dataclasses.replace(row, cases=tuple(one for one in row.cases if one.case == shape))
    assert row.cases
    asked: list[Traced] = []
    monkeypatch.setattr(checking, "layers", asked.append)
    report = ParityReport("FAIL", {"ort_cpu": row}, {}, ())
    (found,) = checking.bisect(layered, report, options, Means(), force=True).findings
    assert (found.module, found.case) == ("layers.1.up", shape)
    assert [shape in {case.name for case in traced.cases} for traced in asked] == [True]


def test_the_command_says_that_nothing_failed(layered: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(layered), "--bisect", "--runtime=ort_cpu"])
    assert result.exit_code == 0
    assert "nothing failed" in result.stdout


OVERFLOWS = """import torch
from torch import nn
class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Scaled(factor) for factor in (100.0, 100.0, 100.0, 1e-6))
    def forward(self, x):
        x = torch.tanh(x) + 2
        for layer in self.layers:
            x = layer(x)
        return x
"""


def test_the_module_that_overflows_in_half_precision_is_named_without_a_form_in_it(tmp_path: Path) -> None:
    (tmp_path / "overflows.py").write_text(OVERFLOWS)
    export(f"{tmp_path / 'overflows.py'}:Model", tmp_path / "out", inputs=["x=float32[batch,4]"])
    command = ["check", str(tmp_path / "out"), "--precision=fp16", "--runtime=torch_eager"]
    without = CliRunner().invoke(cli, command)
    assert without.exit_code == 4
    assert "--runtime torch_eager --bisect" in " ".join(without.output.split())
    result = CliRunner().invoke(cli, [*command, "--bisect"])
    shown = " ".join(result.output.split())
    assert result.exit_code == 4
    assert "torch_eager goes wrong in layers.2 " in shown
    assert "computed in overflows.py, line 8: return x * self.factor" in shown
    assert "float16 computes NaN or Inf" in shown
    assert not (tmp_path / "out" / "layers.json").exists()


def test_a_module_that_overflows_at_large_values_alone_passes_and_is_told_and_searched(tmp_path: Path) -> None:
    mild = OVERFLOWS.replace("(100.0, 100.0, 100.0, 1e-6)", "(100.0, 20.0, 0.0005)").replace(
        "torch.tanh(x) + 2", "x + 2"
    )
    (tmp_path / "overflows.py").write_text(mild)
    export(f"{tmp_path / 'overflows.py'}:Model", tmp_path / "out", inputs=["x=float32[batch,4]"])
    command = ["check", str(tmp_path / "out"), "--precision=fp16", "--runtime=torch_eager", "--bisect"]
    result = CliRunner().invoke(cli, command)
    shown = " ".join(result.output.split())
    assert result.exit_code == 0, shown
    (row,) = json.loads((tmp_path / "out" / "parity.fp16.json").read_text())["runtimes"].values()
    judged = {case["case"] for case in row["cases"]} - {"large values"}
    assert f"torch {row['ran']['provider'].removeprefix('torch ')} fp16 {len(judged)} " in shown
    assert (
        "fp16 has no finite result in the case 'large values', in PyTorch either, so nothing was judged there" in shown
    )
    assert "torch_eager goes wrong in layers.1 " in shown
    annotated = CliRunner().invoke(cli, [*command, "--format=github"]).stdout
    assert "::warning title=bisect%3A torch_eager goes wrong in layers.1::" in annotated
    assert "::error" not in annotated
    assert "case: large values" in shown
