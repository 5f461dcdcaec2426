"""A bundle is checked and measured through its own reader, as the runtime `bundle`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import tiny_model
from bundle_fixtures import arrays, exported, made_artifact, made_bundle
from click.testing import CliRunner

from attnport.cli import cli
from attnport.errors import BundleError
from attnport.folder.workspace import bundle_digest, change
from attnport.parity.golden import write_golden
from attnport.verbs.bench import bench
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check

__all__ = ["arrays", "exported", "made_artifact", "made_bundle"]


@pytest.fixture(scope="module")
def packed(_tiny_exported: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An artifact folder and a bundle of it."""
    folder = Path(shutil.copytree(_tiny_exported, tmp_path_factory.mktemp("packed") / "tiny"))
    with change(folder) as edit:
        forms = {"ort_cpu": edit.manifest.forms["ort_cpu"]}
        edit.manifest = dataclasses.replace(edit.manifest, forms=forms)
        write_golden(tiny_model.spec(), edit.path("golden.npz"))
        edit.finish("export", "with goldens")
    return folder, bundle(folder, folder.parent / "app", unverified=True)


def test_a_bundle_is_checked_through_its_reader(packed: tuple[Path, Path]) -> None:
    folder, app = packed
    report = check(folder, ["bundle"], bundle=app, threads=1)
    row = report.runtimes["bundle.ort_cpu"]
    assert (row.verdict, row.plan) == ("PASS", "fp32")
    assert row.ran is not None
    assert "CPUExecutionProvider" in row.ran.provider
    assert len(row.cases) > 10
    result = CliRunner().invoke(cli, ["check", str(folder), "--runtime", "bundle", "--bundle", str(app)])
    assert result.exit_code == 0
    assert "bundle.ort_cpu" in result.output


def test_without_one_it_is_not_run_and_says_how_to_name_one(packed: tuple[Path, Path]) -> None:
    folder, app = packed
    result = CliRunner().invoke(cli, ["check", str(folder), "--runtime", "bundle"])
    assert result.exit_code == 3
    assert "--bundle APP" in result.output
    result = CliRunner().invoke(cli, ["check", str(folder), "--runtime", "bundle", "--bundle", str(app / "model")])
    assert result.exit_code == 2
    assert "is not a folder" in result.output


def test_a_bundle_whose_file_was_changed_is_no_bundle_of_this_folder(packed: tuple[Path, Path], tmp_path: Path) -> None:
    folder, app = packed
    other = Path(shutil.copytree(app, tmp_path / "other"))
    model = next(other.rglob("*.onnx"))
    model.write_bytes(model.read_bytes() + b"\0")
    result = CliRunner().invoke(cli, ["check", str(folder), "--runtime", "bundle", "--bundle", str(other)])
    assert result.exit_code == 6
    assert model.name in result.output


def test_a_bundle_of_another_model_is_refused_by_tensor(packed: tuple[Path, Path], made_bundle: Path) -> None:
    folder, _ = packed
    row = check(folder, ["bundle"], bundle=made_bundle, threads=1).runtimes["bundle.ort_cpu"]
    assert row.verdict == "FAIL"
    assert "ids" in row.reason


def test_bundles_are_told_apart_by_their_manifest(packed: tuple[Path, Path], made_bundle: Path) -> None:
    _, app = packed
    assert len({bundle_digest(app), bundle_digest(made_bundle), bundle_digest(None)}) == 3
    assert bundle_digest(app / "nowhere") == str(app / "nowhere")


def test_a_bundle_is_measured_through_its_reader(packed: tuple[Path, Path]) -> None:
    folder, app = packed
    report = bench(folder, ["bundle"], ["batch=1,seq=8"], threads=1, budget_s=1.0, bundle=app)
    row = report.shapes["batch=1,seq=8"]["bundle.ort_cpu"]
    assert row.median_ns is not None
    assert row.ran is not None
    assert "CPUExecutionProvider" in row.ran.provider
    rows = json.loads((folder / "latency.json").read_text())["shapes"]["batch=1,seq=8"]
    assert set(rows) == {"torch_eager", "bundle.ort_cpu"}


def test_a_folder_that_is_no_bundle_is_an_error(packed: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        check(packed[0], ["bundle"], bundle=tmp_path)
