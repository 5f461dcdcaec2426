"""A verb for the machines of a cluster: what is sent, how it is run there, and what comes back; without a cluster."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import ParityReport
from attnport.console.terminal import shown as as_text
from attnport.errors import IntegrityError, MissingDependency, SpecError, UnavailableError, UsageError
from attnport.folder import loading
from attnport.folder.workspace import change
from attnport.jsonfile import from_json
from attnport.verbs import machines
from attnport.verbs.check import check
from attnport.verbs.machines import MachineResult, MachinesReport, Work, on_machines, run_here


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has a process of its own, and changes its environment."""
    monkeypatch.setenv(loading.VARIABLE, "")


OPTIONS: dict[str, Any] = {"runtimes": ("onnx_reference",), "text": None}


def answered(work: Work) -> MachineResult:
    return from_json(MachineResult, run_here(work), "the answer")


def work(folder: Path, **options: Any) -> Work:
    return machines._work("check", folder, False, {**OPTIONS, **options})


def test_a_copy_is_checked_and_the_report_comes_back(tiny_artifact: Path, tmp_path: Path) -> None:
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("the cat sat\na dog ran\n")
    sent = work(tiny_artifact, text=sentences)
    sentences.unlink()  # what was sent is all that a machine has
    before = {path: path.read_bytes() for path in tiny_artifact.rglob("*") if path.is_file()}
    found = answered(sent)
    assert (found.exit_code, found.error, found.folder) == (0, "", str(tiny_artifact))
    assert found.cpu
    assert found.cores
    assert isinstance(found.report, ParityReport)
    assert found.report.runtimes["onnx_reference"].verdict == "PASS"
    assert not any("no sentences were given" in note for note in found.report.notes)
    assert {path: path.read_bytes() for path in tiny_artifact.rglob("*") if path.is_file()} == before


def test_a_report_in_the_folder_does_not_stand_for_that_of_a_machine(tiny_artifact: Path) -> None:
    check(tiny_artifact, ["onnx_reference"])
    changed = (tiny_artifact / "parity.json").read_text().replace('"PASS"', '"FAIL"')
    with change(tiny_artifact) as edit:
        stage = edit.manifest.stages["check"] if edit.manifest else None
        edit.path("parity.json").write_text(changed)
        edit.finish("check", stage.inputs if stage else "")
    assert check(tiny_artifact, ["onnx_reference"]).verdict == "FAIL"
    found = answered(work(tiny_artifact))
    assert isinstance(found.report, ParityReport)
    assert found.report.runtimes["onnx_reference"].verdict == "PASS"


def test_the_verdict_there_is_an_exit_code_here(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = answered(work(tiny_artifact, runtimes=("onnx_reference", "tensorrt")))
    assert found.exit_code == UnavailableError.exit_code
    assert found.error.startswith("tensorrt was not run")
    assert isinstance(found.report, ParityReport)
    wrong = answered(dataclasses.replace(work(tiny_artifact), options={**OPTIONS, "runtimes": ("nothing",)}))
    assert wrong.exit_code == UsageError.exit_code
    assert wrong.report is None


def test_another_version_there_is_said(tiny_artifact: Path) -> None:
    found = answered(dataclasses.replace(work(tiny_artifact), version="0.0.0"))
    assert found.exit_code == UnavailableError.exit_code
    assert "is installed there, 0.0.0 here" in found.error
    assert found.report is None


def test_code_runs_there_only_if_it_was_asked_for_here_and_is_the_same(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = work(tiny_artifact)
    assert sent.trusted
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    assert answered(sent).exit_code == 0
    monkeypatch.setenv(loading.VARIABLE, "")
    refused = answered(dataclasses.replace(sent, trusted=""))
    assert refused.exit_code == SpecError.exit_code
    assert "was not exported by you on this machine" in refused.error
    with pytest.raises(SpecError, match="was not exported by you"):
        work(tiny_artifact)


def test_what_is_wrong_already_is_refused_before_anything_is_sent(tiny_artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--text .* does not exist"):
        work(tiny_artifact, text=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="verb 'fuse': expected one of check, bench, tune"):
        on_machines("fuse", [tiny_artifact], "local")
    (tiny_artifact / "model.onnx").write_bytes(b"")
    with pytest.raises(IntegrityError):
        on_machines("check", [tiny_artifact], "local")


def test_folders_and_the_file_of_a_metric_are_sent_whole(tiny_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "app" / "inside").mkdir(parents=True)
    (tmp_path / "app" / "inside" / "file").write_text("1")
    (tmp_path / "evaluate.py").write_text("2")
    sent = work(tiny_artifact, bundle=tmp_path / "app", metric=f"{tmp_path / 'evaluate.py'}:accuracy")
    there = tmp_path / "there"
    import io
    import zipfile

    zipfile.ZipFile(io.BytesIO(sent.files)).extractall(there)
    told = machines._unpacked(sent.options, there)
    assert (told["bundle"] / "inside" / "file").read_text() == "1"
    path, _, function = told["metric"].rpartition(":")
    assert (Path(path).read_text(), function) == ("2", "accuracy")
    assert told["runtimes"] == OPTIONS["runtimes"]


def test_the_tables_of_each_machine_and_artifact_are_shown_under_its_name(tiny_artifact: Path) -> None:
    found = dataclasses.replace(answered(work(tiny_artifact)), machine="first")
    lost = MachineResult("<lost>", "other", "", 0, 3, "the node died: a & b", None)
    lines = as_text(MachinesReport("check", 3, (found, lost))).splitlines()
    first, second = (next(at for at, line in enumerate(lines) if line.startswith(name)) for name in ("first", "<lost>"))
    assert any("onnx_reference" in line and "PASS" in line for line in lines[first:second])
    assert lines[second:] == ["<lost>, other", "the node died: a & b"]


def test_a_host_with_several_nodes_has_a_name_for_each() -> None:
    def node(host: str, port: int, cpus: float = 2.0, alive: bool = True) -> dict[str, Any]:
        return {"NodeManagerHostname": host, "NodeManagerPort": port, "Alive": alive, "Resources": {"CPU": cpus}}

    class Ray:
        listed = (node("b", 2), node("a", 9), node("b", 1), node("c", 1, cpus=0), node("d", 1, alive=False))

        def nodes(self) -> Any:
            return list(self.listed)

    found = machines._nodes(Ray())
    assert {name: each["NodeManagerPort"] for name, each in found.items()} == {"a": 9, "b": 1, "b#2": 2}
    Ray.listed = Ray.listed[-1:]
    with pytest.raises(UnavailableError, match="no machine"):
        machines._nodes(Ray())


def test_without_ray_the_line_that_installs_it_is_said(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency) as caught:
        on_machines("check", [tiny_artifact], "local")
    assert caught.value.hint == "pip install ray"
    assert json.dumps(caught.value.message)
