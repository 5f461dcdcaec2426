"""Which files of an `hf:` folder describe its model beside the weights."""

from __future__ import annotations

import json
from pathlib import Path

import hf_folders
import pytest

from attnport.errors import SpecError
from attnport.sources.hf.files import describing_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    for name in ("config.json", "tokenizer.json", "vocab.txt", "model.safetensors", "notes.json", "README.md"):
        (place / name).write_text("{}")
    return hf_folders.add_pooling(place, "mean", normalise=True, further=("Dense",))


def test_config_tokenizer_card_and_steps_are_found_and_the_models_weights_are_not(folder: Path) -> None:
    (folder / "3_Dense").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / "3_Dense" / name).write_text("{}")
    assert set(describing_files(str(folder))) == {
        "config.json",
        "tokenizer.json",
        "vocab.txt",
        "README.md",
        "modules.json",
        "1_Pooling/config.json",
        "3_Dense/config.json",
        "3_Dense/model.safetensors",
    }


def test_what_leads_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "LICENSE").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(SpecError, match="'LICENSE' links to"):
        describing_files(str(folder))
    (folder / "LICENSE").unlink()
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(SpecError, match="outside the folder"):
        describing_files(str(folder))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match="has no config"):
        describing_files(str(tmp_path))
