from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import idle_worker
import pytest
from click.testing import CliRunner, Result

from attnport.artifacts import LatencyReport
from attnport.cli import check_target, cli, write
from attnport.errors import UnavailableError, UsageError
from attnport.folder.workspace import open_folder
from attnport.jsonfile import read, to_json
from attnport.latency import measuring
from attnport.latency.regression import compare
from attnport.latency.workloads import workloads
from attnport.verbs.bench import bench, raise_for


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)])


@pytest.fixture(scope="module")
def saved(_tiny_exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, saved by the command line."""
    folder = Path(shutil.copytree(_tiny_exported, tmp_path_factory.mktemp("options") / "tiny"))
    path = folder.parent / "before.json"
    (folder.parent / "lengths").write_text("3:3\n40:1\n")
    arguments = ["--runtime", "ort_cpu", "--shape", "batch=1/2,seq=3", "--lengths", folder.parent / "lengths"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "WORKER", (idle_worker.__file__,))
        done = call(folder, *arguments, "--batch", 4, "--threads", 1, "--within", 1, "--save", path)
    assert done.exit_code == 0, done.output
    return path


def test_the_report_is_saved_with_what_names_its_model(saved: Path) -> None:
    report = read(LatencyReport, saved)
    assert report == read(LatencyReport, saved.parent / "tiny" / "latency.json")
    assert report.model == "tiny"
    assert report.weights
    assert list(report.shapes) == ["1 of length 3", "4 of lengths 3-40", "batch=1,seq=3", "batch=2,seq=3"]
    assert report.tokens["4 of lengths 3-40"] == 3 * 3 + 40
    assert sorted(path.name for path in saved.parent.iterdir()) == ["before.json", "lengths", "tiny"]


@pytest.mark.usefixtures("idle")
def test_one_plan_is_measured_by_any_baseline_into_a_file_of_its_own(tiny_artifact: Path) -> None:
    options = [
        "--precision",
        "fp32",
        "--baseline",
        "ort-cpu",
        "--shape",
        "batch=1,seq=3",
        "--threads",
        1,
        "--budget",
        1,
    ]
    done = call(tiny_artifact, "--runtime", "torch_eager", "--no-cold", *options)
    assert done.exit_code == 0, done.output
    report = read(LatencyReport, tiny_artifact / "latency.fp32.json")
    rows = report.shapes["batch=1,seq=3"]
    assert {name: row.verdict == "baseline" for name, row in rows.items()} == {"ort_cpu": True, "torch_eager": False}
    assert rows["torch_eager"].ratio is not None
    assert "load time, first call and peak memory were not measured, as was asked for" in report.notes
    assert report.settings["plan"] == "fp32"
    assert not (tiny_artifact / "latency.json").exists()
    assert open_folder(tiny_artifact).stages["bench:fp32"].files == ("latency.fp32.json",)


@pytest.mark.usefixtures("idle")
def test_without_options_what_was_measured_before_is_measured_again(tiny_artifact: Path) -> None:
    (lengths := tiny_artifact.parent / "lengths").write_text("3:3\n40:1\n")
    options = {"runtimes": ["ort_cpu"], "threads": 1, "within": 1.0, "cold": False}
    first = bench(tiny_artifact, shapes=["batch=1,seq=3"], lengths=lengths, batch=4, **options)
    told = list[str]()
    again = bench(tiny_artifact, force=True, tell=told.append, **options)
    assert list(again.shapes) == list(first.shapes) == ["1 of length 3", "4 of lengths 3-40", "batch=1,seq=3"]
    assert "--lengths ../lengths --shape batch=1,seq=3" in told[0]
    assert list(bench(tiny_artifact, shapes=["batch=2,seq=3"], **options).shapes) == ["batch=2,seq=3"]

    bench(tiny_artifact, lengths=lengths, batch=4, **options)
    lengths.unlink()
    with pytest.raises(UsageError, match=r"was measured with --lengths \.\./lengths, which is not there"):
        bench(tiny_artifact, force=True, **options)


def test_load_first_call_and_steady_state_are_told_apart(saved: Path) -> None:
    for rows in read(LatencyReport, saved).shapes.values():
        for row in rows.values():
            assert row.load_ns is not None
            assert row.first_ns is not None
            assert row.load_ns > 0 < row.first_ns
            assert row.warm_calls >= 3
            assert len(row.samples_ns) % row.calls == 0
        assert len({row.load_ns for row in rows.values()}) == len(rows)


def test_pinning_and_what_ended_a_workload_are_recorded(saved: Path) -> None:
    settings = read(LatencyReport, saved).settings
    if hasattr(os, "sched_getaffinity"):
        assert {int(one) for one in settings["pinned to processors"].split(",")} <= os.sched_getaffinity(0)
    assert settings["ended by batch=1,seq=3"] in ("time", "precision", "rounds")
    assert settings["precision"] == 1


def test_a_run_with_the_same_times_shows_no_regression(saved: Path, tmp_path: Path) -> None:
    again = json.loads(saved.read_text())
    again["settings"]["seed"] = "that of another run"
    (tmp_path / "again.json").write_text(json.dumps(again))
    done = call("--compare", saved, tmp_path / "again.json", "--fail-on-regression")
    assert done.exit_code == 0, done.output
    assert "no regression shown" in done.output
    assert max(map(len, done.output.splitlines())) <= 80


def test_a_report_is_not_compared_with_itself_or_its_copy(saved: Path) -> None:
    for copy in (saved, saved.parent / "tiny"):
        done = call("--compare", saved, copy)
        assert done.exit_code == 2, done.output
        assert "given twice" in done.output


def test_a_regression_is_said_and_fails_only_where_that_was_asked_for(saved: Path, tmp_path: Path) -> None:
    slow = json.loads(saved.read_text())
    row = slow["shapes"]["batch=1,seq=3"]["ort_cpu"]
    row["samples_ns"] = [10 * one for one in row["samples_ns"]]
    row["median_ns"] *= 10
    (tmp_path / "after.json").write_text(json.dumps(slow))
    said = call("--compare", saved, tmp_path / "after.json")
    assert said.exit_code == 0
    assert "verdict: REGRESSION" in said.output
    failed = call("--compare", saved, tmp_path / "after.json", "--fail-on-regression")
    assert failed.exit_code == 7
    assert "slower than before: ort_cpu on batch=1,seq=3" in failed.output
    as_json = call("--compare", saved, tmp_path / "after.json", "--json")
    assert json.loads(as_json.stdout)["verdict"] == "REGRESSION"
    assert compare(tmp_path / "after.json", saved).verdict == "no regression shown"


def test_several_pairs_of_reports_are_compared(saved: Path, tmp_path: Path) -> None:
    again = [tmp_path / f"{number}.json" for number in range(3)]
    for number, path in enumerate(again):
        report = json.loads(saved.read_text())
        report["settings"]["seed"] = f"that of run {number}"
        path.write_text(json.dumps(report))
    done = call("--compare", saved, again[0], "--compare", again[1], again[2])
    assert done.exit_code == 0, done.output
    assert "each of the 2 pairs of runs is one observation" in done.output
    assert "verdict: no regression shown" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'FOLDER'"),
        (["FOLDER", "--compare", "A", "A"], "takes no folder"),
        (["--compare", "A"], "requires 2 arguments"),
        (["--compare", "A", "A", "--shape", "batch=1"], "takes no --shape"),
        (["--compare", "A", "A", "--budget", "60"], "takes no --budget"),
        (["FOLDER", "--fail-on-regression"], "goes with --compare"),
        (["FOLDER", "--within", "0"], "0<x<=1"),
        (["FOLDER", "--batch", "0"], "--batch"),
        (["FOLDER", "--save", "FOLDER"], "it is a folder"),
        (["FOLDER", "--save", "FOLDER/none/x.json"], "there is no folder"),
        (["FOLDER", "--shape", "batch=1|2"], "between slashes"),
        (["FOLDER", "--lengths", "A"], "line 1"),
        (["--compare", "A", "FOLDER/none"], "cannot be read"),
        (["--compare", "A", "FOLDER/model.onnx"], "not a valid LatencyReport"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(saved: Path, arguments: list[str], said: str) -> None:
    folder = saved.parent / "tiny"
    given = [one.replace("FOLDER", str(folder)) if one != "A" else str(saved) for one in arguments]
    done = call(*given)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_runtime_that_was_named_and_not_run_is_an_error(saved: Path) -> None:
    report = read(LatencyReport, saved)
    raise_for(report, ["ort-cpu"])
    with pytest.raises(UnavailableError, match="tensorrt was not run"):
        raise_for(report, ["tensorrt"])


def test_the_batch_of_lengths_is_what_the_model_takes_at_most(saved: Path) -> None:
    folder = saved.parent / "tiny"
    manifest = open_folder(folder)
    made = workloads(folder, manifest, None, (), 0, {3: 100}, 64)
    assert [workload.items for workload in made] == [1, 32]
    assert [workload.items for workload in workloads(folder, manifest, None, (), 0, {3: 5}, 64)] == [1, 5]
    with pytest.raises(UsageError, match="65 shapes"):
        workloads(folder, manifest, ["batch=1/2,seq=" + "/".join(map(str, range(1, 33))), "batch=3,seq=1"], (), 0)


@pytest.mark.slow
def test_more_samples_can_be_asked_for(tiny_artifact: Path) -> None:
    report = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], threads=1, budget_s=25.0, samples=1000)
    row = report.shapes["batch=1,seq=3"]["ort_cpu"]
    if len(row.samples_ns) < 1000:
        assert report.settings["ended by batch=1,seq=3"] == "time"  # a machine that is busy
    assert (row.p99_ns is not None) == (len(row.samples_ns) >= 1000)


def test_saving_leaves_the_report_that_was_there_when_it_fails(saved: Path, tmp_path: Path) -> None:
    report = read(LatencyReport, saved)
    path = tmp_path / "report.json"
    write(to_json(report), path)
    assert path.read_text() == to_json(report)
    assert [one.name for one in tmp_path.iterdir()] == ["report.json"]
    check_target(path, "--save", "x.json")
    with pytest.raises(UsageError):
        check_target(tmp_path, "--save", "x.json")
