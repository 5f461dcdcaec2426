"""check at one precision plan, judged by PyTorch eager on a device; a pretended one, so no GPU is needed or shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from pretended_torch import HostDevice, pretend

from attnport.artifacts import CASTS, Capabilities, EngineRecord, Form, Manifest, Ran, Session
from attnport.dims import TensorSpec
from attnport.errors import ParityFailed, UnavailableError, UsageError
from attnport.folder.workspace import change, not_in, of_plan, open_folder, to_open
from attnport.parity.comparing import Sliced
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport.verbs.bench import subjects
from attnport.verbs.check import check

GPU = "torch_eager_cuda"
Outputs = dict[str, np.ndarray]


class Liar(base.Runtime):
    """The module, one per cent off."""

    name = "liar"
    opens = "module"
    isolated = False

    def probe(self) -> Capabilities:
        return Capabilities(self.name, True, plans=CASTS)

    def session(self, opening: base.Opening) -> Session:
        session = base.get("torch_eager").open(opening)
        true = session.run
        session.run = lambda feeds: {name: one * one.dtype.type(1.01) for name, one in true(feeds).items()}
        return session


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[HostDevice]:
    get = base.get
    monkeypatch.setattr(base, "get", lambda name: Liar() if name == "liar" else get(name))
    monkeypatch.setattr(type(get(GPU)), "isolated", False)
    return pretend(monkeypatch)


@pytest.fixture
def folder(tiny_artifact: Path) -> Path:
    with change(tiny_artifact) as edit:
        forms = {"ort_cuda.fp16": Form("ort_cuda", "fp16", "model.onnx", 23)}
        edit.manifest = dataclasses.replace(edit.manifest, forms=forms)
        edit.finish("fuse", "")
    return tiny_artifact


@pytest.mark.usefixtures("gpu")
def test_eager_on_a_gpu_judges_what_computes_in_the_plan(folder: Path) -> None:
    names, shapes = [GPU, "liar", "openvino", "ort_cuda"], ["batch=3,seq=5"]
    report = check(folder, names, precision="fp16", eager=GPU, shapes=shapes, threads=1)
    rows = report.runtimes
    not_run = dict.fromkeys(("openvino", "ort_cuda"), "NOT_RUN")
    verdicts = {name: row.verdict for name, row in rows.items()} | dict.fromkeys(report.absent, "NOT_RUN")
    assert verdicts == {GPU: "PASS", "liar": "FAIL", **not_run}
    assert rows[GPU].ran == Ran(HostDevice.name, rows[GPU].ran.provider, "fp16")
    assert "batch=3,seq=5" in {case.case for case in rows[GPU].cases}
    assert "not in fp16" in rows["openvino"].reason
    assert GPU in report.forms["ort_cuda.fp16"].reason
    assert not (folder / "parity.json").exists()
    assert open_folder(folder).stages["check:fp16"].files == ("parity.fp16.json",)
    said: list[str] = []
    assert check(folder, names, precision="fp16", eager=GPU, shapes=shapes, threads=1, progress=said.append) == report
    assert not [line for line in said if "reference" in line]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_gpu_is_bounded_by_eager_on_that_gpu_without_being_told(
    folder: Path, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager on the pretended GPU is as far off as the liar, who is held to it only where he is on that GPU."""
    open_there = type(base.get(GPU)).open

    def off(self: base.Runtime, opening: base.Opening) -> Session:
        session = open_there(self, opening)
        true = session.run
        session.run = lambda feeds: {name: one * one.dtype.type(1.01) for name, one in true(feeds).items()}
        return session

    monkeypatch.setattr(type(base.get(GPU)), "open", off)
    monkeypatch.setattr(Liar, "gpu", on_gpu)
    report = check(folder, ["liar"], precision="fp16", threads=1)
    assert report.runtimes["liar"].verdict == ("PASS" if on_gpu else "FAIL")


@pytest.mark.usefixtures("gpu")
def test_where_eager_does_not_fit_on_the_gpu_the_processor_s_bound_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: base.Runtime, opening: base.Opening) -> Session:
        raise MemoryError("Pretended GPU has not enough memory for the weights")

    monkeypatch.setattr(type(base.get(GPU)), "open", full)
    monkeypatch.setattr(Liar, "gpu", True)
    report = check(folder, ["liar"], precision="fp16", threads=1)
    assert report.runtimes["liar"].verdict == "FAIL"
    assert [note for note in report.notes if "not enough memory for the weights" in note]


