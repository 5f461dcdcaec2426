from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from attnport.folder.portable import as_command, portable


def test_paths_of_the_machine_are_cut_to_what_is_the_same_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "an artifact"
    assert portable(f"{folder}/model.onnx: cannot be read", folder) == "model.onnx: cannot be read"
    assert portable(f"attnport fuse {folder} --explain", folder) == "attnport fuse FOLDER --explain"
    library = sysconfig.get_paths()["purelib"]
    assert portable(f'File "{library}/torch/nn.py", line 1', folder) == 'File "torch/nn.py", line 1'
    assert portable(f"{Path.home()}/models/x.py fails", folder) == "models/x.py fails"


@pytest.mark.parametrize("text", ["/encoder/layer.0/MatMul is not fused", "see https://host/a/b", "6/6", ""])
def test_what_is_no_path_stays_as_it_is(text: str, tmp_path: Path) -> None:
    assert portable(text, tmp_path) == text


def test_a_relative_folder_is_known_by_its_absolute_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert portable(f"out/x.onnx and {tmp_path}/out/y.onnx", Path("out")) == "x.onnx and y.onnx"


def test_commands_for_the_folder_can_be_given_as_they_are() -> None:
    told = "Run: attnport fuse FOLDER --target ort_cpu; or attnport.open(FOLDER).fuse(). Then attnport check FOLDER."
    assert as_command(told, Path("my out")) == (
        "Run: attnport fuse 'my out' --target ort_cpu; or attnport.open('my out').fuse(). Then attnport check 'my out'."
    )
    for other in ("hf:FOLDER", "a/FOLDER/b", "MYFOLDER", "FOLDER.json"):
        assert as_command(other, Path("out")) == other
