"""The audit of the five kinds of files that there are, what it takes away, and what it refuses to touch."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import weights_model
from click.testing import CliRunner

from attnport.cli import cli
from attnport.errors import ArtifactError, Disclosure, IntegrityError, UsageError
from attnport.folder.workspace import change
from attnport.verbs.audit import AuditReport, audit, raise_for
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport.verbs.verify import verify

pytestmark = pytest.mark.usefixtures("unconfined")
X = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)


def kinds(report: AuditReport, file: str | None = None) -> set[str]:
    return {finding.kind for finding in report.findings if file in (None, finding.file)}


def results(path: Path) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: X}))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch.onnx.export writes of a module that returns its attention's weights, by its two exporters."""
    folder = tmp_path_factory.mktemp("plain")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters warn about themselves
        for name, dynamo in (("dynamo", True), ("script", False)):
            torch.onnx.export(
                weights_model.make(), (torch.from_numpy(X),), str(folder / f"{name}.onnx"), dynamo=dynamo,
                external_data=False, verbose=name == "script",
            )  # fmt: skip
    return folder


def test_a_plain_export_is_flagged_and_cleaned(plain: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(plain / "dynamo.onnx", tmp_path))
    before = results(path)
    found = audit(path)
    assert kinds(found) == {"metadata", "stack_trace", "source_line", "path", "weights_output"}
    lines = {finding.evidence for finding in found.findings if finding.kind == "source_line"}
    assert "mixed_BSE, weights_BST = self.attention(x, x, x, need_weights=True)" in lines
    fixed = audit(path, fix=True)
    assert kinds(fixed) == {"weights_output"}
    assert fixed.fixed == len(found.findings) - 1
    assert b"stack_trace" not in path.read_bytes()
    assert str(Path(torch.__file__).parent).encode() not in path.read_bytes()
    onnx.checker.check_model(str(path), full_check=True)
    assert all(np.array_equal(*pair) for pair in zip(before, results(path), strict=True))


