from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_model

from attnport.artifacts import EngineRecord, Form, Ran
from attnport.cases.choosing import text_cases
from attnport.cases.inputs import Case, cases
from attnport.errors import SpecError
from attnport.folder.workspace import graph_digest, model_openings, open_folder, why_none
from attnport.parity.comparing import few_sentences
from attnport.parity.evaluate import References, make_references, measure_session
from attnport.runtimes import base

SILENT = lambda message: None  # noqa: E731


class Fake:
    """A session that answers from a function of the case's sizes."""

    ran = Ran("CPU", "fake", "fp32")

    def __init__(self, dtype: type = np.float64, *, names: tuple[str, ...] = (), rank: int = 0) -> None:
        self.dtype, self.names, self.rank = dtype, names, rank

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        B, T = feeds["input_ids"].shape
        shapes = ((B, T, tiny_model.WIDTH)[self.rank :], (B, tiny_model.WIDTH))
        names = self.names or ("last_hidden_state", "sentence_embedding")
        return {name: np.ones(shape, self.dtype) for name, shape in zip(names, shapes, strict=True)}

    def close(self) -> None:
        pass


def text_of(folder: Path, lengths: list[int]) -> list[Case]:
    sentences = [" ".join(["cat"] * length) for length in lengths]
    return text_cases(tiny_model.IO, sentences, folder / "tokenizer.json", batch=1)


def test_a_slow_evaluator_gets_every_contract_case_and_usual_sentences(tiny_artifact: Path) -> None:
    everything = [*cases(tiny_model.IO), *text_of(tiny_artifact, [1, 9, 10, 11, 40])]
    kept, left_out = few_sentences(everything, 30)
    assert [case for case in kept if case.group != "text"] == cases_of(everything)
    assert [case.name for case in kept if case.group == "text"] == [f"sentences {n}-{n}" for n in (2, 3, 4)]
    assert left_out == 2
    assert few_sentences(everything, 1000) == (everything, 0)
    assert few_sentences(everything, 0)[1] == 4  # one batch always stays
    assert few_sentences(cases_of(everything), 0)[1] == 0


def cases_of(tried: list[Case]) -> list[Case]:
    return [case for case in tried if case.group != "text"]


def test_references_come_back_as_they_were_saved(tmp_path: Path) -> None:
    store = References(tmp_path)
    for number in range(3):
        store.save(f"case {number}", {"a": np.full((2, number), number), "b": np.array([number])})
    found = store.load("case 2", ["a", "b"])
    assert found["a"].tolist() == [[2, 2], [2, 2]]
    assert found["b"].tolist() == [2]
    with pytest.raises(KeyError):
        store.load("case 9", ["a"])


def test_a_module_whose_outputs_are_not_the_declared_ones_is_no_reference(tmp_path: Path) -> None:
    io, tried = tiny_model.IO, cases(tiny_model.IO)
    assert make_references(Fake(), io, tried, References(tmp_path), SILENT) == []
    with pytest.raises(SpecError, match="declares"):
        make_references(Fake(names=("x", "y")), io, tried, References(tmp_path), SILENT)
    with pytest.raises(SpecError, match="last_hidden_state"):
        make_references(Fake(rank=1), io, tried, References(tmp_path), SILENT)


def test_a_reference_that_is_not_float64_is_noted(tmp_path: Path) -> None:
    notes = make_references(Fake(np.float32), tiny_model.IO, cases(tiny_model.IO), References(tmp_path), SILENT)
    assert len(notes) == 2
    assert "float32" in notes[0]


def test_only_as_many_items_as_asked_for_are_run_alone(tmp_path: Path) -> None:
    io, tried, store = tiny_model.IO, cases(tiny_model.IO), References(tmp_path)
    make_references(Fake(), io, tried, store, SILENT)
    assert not measure_session(Fake(), io, tried, store, SILENT).spreads
    found = measure_session(Fake(), io, tried, store, SILENT, items=2)
    assert found.compared == ["right padding"]
    few = {key: spread.elements for key, spread in found.spreads.items()}
    many = measure_session(Fake(), io, tried, store, SILENT, items=4).spreads
    assert all(many[key].elements > count for key, count in few.items())


def test_graphs_are_equal_when_only_their_weights_files_names_differ(tmp_path: Path, tiny_artifact: Path) -> None:
    manifest, files = open_folder(tiny_artifact), {}
    for name, scale in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        model = onnx.load(tiny_artifact / "model.onnx")
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype == np.float32 and array.ndim == 2:
                tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(scale), tensor.name))
        onnx.save_model(
            model, tmp_path / f"{name}.onnx", save_as_external_data=True, location=f"{name}.bin", size_threshold=0
        )
        files[f"{name}.bin"] = "other" if name == "c" else "same"
    manifest = dataclasses.replace(manifest, files=files)
    a, b, c = (graph_digest(tmp_path, manifest, f"{name}.onnx") for name in "abc")
    assert a == b != c
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    assert graph_digest(tmp_path, manifest, "broken.onnx") not in (a, c)


def test_a_runtime_opens_its_own_forms_by_plan(tiny_artifact: Path) -> None:
    manifest, ort = open_folder(tiny_artifact), base.get("ort_cpu")
    half = Form("ort_cpu", "bf16", "model.ort_cpu.bf16.onnx", 23)
    manifest = dataclasses.replace(manifest, forms={**manifest.forms, "ort_cpu.bf16": half})
    opened = model_openings(ort, tiny_artifact, manifest, ("fp32",), 3)
    assert {name: opening.model.name for name, opening in opened.items()} == {"ort_cpu": "model.ort_cpu.onnx"}
    assert opened["ort_cpu"].threads == 3
    both = model_openings(ort, tiny_artifact, manifest, ("fp32", "bf16"), None)
    assert both["ort_cpu.bf16"].plan == "bf16"
    reference = model_openings(base.get("onnx_reference"), tiny_artifact, manifest, (), None)
    assert reference["onnx_reference"].model.name == "model.onnx"
    assert "attnport fuse" in why_none(ort)


def test_several_engines_are_told_apart_by_their_keys(tiny_artifact: Path) -> None:
    manifest, rtx = open_folder(tiny_artifact), base.get("tensorrt_rtx")
    one = EngineRecord("tensorrt_rtx", "fp16", "engines/a.engine", "tensorrt_rtx", (), (), "1.7", "", 1, 1)
    manifest = dataclasses.replace(manifest, engines={"first": one})
    assert set(model_openings(rtx, tiny_artifact, manifest, (), None)) == {"tensorrt_rtx"}
    manifest = dataclasses.replace(manifest, engines={"first": one, "second": dataclasses.replace(one, plan="bf16")})
    opened = model_openings(rtx, tiny_artifact, manifest, (), None)
    assert opened["tensorrt_rtx.second"].plan == "bf16"
    assert opened["tensorrt_rtx.first"].engine == one
    assert "attnport build" in why_none(rtx)
