"""The recommendation of a real folder: its command runs, and what was made anew since is not recommended."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from test_check_bisect import SPEC

from attnport.artifacts import LatencyReport, LatencyRow, ParityReport
from attnport.cli import cli
from attnport.console.terminal import shown as as_text
from attnport.folder.workspace import change, open_folder, read_parity
from attnport.jsonfile import read
from attnport.latency.choice import ratio
from attnport.reporting.choice import Choice, Deployable
from attnport.verbs._deployables import advise
from attnport.verbs.bench import bench
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport.verbs.inspect import inspect
from attnport.verbs.ship import ShipResult
from attnport_bundle.format.manifest import read as read_bundle


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a space in its name, checked and timed."""
    folder = tmp_path_factory.mktemp("advice") / "my model"
    export(SPEC, folder)
    fuse(folder, targets=["ort_cpu"])
    check(folder, ["torch_eager", "ort_cpu"])
    bench(folder, ["torch_eager", "ort_cpu"], budget_s=1)
    return folder


def _advice(folder: Path) -> Choice:
    manifest = open_folder(folder)
    return advise(folder, manifest, read_parity(folder, manifest), read(LatencyReport, folder / "latency.json"))


@pytest.mark.slow
def test_the_command_of_the_recommendation_embeds_what_is_recommended(measured: Path, tmp_path: Path) -> None:
    found = _advice(measured)
    assert found.deploy is not None
    assert (found.deploy.measured_as, found.deploy.name, found.deploy.plan) == ("ort_cpu", "ort_cpu", "fp32")
    assert found.others["torch_eager"] == "it runs the module in PyTorch, which no bundle carries"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shown = as_text(ShipResult("out", 0, (), None, None, None, found)).splitlines()
    for command in (*shown[-3:], "attnport verify app/"):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert shlex.split(found.commands[0])[2] == str(measured)


@pytest.mark.slow
def test_a_bundle_without_a_name_has_the_recommended_form(measured: Path, tmp_path: Path) -> None:
    told: list[str] = []
    app = bundle(measured, tmp_path / "app", tell=told.append)
    (best,) = read_bundle(app).order
    assert best == getattr(_advice(measured).deploy, "name", "")
    assert "which is recommended" in told[-1]


@pytest.mark.slow
def test_inspect_leads_with_the_files_of_each_form_and_the_command_that_bundles_the_recommended_one(
    measured: Path,
) -> None:
    found = inspect(measured)
    (one,) = found.deploy
    assert (one.name, one.parity, one.runtime) == ("ort_cpu", "PASS", "onnxruntime")
    assert one.files == {name: (measured / name).stat().st_size for name in ("model.ort_cpu.onnx", "weights.bin")}
    choice = _advice(measured)
    assert found.next == choice.commands
    assert choice.deploy == one


@pytest.mark.slow
def test_both_forms_of_the_report_have_it_and_each_is_a_file_of_its_own(measured: Path) -> None:
    for arguments, file in (([], "report.html"), (["--format", "md"], "report.md")):
        done = CliRunner().invoke(cli, ["report", str(measured), *arguments])
        assert done.exit_code == 0, done.output
        assert done.output.strip().endswith(file)
        text = (measured / file).read_text(encoding="utf-8").replace("&#x27;", "'")
        assert f"attnport bundle {shlex.quote(str(measured))} -o app/ --form ort_cpu --lang python" in text
    assert CliRunner().invoke(cli, ["report", str(measured), "--format", "pdf"]).exit_code == 2


@pytest.mark.slow
def test_a_form_that_was_made_again_since_it_was_timed_or_checked_is_not_recommended(measured: Path) -> None:
    def problem() -> str:
        return _advice(measured).others.get("ort_cpu", "")

    def made_again(form: bytes) -> None:
        with change(measured) as edit:
            edit.path("model.ort_cpu.onnx").write_bytes(form)
            edit.finish("fuse:ort_cpu", "again")

    assert problem() == ""
    made_again((measured / "model.ort_cpu.onnx").read_bytes())
    assert problem() == "", "it is what it was"
    model = onnx.load(measured / "model.ort_cpu.onnx", load_external_data=False)
    model.doc_string = "again"
    made_again(model.SerializeToString())
    assert "made again after parity was checked" in problem()
    assert _advice(measured).deploy is None
    check(measured, ["torch_eager", "ort_cpu"], force=True)
    assert "made again after it was timed" in problem()
    assert _advice(measured).deploy is None
    bench(measured, ["torch_eager", "ort_cpu"], budget_s=1, force=True)
    assert _advice(measured).deploy is not None