def test_a_torchscript_export_is_flagged_and_cleaned(plain: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(plain / "script.onnx", tmp_path))
    before = results(path)
    assert {"doc_string", "path", "source_line", "weights_output"} <= kinds(audit(path))
    assert kinds(audit(path, fix=True)) == {"weights_output"}
    assert all(np.array_equal(*pair) for pair in zip(before, results(path), strict=True))


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the verbs make it, with a bundle beside it."""
    folder = tmp_path_factory.mktemp("shipped")
    out = folder / "out"
    export(f"{weights_model.__file__}:make", out, inputs=["x=float32[batch,seq,16]"], dims=["batch=1:2:3", "seq=1:4:7"])
    fuse(out, targets=["ort_cpu"])
    check(out, ["ort_cpu"])
    bundle(out, folder / "app")
    return folder


@pytest.fixture
def app(shipped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped / "app", tmp_path / "app"))


@pytest.mark.slow
def test_a_bundle_of_ours_gives_nothing_away(app: Path) -> None:
    report = audit(app)
    assert report.kind == "bundle"
    assert report.findings == ()
    assert report.notes == ()
    assert {"bundle.json", "model.ort_cpu.onnx"} <= {Path(name).name for name in report.files}
    raise_for(report)


def test_an_artifact_of_ours_gives_away_its_spec_and_nothing_else(shipped: Path) -> None:
    report = audit(shipped / "out")
    assert kinds(report) <= {"path", "user"}
    assert {(finding.file, finding.fixable) for finding in report.findings} == {("attnport.json", False)}
    assert weights_model.__file__.startswith(report.findings[0].evidence.rstrip("…"))
    assert all("SPEC" in finding.advice for finding in report.findings)
    with pytest.raises(Disclosure, match="path"):
        raise_for(report)


def test_the_fix_of_a_folder_writes_its_digests_with_it(artifact: Path) -> None:
    assert {finding.file for finding in audit(artifact).findings} == {"model.onnx", "model.ort_cpu.onnx"}
    assert audit(artifact, fix=True).findings == ()
    assert verify(artifact).verdict == "PASS"


def test_the_fix_of_a_folder_never_blesses_a_changed_file(artifact: Path) -> None:
    model = onnx.load(artifact / "model.onnx", load_external_data=False)
    model.graph.node[0].name = "changed"
    (artifact / "model.onnx").write_bytes(model.SerializeToString())
    before = {path.name: path.read_bytes() for path in artifact.iterdir() if path.is_file()}
    with pytest.raises(IntegrityError, match=r"model\.onnx"):
        audit(artifact, fix=True)
    assert {
        path.name: path.read_bytes() for path in artifact.iterdir() if path.is_file() and path.name in before
    } == before


def test_a_file_that_the_manifest_does_not_name_is_found_and_left(
    plain: Path, artifact: Path
) -> None:  # fmt: skip
    audit(artifact, fix=True)
    shutil.copy(plain / "dynamo.onnx", artifact / "stranger.onnx")
    report = audit(artifact, fix=True)
    assert {finding.file for finding in report.findings} == {"stranger.onnx"}
    assert not any(finding.fixable for finding in report.findings)
    assert (artifact / "stranger.onnx").read_bytes() == (plain / "dynamo.onnx").read_bytes()


def test_the_sentence_of_a_report_is_the_users(artifact: Path) -> None:
    audit(artifact, fix=True)
    for said, found in (("Inputs: ours", set()), ("Sentence: <q>Mr. Jones &amp; his test</q>", {"user_text"})):
        with change(artifact) as edit:
            edit.path("report.html").write_text(f"<p>{said}</p>")
            edit.finish("report", "1")
        report = audit(artifact)
        assert kinds(report) == found
    assert report.findings[0].evidence == "Mr. Jones & his test"


def test_a_bundle_is_never_changed(app: Path, tmp_path: Path) -> None:
    (app / "README.md").write_text("made in /" + "home/dana/app")
    assert kinds(audit(app)) == {"path", "user"}
    with pytest.raises(UsageError, match="must not be changed") as caught:
        audit(app, fix=True)
    assert "bundle again" in caught.value.hint


@pytest.fixture(params=["bundle", "artifact", "link"])
def belonging(request: pytest.FixtureRequest, app: Path, artifact: Path, tmp_path: Path) -> Path:
    """A file with a doc string, in a folder that has a digest of it; or a link to one."""
    path = artifact / "model.onnx" if request.param == "artifact" else app / "model.ort_cpu.onnx"
    model = onnx.load(path, load_external_data=False)
    model.doc_string = "made by the team of floor 3"
    path.write_bytes(model.SerializeToString())
    if request.param != "link":
        return path
    (tmp_path / "link.onnx").symlink_to(path)
    return tmp_path / "link.onnx"


def test_a_file_that_a_folder_has_a_digest_of_is_never_changed_alone(belonging: Path) -> None:
    folder, before = belonging.resolve().parent, belonging.read_bytes()
    report = audit(belonging)
    assert "doc_string" in kinds(report)
    assert not any(finding.fixable for finding in report.findings)
    with pytest.raises(UsageError, match="whose digests would not fit") as caught:
        audit(belonging, fix=True)
    assert str(folder) in caught.value.message
    wanted = "bundle again" if (folder / "bundle.json").exists() else f"attnport audit {folder} --fix"
    assert wanted in caught.value.hint
    assert {finding.advice for finding in report.findings if finding.kind == "doc_string"} == {caught.value.hint}
    assert belonging.read_bytes() == before


@pytest.mark.parametrize(
    "manifest", ['{"files": {"other.onnx": ""}}', '{"files": ["net.onnx"]}', "[" * 100_000, "\xff"]
)
def test_a_file_beside_a_manifest_that_does_not_name_it_is_cleaned(manifest: str, plain: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(plain / "dynamo.onnx", tmp_path / "net.onnx"))
    for name in ("bundle.json", "attnport.json"):
        (tmp_path / name).write_text(manifest, "latin-1")
    assert audit(path, fix=True).fixed > 0


def test_an_engine_is_searched_for_text(tmp_path: Path) -> None:
    path = tmp_path / "net.engine"
    path.write_bytes(np.random.default_rng(0).bytes(1 << 16))
    assert audit(path).findings == ()
    path.write_bytes(b"vtrt" + b"\0\xff" * 50 + b"layer from /" + b"home/dana/nets/net.py\0" + b"\xff" * 50)
    report = audit(path, fix=True)
    assert kinds(report) == {"path", "user"}
    assert report.fixed == 0
    assert b"/" + b"home/dana" in path.read_bytes()


def hidden(folder: Path, plain: Path, tail: bytes, name: str = "net.onnx") -> Path:
    """The plain export with its weights beside it, and `tail` behind them."""
    model = onnx.load(plain / "dynamo.onnx")
    onnx.save_model(model, folder / name, save_as_external_data=True, location="w.bin", size_threshold=0)
    with (folder / "w.bin").open("ab") as file:
        file.write(tail)
    return folder / name


def test_bytes_behind_the_weights(plain: Path, tmp_path: Path) -> None:
    path = hidden(tmp_path, plain, b"the key is under the mat")
    report = audit(path, fix=True)
    assert kinds(report) == {"weights_output", "unreferenced_bytes"}
    assert kinds(report, "w.bin") == {"unreferenced_bytes"}
    assert report.files == ("net.onnx", "w.bin")


def test_weights_that_another_model_of_the_folder_takes(plain: Path, tmp_path: Path) -> None:
    path = hidden(tmp_path, plain, b"\1\2\3\4" * 4)
    end = (tmp_path / "w.bin").stat().st_size
    other = onnx.load(path, load_external_data=False)
    tensor = other.graph.initializer[0]
    del tensor.external_data[:]
    for key, value in (("location", "w.bin"), ("offset", str(end - 16)), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "other.onnx").write_bytes(other.SerializeToString())
    (tmp_path / "broken.onnx").write_bytes(b"\xff")
    assert "unreferenced_bytes" not in kinds(audit(path))


def test_weights_that_are_not_there_are_said_not_to_be_looked_at(plain: Path, tmp_path: Path) -> None:
    path = hidden(tmp_path, plain, b"")
    (tmp_path / "w.bin").unlink()
    report = audit(path)
    assert len(report.notes) == 1
    assert "'w.bin'" in report.notes[0] or "w.bin" in report.notes[0]


@pytest.mark.parametrize("name", ["nothing.onnx", "text.txt", "cut.onnx", "folder"])
def test_what_cannot_be_audited(name: str, plain: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "text.txt":
        path.write_text("x")
    elif name == "cut.onnx":
        path.write_bytes((plain / "dynamo.onnx").read_bytes()[:5000])
    elif name == "folder":
        path.mkdir()
    with pytest.raises(ArtifactError):
        audit(path)


def test_links_are_not_followed(app: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("/" + "home/dana/secret")
    (app / "link.txt").symlink_to(secret)
    (app / "folder").symlink_to(tmp_path)
    (app / "gone").symlink_to("nowhere")
    report = audit(app)
    assert report.findings == ()
    assert [note.partition(":")[0] for note in report.notes] == ["folder", "gone", "link.txt"]
    assert all("link" in note.partition(":")[2] for note in report.notes)


def test_the_verb_exits_with_6_until_nothing_is_left(plain: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(plain / "dynamo.onnx", tmp_path))
    (weights,) = (finding.evidence for finding in audit(path).findings if finding.kind == "weights_output")
    model = onnx.load(path)
    del model.graph.output[[output.name for output in model.graph.output].index(weights)]
    path.write_bytes(model.SerializeToString())
    run = CliRunner().invoke
    found = run(cli, ["audit", str(path), "--json"])
    assert found.exit_code == Disclosure.exit_code == 6
    listed = json.loads(found.stdout)["findings"]
    assert len(listed) > 50
    assert all(len(finding["evidence"]) <= 80 for finding in listed)
    assert "--fix" in found.stderr
    fixed = run(cli, ["audit", str(path), "--fix"])
    assert fixed.exit_code == 0
    assert f"{len(listed)} taken away" in fixed.stdout
    again = run(cli, ["audit", str(path)])
    assert again.exit_code == 0
    assert "nothing found" in again.stdout
