from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from attnport.errors import FusionMissing, IntegrityError, UnavailableError
from attnport.folder.workspace import open_folder
from attnport.verbs import fuse as verb
from attnport.verbs.export import export
from attnport.verbs.fuse import earlier_tables, fuse, require

MODEL = Path(__file__).parent.parent / "ship_model.py"


@pytest.fixture(scope="module")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuse") / "out"
    export(f"{MODEL}:spec", folder)
    return folder


@pytest.fixture
def folder(_exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_exported, tmp_path / "out"))


@pytest.mark.slow
def test_a_target_that_nothing_here_can_prove_is_not_proven_and_names_no_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(runtime: object) -> None:
        raise UnavailableError(f"{folder.resolve()}/libx.so cannot be loaded")

    assert str(fuse(folder, targets=["ort_cpu"]).targets["ort_cpu"]) == "1/1"
    monkeypatch.setattr(verb.runtimes, "available", missing)
    report = fuse(folder, targets=["ort_cpu"], force=True)
    table = report.targets["ort_cpu"]
    assert (table.proved_by, table.fused, str(table)) == (None, 0, "not proven")
    assert table.items[0].reason == "not proven: libx.so cannot be loaded"
    assert json.loads((folder / "fusion.json").read_text())["targets"]["ort_cpu"]["proved_by"] is None
    with pytest.raises(FusionMissing, match="not proven"):
        require(report, ["ort_cpu"])


def test_tables_that_were_changed_are_made_again_and_taken_by_nobody(folder: Path) -> None:
    fuse(folder, targets=["ort_cpu", "onnx"])
    file = folder / "fusion.json"
    for spoilt in (file.read_text().replace('"fused": true', '"fused": false'), "{"):
        file.write_text(spoilt)
        with pytest.raises(IntegrityError):
            earlier_tables(folder, open_folder(folder))
        assert set(fuse(folder, targets=["ort_cpu"]).targets) == {"ort_cpu"}  # the other is not believed
        made = fuse(folder, targets=["ort_cpu", "onnx"])
        assert {key: str(table) for key, table in made.targets.items()} == {"ort_cpu": "1/1", "onnx": "1/1"}
        assert earlier_tables(folder, open_folder(folder)) == made.targets


def test_the_time_of_the_stage_is_that_of_lowering_and_proving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = verb._table

    def slowly(*arguments: object) -> object:
        time.sleep(0.3)
        return table(*arguments)

    monkeypatch.setattr(verb, "_table", slowly)
    fuse(folder, targets=["onnx"])
    assert open_folder(folder).stages["fuse:onnx"].seconds >= 0.3