@pytest.mark.slow
def test_times_of_another_version_are_refused_in_words_and_advise_nothing(measured: Path) -> None:
    text = (measured / "latency.json").read_text(encoding="utf-8")
    with change(measured) as edit:
        edit.path("latency.json").write_text(text.replace("attnport/latency/3", "attnport/latency/2"))
        edit.finish("bench", "earlier")
    command = f"attnport bundle {shlex.quote(str(measured))} -o app/ --form ort_cpu --lang python"
    assert inspect(measured).next == (command,)
    done = CliRunner().invoke(cli, ["report", str(measured)])
    assert done.exit_code == 2
    assert "latency.json is not a valid LatencyReport" in done.output
    assert "make it again" in done.output


def _row(*samples: int, calls: int = 1) -> LatencyRow:
    return LatencyRow("faster", "", float(samples[0]), samples_ns=samples, calls=calls)


def test_two_runtimes_are_compared_over_the_rounds_that_both_were_in() -> None:
    slow, fast = _row(*[200, 201, 199, 200] * 10), _row(*[100, 101, 99, 100] * 20, calls=2)
    found = ratio(slow, fast)
    assert found is not None
    assert 1.9 < found[0] <= found[1] <= found[2] < 2.1
    assert found[1] == pytest.approx(2)
    alike = ratio(_row(*[100, 120, 80, 110] * 10), _row(*[110, 80, 120, 100] * 10))
    assert alike is not None
    assert alike[0] < 1 < alike[2]
    assert ratio(LatencyRow(), fast) is None


def test_the_summary_of_ship_names_the_files_to_deploy_and_three_commands_or_why_there_are_none() -> None:
    command = f"attnport bundle {'long/' * 20}out -o app/ --form ort_cpu --lang python"
    files = {"model.ort_cpu.onnx": 1, "weights.bin": 2}
    deploy = Deployable("ort_cpu", "onnxruntime", "fp32", files, "PASS", "", "ort_cpu")
    shipped = ShipResult("out", 0, (), None, None, None, Choice(deploy, commands=(command,)))
    text = as_text(shipped)
    told = " ".join(text.split())
    assert "to deploy: model.ort_cpu.onnx and weights.bin (ort_cpu, fp32, the fastest within the bound)" in told
    assert text.index("to deploy") < text.index("stages") < text.index("shipped: out")
    rows = dict.fromkeys(("1 sentence", "batch=8,seq=32"), LatencyRow(median_ns=1e6))
    mean = as_text(ShipResult("out", 0, (), None, None, None, Choice(deploy, rows, commands=(command,))))
    assert "the fastest within the bound by the mean of 2 workloads" in " ".join(mean.split())
    there = [f"  (cd app/python && python -m attnport_bundle {verb})" for verb in ("selftest", "bench")]
    assert text.splitlines()[-3:] == [f"  {command}", *there]
    missing = Choice(None, reason="nothing was timed", commands=("attnport bench out",))
    text = as_text(ShipResult("out", 0, (), None, None, None, missing))
    assert text.endswith("nothing to deploy: nothing was timed; next:\n  attnport bench out\n")
    assert "fastest within" not in text


def test_the_summary_of_ship_says_what_was_not_compared() -> None:
    notes = (
        "padding on the left moves the module's own rows, as positions do, and is not compared",
        "padding invariance was not compared: no input says which keys of an item are padding",
        "no sentences were given, so real text was not compared",
    )
    told = " ".join(as_text(ShipResult("out", 0, (), None, ParityReport("PASS", {}, {}, notes), None)).split())
    assert [note in told for note in notes] == [False, True, True]
