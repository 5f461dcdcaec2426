"""Where a dim froze in code that is not the user's, the graph of one size is exported, and the user is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import hf_folders
import numpy as np
import pytest
import tiny_model
from loaded import load

import attnport
from attnport.artifacts import ModelSpec
from attnport.dims import Dim
from attnport.errors import ExportError
from attnport.folder.given import Given
from attnport.verbs.export import _made_or_fixed

FIXABLE = (Dim("batch", 1, 1, 1), Dim("seq", 8, 8, 8))


class Tried:
    """Stands for the export of a model of which some dims freeze: the dims that were declared at each try."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, freezing: set[str], *, known: bool = True) -> None:
        self.freezing, self.known, self.told = freezing, known, list[str]()
        self.declared: list[list[str]] = []
        self.spec = dataclasses.replace(load(f"{tiny_model.__file__}:spec"), fixable=FIXABLE)
        monkeypatch.setattr(Given, "spec", lambda given, progress: self.narrowed(given))

    def narrowed(self, given: Given) -> ModelSpec:
        left = tuple(dim for dim in FIXABLE if str(dim) not in given.dims)
        return dataclasses.replace(self.spec, fixable=left, notes=tuple(map(str, given.dims)))

    def make(self, spec: ModelSpec) -> Any:
        self.declared.append(list(spec.notes))
        frozen = [name for name in sorted(self.freezing) if not any(text.startswith(name) for text in spec.notes)]
        if frozen:
            raise ExportError(f"{frozen[0]} froze", dims=tuple(frozen[:1]) if self.known else ())
        return "made"

    def run(self) -> Any:
        return _made_or_fixed(self.make, Given("hf:x"), self.spec, lambda message: None, self.told.append)[0]


def test_the_dim_that_froze_is_fixed_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried(monkeypatch, {"seq"})
    assert tried.run() == "made"
    assert tried.declared == [[], ["seq=8:8:8"]]
    assert tried.told == ["the graph is right at one size alone, and fixed seq to 8 (--dim chooses another): seq froze"]


def test_one_after_the_other_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried(monkeypatch, {"batch", "seq"})
    assert tried.run() == "made"
    assert tried.declared == [[], ["batch=1:1:1"], ["batch=1:1:1", "seq=8:8:8"]]
    assert len(tried.told) == 2


def test_where_it_is_not_known_what_froze_the_batch_is_given_up_last(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried(monkeypatch, {"seq"}, known=False)
    assert tried.run() == "made"
    assert tried.declared == [[], ["seq=8:8:8"]]


def test_what_no_size_mends_is_refused_with_the_first_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Tried(monkeypatch, {"operator"}, known=False)
    with pytest.raises(ExportError, match="operator froze"):
        tried.run()
    assert tried.told == []


@pytest.mark.slow
def test_a_loop_over_the_images_of_a_batch_is_exported_for_one_image(tmp_path: Path) -> None:
    import onnxruntime
    import torch
    import transformers

    told: list[str] = []
    folder = hf_folders.save("pixtral", tmp_path / "pixtral")
    manifest = attnport.export(f"hf:{folder}", tmp_path / "out", tell=told.append).manifest
    assert [str(dim) for dim in manifest.io.dims] == ["batch=1:1:1"]
    assert "fixed batch to 1" in told[0]
    assert "image_sizes = [(height, width)] * batch_size" in told[0]
    model = transformers.PixtralVisionModel.from_pretrained(folder, trust_remote_code=False).eval()
    pixels = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = model(pixel_values=pixels).last_hidden_state.numpy()
    np.testing.assert_allclose(session.run(None, {"pixel_values": pixels.numpy()})[0], expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(ExportError, match="dim 'batch' of input 'pixel_values'"):
        attnport.export(f"hf:{folder}", tmp_path / "declared", dims=["batch=1:2:4"])
