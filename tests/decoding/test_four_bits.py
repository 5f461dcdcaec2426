"""4-bit weights of a decoder: made by `tune`, judged by perplexity, generated with, bundled, checked where it lands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest
from decoders import exported

import attnport
from attnport.artifacts import Score, Session, TuneReport
from attnport.errors import UnavailableError
from attnport.folder.workspace import open_folder
from attnport.latency import choice
from attnport.parity.scoring import Perplexity
from attnport.runtimes import base
from attnport.verbs import tune as tuning
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.fuse import fuse
from attnport.verbs.tune import tune
from attnport_bundle import load
from attnport_bundle.model import selftest

pytest.importorskip("onnxruntime")
RUNTIMES = ["ort_cpu", "openvino"]
HALVES = "bf16" in base.get("openvino").probe().plans
"""Whether OpenVINO computes in bf16 here: then `tune` tries that too, and integers beside bf16, not float32."""
PLAIN = {"ort_cpu", "openvino", *(("openvino.bf16",) if HALVES else ())}
"""The forms that stay where no integers win."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A decoder with its cache, and 60 lines of text."""
    place = tmp_path_factory.mktemp("four")
    folder = exported("llama", place)
    fuse(folder, targets=["openvino"])
    (place / "lines.txt").write_text("\n".join(f"the port of {at} lies at {at * 7} miles" for at in range(60)))
    return folder, place / "lines.txt"


def of_openvino(plan: str) -> str:
    return f"openvino.{plan}_bf16" if HALVES else f"openvino.{plan}"


def tuned(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, prefer: str = "int4", **options: Any) -> TuneReport:
    """As on a machine where one precision is the fastest."""
    best = choice._best
    monkeypatch.setattr(
        choice, "_best", lambda timed: next((one for one in timed if one.plan == prefer), None) or best(timed)
    )
    monkeypatch.setattr(tuning.Tuning, "_slower", lambda *given: "")
    monkeypatch.setattr(tuning, "_LEAST_S", 1.0)
    folder, lines = made
    given: dict[str, Any] = {"text": lines, "threads": [1], "budget_s": 1.0, "max_drop": 0.9, **options}
    return tune(folder, given.pop("runtimes", ["ort_cpu"]), **given)


@pytest.mark.usefixtures("idle")
def test_it_generates_and_is_bundled(made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tuned(made, monkeypatch)
    assert report.metric == "perplexity"
    assert report.chosen is not None
    assert report.chosen.form == "ort_cpu.int4"
    assert set(report.chosen.ms) == {"1 sentence", "32 sentences", "batch=1,seq=1,past=128"}
    folder = made[0]
    form = open_folder(folder).forms["ort_cpu.int4"]
    assert form.integers is not None
    assert form.integers.bits == 4
    row = check(folder, ["ort_cpu"]).runtimes["ort_cpu.int4"]
    assert row.verdict == "PASS"
    assert "int4; perplexity: worse by" in row.reason
    artifact = attnport.open(folder)
    plain, rounded = (artifact.generate("the port", max_tokens=12, runtime=name, stop=[])
                      for name in ("ort_cpu", "ort_cpu.int4"))  # fmt: skip
    assert len(plain) == len(rounded) == 12
    app = bundle(folder, tmp_path / "app", forms=["ort_cpu.int4"])
    judged = [each for each in selftest(app).rows if "int4" in each.check]
    assert judged
    assert {each.verdict for each in judged} == {"PASS"}
    with load(app) as model, ThreadPoolExecutor(4) as pool:  # each call has buffers of its own
        calls = [pool.submit(model.generate, "the port", max_tokens=12, stop=[]) for _ in range(8)]
        assert {call.result() for call in calls} == {rounded}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_openvino_computes_it_as_onnxruntime_does(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    report = tuned(made, monkeypatch, runtimes=RUNTIMES, force=True)
    four = of_openvino("int4")
    scores = {one.form: one.score.value for one in report.candidates if one.score and one.plan != "bf16"}
    assert set(scores) == {"ort_cpu", "openvino", "ort_cpu.int4", four}
    assert scores[four] == pytest.approx(scores["ort_cpu.int4"], rel=0.02)
    assert abs(scores["ort_cpu"] - scores["ort_cpu.int4"]) > 1e-3 * abs(scores["ort_cpu"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_layers_that_lose_too_much_have_8_bits(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    report = tuned(made, monkeypatch, max_drop=0.01, force=True)
    assert report.chosen is not None
    form = open_folder(made[0]).forms["ort_cpu.int4"]
    assert form.integers is not None
    assert 0 < len(form.integers.kept) <= form.integers.layers
    assert "in int4, the others in 8 bits; with all " in report.chosen.reason
    graph = onnx.load(made[0] / form.file, load_external_data=False).graph
    bits = {onnx.helper.get_node_attr_value(node, "bits") for node in graph.node if node.op_type == "MatMulNBits"}
    assert 8 in bits
    assert "MatMul" not in {node.op_type for node in graph.node if node.input[1:] and "weight" in node.input[1]}
    assert form.integers.drop <= 0.01 < form.integers.drop_of_all


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forms_that_lose_leave_nothing_behind(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    report = tuned(made, monkeypatch, "fp32", runtimes=RUNTIMES, force=True)
    assert [one.form for one in report.candidates if "int" in one.plan] == ["ort_cpu.int4", of_openvino("int4")]
    assert set(open_folder(made[0]).forms) == PLAIN
    assert "int4" not in (made[0] / "fusion.json").read_text()
    assert not [path.name for path in made[0].iterdir() if "int4" in path.name]


@pytest.mark.slow
def test_a_perplexity_that_is_too_bad_leaves_no_form(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def of_precision(self: Perplexity, session: Session) -> Score:
        return Score(-10.0 if session.ran.precision == "fp32" else -11.0)

    monkeypatch.setattr(Perplexity, "__call__", of_precision)
    others = {name for name in open_folder(made[0]).forms if "int" not in name}
    report = tuned(made, monkeypatch, max_drop=0.05, force=True)
    assert [one.form for one in report.candidates if "int" in one.plan] == []
    assert any("no form in int4: perplexity is worse by 10.00%" in note for note in report.notes)
    assert set(open_folder(made[0]).forms) == others
    with pytest.raises(UnavailableError, match="attnport tune"):
        attnport.open(made[0]).generate("the port", runtime="ort_cpu.int4")


def test_texts_are_prompts_of_a_check(made: tuple[Path, Path]) -> None:
    report = check(made[0], ["ort_cpu"], made[1])
    tried = {case.case for case in report.runtimes["ort_cpu"].cases}
    assert any(name.startswith("sentences ") for name in tried)
    assert report.verdict == "PASS"