@pytest.mark.usefixtures("gpu")
def test_a_device_whose_float64_is_not_the_processors_judges_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Sliced.run
    monkeypatch.setattr(
        Sliced, "run", lambda self, feeds: {name: a * (1 + 1e-7) for name, a in exact(self, feeds).items()}
    )
    with pytest.raises(ParityFailed, match=r"float64 on Pretended GPU .* is not the processor's"):
        check(folder, [GPU], precision="fp16", eager=GPU, threads=1)
    assert not (folder / "parity.fp16.json").exists()


def test_what_cannot_be_asked_for_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--eager torch_eager_cuda: .*--precision"):
        check(folder, [], eager=GPU)
    with pytest.raises(UsageError, match="--eager ort_cpu"):
        check(folder, [], eager="ort-cpu", precision="fp16")
    with pytest.raises(UsageError, match=r"int8.*expected one of fp32, fp16"):
        check(folder, [], precision="int8")
    if not base.get(GPU).probe().available:
        with pytest.raises(UnavailableError, match="torch_eager_cuda, by which the others are judged"):
            check(folder, [], precision="fp16", eager=GPU)


class Counting:
    """Twice the input; how many items each call had is kept."""

    ran = Ran("CPU", "x", "fp64")

    def __init__(self) -> None:
        self.items: list[int] = []

    def run(self, feeds: Mapping[str, Any]) -> Outputs:
        self.items.append(len(feeds["input_ids"]))
        return dict.fromkeys(("last_hidden_state", "sentence_embedding"), 2.0 * feeds["input_ids"])

    def close(self) -> None: ...


def test_a_batch_is_run_one_item_at_a_time_where_every_output_has_items() -> None:
    feeds = {"input_ids": np.arange(15).reshape(3, 5), "attention_mask": np.ones((3, 5), np.int64)}
    session = Counting()
    got = Sliced(session, tiny_model.IO).run(feeds)
    np.testing.assert_array_equal(got["sentence_embedding"], 2.0 * feeds["input_ids"])
    assert session.items == [1, 1, 1]
    outputs = (*tiny_model.IO.outputs, TensorSpec("loss", "float32", ("seq",)))
    session = Counting()
    Sliced(session, dataclasses.replace(tiny_model.IO, outputs=outputs)).run(feeds)
    assert session.items == [3]


def test_forms_and_engines_of_other_plans_are_left_out(folder: Path) -> None:
    def engine(plan: str) -> EngineRecord:
        return EngineRecord(
            "tensorrt_rtx", plan, f"engines/{plan}.engine", f"tensorrt_rtx.{plan}", (), (), "1", "", 1, 1
        )

    manifest = dataclasses.replace(
        open_folder(folder),
        forms={
            f"ort_cuda.{plan}": Form("ort_cuda", plan, f"model.ort_cuda.{plan}.onnx", 23) for plan in ("fp16", "bf16")
        },
        engines={plan: engine(plan) for plan in ("fp16", "bf16")},
        files=dict.fromkeys(
            ("weights.bin", *(f"model.ort_cuda.{plan}.{end}" for plan in ("fp16", "bf16") for end in ("onnx", "bin"))),
            "x",
        ),
    )
    found = of_plan(manifest, "fp16")
    assert set(found.forms) == {"ort_cuda.fp16"}
    assert set(found.engines) == {"fp16"}
    assert set(found.files) == {"weights.bin", "model.ort_cuda.fp16.onnx", "model.ort_cuda.fp16.bin"}

    def opened(name: str, found: Manifest = found) -> dict[str, Opening] | str:
        return to_open(base.get(name), Capabilities(name, True, plans=CASTS), folder, found, 1, "fp16")

    assert list(opened("ort_cuda")) == ["ort_cuda"]
    assert list(opened("tensorrt_rtx")) == ["tensorrt_rtx"]
    assert opened("onnx_reference") == "it runs the model as exported, which is in fp32"
    none = dataclasses.replace(found, forms={})
    assert str(opened("ort_cuda", none)).endswith("attnport fuse FOLDER --target ort_cuda --precision fp16")


def test_bench_casts_modules_to_the_plan_and_says_what_has_none(folder: Path) -> None:
    probed = {
        name: Capabilities(name, True, plans=plans) for name, plans in (("torch_eager", CASTS), ("ort_cpu", ("fp32",)))
    }
    chosen = [base.get(name) for name in probed]
    timed = subjects(chosen, probed, folder, open_folder(folder), 1, plan="fp16")
    assert timed["torch_eager"][1].plan == "fp16"
    assert timed["ort_cpu"][1] == not_in(probed["ort_cpu"], "fp16")
