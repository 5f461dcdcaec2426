"""Attention weights are outputs only when they were asked for, in every verb that follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import weights_model

from attnport.errors import ExportError
from attnport.folder.workspace import load_spec, open_folder
from attnport.verbs.audit import audit
from attnport.verbs.check import check
from attnport.verbs.export import export

SPEC = f"{weights_model.__file__}:make"
INPUTS = ["x=float32[batch,seq,16]"]
DIMS = ["batch=1:2:3", "seq=1:4:7"]


def outputs(folder: Path) -> list[str]:
    return [value.name for value in onnx.load(folder / "model.onnx").graph.output]


@pytest.mark.slow
def test_weights_are_left_out_and_the_user_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    manifest = export(SPEC, tmp_path, inputs=INPUTS, dims=DIMS, tell=told.append)
    names = [output.name for output in manifest.io.outputs]
    assert len(names) == 1
    assert outputs(tmp_path) == names
    assert len(told) == 1
    assert "--with-weights" in told[0]
    assert len(manifest.attentions) == 1
    assert manifest.attentions[0].module == "attention"  # the paths of the module as it is without the hook
    with np.load(tmp_path / "golden.npz") as golden:
        assert {name.split("/")[2] for name in golden.files if "/out/" in name} == set(names)
    module = load_spec(open_folder(tmp_path)).make()
    with torch.no_grad():
        assert module(torch.ones(1, 2, 16)).shape == (1, 2, 16)
    assert check(tmp_path, ["torch_eager", "ort_cpu"]).runtimes["torch_eager"].verdict == "PASS"
    assert {finding.kind for finding in audit(tmp_path).findings if finding.file == "model.onnx"} == set()
    again: list[str] = []
    assert export(SPEC, tmp_path, inputs=INPUTS, dims=DIMS, tell=again.append) == open_folder(tmp_path)
    assert again == told  # nothing is done again, and it is still said


@pytest.mark.slow
def test_weights_that_were_asked_for_are_kept_and_found_by_audit(tmp_path: Path) -> None:
    told: list[str] = []
    manifest = export(SPEC, tmp_path, inputs=INPUTS, dims=DIMS, with_weights=True, tell=told.append)
    assert len(manifest.io.outputs) == len(outputs(tmp_path)) == 2
    assert not told
    (finding,) = (finding for finding in audit(tmp_path).findings if finding.kind == "weights_output")
    assert finding.evidence == manifest.io.outputs[0].name
    assert not finding.fixable
    without = export(SPEC, tmp_path, inputs=INPUTS, dims=DIMS)
    assert len(without.io.outputs) == 1  # another choice is another export


@pytest.mark.slow
def test_outputs_by_name_are_left_out_by_name(tmp_path: Path) -> None:
    told: list[str] = []
    text = f"{weights_model.__file__}:by_name"
    manifest = export(text, tmp_path / "out", inputs=INPUTS, dims=DIMS, tell=told.append)
    assert [output.name for output in manifest.io.outputs] == ["mixed"]
    assert "weights" in told[0]


def test_a_module_of_weights_alone_is_not_exported_without_a_word(tmp_path: Path) -> None:
    text = f"{weights_model.__file__}:only_weights"
    with pytest.raises(ExportError, match="every output") as caught:
        export(text, tmp_path / "out", inputs=INPUTS, dims=DIMS)
    assert "--with-weights" in caught.value.hint
    assert not (tmp_path / "out").exists()
