"""What was loaded once and did not change is not loaded again to find that out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hf_folders
import pytest
import tiny_model

from attnport.errors import SpecError
from attnport.folder import loading, workspace
from attnport.folder.workspace import open_folder
from attnport.runtimes import base
from attnport.verbs import check as checking
from attnport.verbs.check import check
from attnport.verbs.export import export

FACTORY = """
import torch
from helper_of_seen import SCALE

class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * SCALE

def make():
    return Scaled()
"""


def never(*args: object, **options: object) -> None:
    raise AssertionError("it was loaded or probed again")


def test_a_check_of_what_did_not_change_loads_and_probes_nothing(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = check(tiny_artifact, ["ort_cpu"])
    monkeypatch.setattr(checking, "load_spec", never)
    monkeypatch.setattr(workspace, "load_spec", never)
    monkeypatch.setattr(checking, "probe_all", never)
    assert check(tiny_artifact, ["ort_cpu"]) == first
    with pytest.raises(AssertionError, match="again"):
        check(tiny_artifact, ["ort_cpu"], force=True)
    with pytest.raises(AssertionError, match="again"):
        check(tiny_artifact, ["onnx_reference"])
    assert base.names()
    os.utime(tiny_model.__file__)
    with pytest.raises(AssertionError, match="again"):
        check(tiny_artifact, ["ort_cpu"])


def test_a_file_that_the_source_imports_counts_and_a_change_of_the_code_is_an_error(tmp_path: Path) -> None:
    helper, factory = tmp_path / "helper_of_seen.py", tmp_path / "factory_of_seen.py"
    helper.write_text("SCALE = 2.0\n")
    factory.write_text(FACTORY)
    script = (
        "import sys; from attnport.folder import loading; from attnport.folder.workspace import open_folder;"
        "print(loading.unchanged(open_folder(sys.argv[1]).source))"
    )

    def unchanged() -> str:
        done = subprocess.run(
            [sys.executable, "-c", script.replace("sys.argv[1]", f"__import__('pathlib').Path({str(folder)!r})")],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        return done.stdout.strip()

    folder = tmp_path / "out"
    sys.path.insert(0, str(tmp_path))
    try:
        export(f"{factory}:make", folder, inputs=["x=float32[batch,4]"])
    finally:
        sys.path.remove(str(tmp_path))
    assert unchanged() == "True"
    helper.write_text("SCALE = 3.0  # another\n")
    assert unchanged() == "False"
    factory.write_text(FACTORY.replace("x * SCALE", "x + SCALE"))
    with pytest.raises(SpecError, match="changed since export"):
        check(folder, ["ort_cpu"])


@pytest.mark.slow
def test_every_file_of_a_folder_of_transformers_counts(tmp_path: Path) -> None:
    model = hf_folders.save("bert", tmp_path / "bert")
    export(f"hf:{model}", tmp_path / "out")
    source = open_folder(tmp_path / "out").source
    assert loading.unchanged(source)
    (model / "further.json").write_text("{}")
    assert not loading.unchanged(source)
    (model / "further.json").unlink()
    assert loading.unchanged(source)
    os.utime(model / "model.safetensors")
    assert not loading.unchanged(source)


def test_without_records_or_with_damaged_ones_nothing_is_known(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    source = open_folder(tiny_artifact).source
    loading.note_read(source, [tiny_model.__file__])
    assert loading.unchanged(source)
    for file in (tmp_path / "cache").glob("seen.*"):
        file.write_text("{")
    assert not loading.unchanged(source)
    monkeypatch.setattr(loading, "cache", lambda: None)
    loading.note_read(source, [tiny_model.__file__])
    assert not loading.unchanged(source)
