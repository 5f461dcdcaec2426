"""`hf:` models whose inputs are not found: declared with `--input`, as those of any module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hf_folders
import numpy as np
import onnxruntime
import pytest
import torch
from loaded import load
from representatives import representatives

from attnport.errors import SpecError, UsageError
from attnport.verbs.export import export

INPUTS = [
    "states=float32[batch,seq,17]",
    "actions=float32[batch,seq,4]",
    "returns_to_go=float32[batch,seq,1]",
    "timesteps=int64[batch,seq]:high=20",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a robot's steps: states, actions and what is left to gain."""
    return hf_folders.save("decision-transformer", tmp_path_factory.mktemp("declared") / "decision")


def test_what_is_not_found_is_said_with_what_the_forward_takes(saved: Path) -> None:
    with pytest.raises(SpecError, match="'states' looks like is not known; its forward takes states, actions") as told:
        load(f"hf:{saved}")
    assert "--input" in told.value.hint


@pytest.mark.slow
def test_a_model_with_declared_inputs_gives_the_numbers_of_transformers(saved: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    manifest = export(f"hf:{saved}", tmp_path / "out", inputs=INPUTS, dims=["seq=1:4:16"], outputs=["action_preds"])
    assert [(one.name, one.dims) for one in manifest.io.outputs] == [("action_preds", ("batch", "seq", 4))]
    random = torch.Generator().manual_seed(1)
    feeds: dict[str, Any] = {
        "states": torch.randn(2, 7, 17, generator=random),
        "actions": torch.randn(2, 7, 4, generator=random),
        "returns_to_go": torch.randn(2, 7, 1, generator=random),
        "timesteps": torch.arange(14).view(2, 7),
    }
    model = AutoModel.from_pretrained(saved, trust_remote_code=False).eval()
    with torch.no_grad():
        expected = model(**feeds).action_preds.numpy()
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    got = session.run(None, {name: value.numpy() for name, value in feeds.items()})[0]
    assert np.abs(got - expected).max() < 1e-5


def test_a_part_takes_no_declared_inputs(saved: Path) -> None:
    with pytest.raises(UsageError, match="--input does not apply to --part encoder"):
        load(f"hf:{saved}", inputs=INPUTS, part="encoder")


@pytest.mark.parametrize("grid", representatives([[[1, 16, 16]], [[1, 8, 12], [2, 10, 8]]], [[[1, 8, 12], [2, 10, 8]]]))
def test_a_tower_of_pictures_has_the_grid_that_was_declared(grid: list[list[int]], tmp_path: Path) -> None:
    import transformers

    folder = hf_folders.save("vision-tower", tmp_path / "tower")
    count = sum(times * rows * columns for times, rows, columns in grid)
    inputs = [f"hidden_states=float32[{count},1176]", f"grid_thw={grid}"]
    export(f"hf:{folder}", tmp_path / "out", inputs=inputs)
    patches = torch.randn(count, 1176, generator=torch.Generator().manual_seed(0))
    kind: Any = transformers.Qwen2_5_VisionTransformerPretrainedModel
    model = kind.from_pretrained(folder, trust_remote_code=False).eval()
    with torch.no_grad():
        expected = model(patches, grid_thw=torch.tensor(grid))
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    for name, got in zip(names, session.run(names, {"hidden_states": patches.numpy()}), strict=True):
        assert np.abs(got - expected[name].numpy()).max() < 1e-4, name
