from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attnport.artifacts import Capabilities, LatencyReport
from attnport.errors import ArtifactError, ProfileError, SpecError, UnavailableError, UsageError
from attnport.folder.workspace import change, open_folder
from attnport.jsonfile import read
from attnport.latency import measuring as verb
from attnport.latency.measuring import MIN_ROUNDS
from attnport.processes.isolated import Child, probe_all
from attnport.verbs import _needs
from attnport.verbs.bench import bench, raise_for
from attnport.verbs.check import check

bench_verb = sys.modules[bench.__module__]
SENTENCES = ["the cat sat", "a dog ran on", "tree", "the slow red dog sat under the blue tree"] * 10


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES))
    return path


@pytest.fixture(scope="module")
def timed(_tiny_exported: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LatencyReport]:
    """A folder that was measured in few rounds, once for the tests that only read."""
    folder = Path(shutil.copytree(_tiny_exported, tmp_path_factory.mktemp("timed") / "tiny"))
    sentences = folder.parent / "text"
    sentences.write_text("\n".join(SENTENCES))
    names = ["ort_cpu", "onnx_reference", "tensorrt_rtx"]
    return folder, bench(folder, names, text=sentences, threads=1, budget_s=60.0, within=9.0)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_runtime_is_timed_on_every_workload_in_enough_rounds(timed: tuple[Path, LatencyReport]) -> None:
    _, report = timed
    assert list(report.shapes) == ["1 sentence", "32 sentences", "batch=8,seq=48"]
    for workload, rows in report.shapes.items():
        assert report.settings[f"rounds {workload}"] >= MIN_ROUNDS
        counts = set()
        for name in ("torch_eager", "ort_cpu"):
            row = rows[name]
            counts.add(len(row.samples_ns))
            assert min(row.samples_ns) > 0
            assert row.ran.device == "CPU"
            assert row.items_per_s == pytest.approx(report.items[workload] / row.median_ns * 1e9)
            assert row.tokens_per_s == pytest.approx(report.tokens[workload] / row.median_ns * 1e9)
            assert row.peak_bytes is not None
        assert len(counts) == 1
        assert rows["torch_eager"].verdict == "baseline"
        low, middle, high = rows["ort_cpu"].ratio
        assert low <= middle <= high


def test_sentences_and_real_tokens_are_counted_without_padding(timed: tuple[Path, LatencyReport]) -> None:
    _, report = timed
    assert report.items == {"1 sentence": 1, "32 sentences": 32, "batch=8,seq=48": 8}
    assert report.tokens == {"1 sentence": 4, "32 sentences": 8 * (3 + 4 + 1 + 9), "batch=8,seq=48": 8 * 48}


def test_what_is_not_timed_is_listed_with_its_reason(timed: tuple[Path, LatencyReport]) -> None:
    _, report = timed
    rows = report.shapes["1 sentence"]
    assert rows["onnx_reference"].verdict == "NOT_RUN"
    assert "correctness" in rows["onnx_reference"].reason
    if "tensorrt_rtx" in rows:
        assert "attnport build" in rows["tensorrt_rtx"].reason
    else:
        assert report.absent["tensorrt_rtx"]


def test_what_is_on_disk_names_no_place_of_this_machine(timed: tuple[Path, LatencyReport]) -> None:
    folder, _ = timed
    text = (folder / "latency.json").read_text()
    for place in (folder, folder.parent, Path.cwd(), Path.home()):
        assert not place.name or str(place) not in text


def test_settings_say_what_was_equal(timed: tuple[Path, LatencyReport]) -> None:
    _, report = timed
    assert report.settings["threads"] == 1
    assert report.settings["spinning"] is False
    assert report.settings["version torch"]


def test_the_report_is_on_disk_and_is_not_made_again(
    timed: tuple[Path, LatencyReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = timed
    assert read(LatencyReport, folder / "latency.json") == report
    monkeypatch.setattr(verb, "Child", None)  # starting one would fail
    names = ["ort_cpu", "onnx_reference", "tensorrt_rtx"]
    told = list[str]()
    again = bench(folder, names, text=folder.parent / "text", threads=1, budget_s=60.0, within=9.0, tell=told.append)
    assert again == report
    assert "is up to date" in told[0]


def with_forms(folder: Path, target: str, *plans: str) -> None:
    """Gives a folder's form another target at these plans, too."""
    with change(folder) as edit:
        form = dataclasses.replace(edit.manifest.forms["ort_cpu"], target=target)
        more = {f"{target}.{plan}": dataclasses.replace(form, plan=plan) for plan in plans}
        edit.manifest = dataclasses.replace(edit.manifest, forms={**edit.manifest.forms, **more})
        edit.finish("fuse", "of somewhere else")


@pytest.mark.usefixtures("idle")
def test_a_runtime_that_is_not_there_has_no_row_whatever_it_could_open(tiny_artifact: Path) -> None:
    with_forms(tiny_artifact, "ort_cuda", "fp16", "bf16")
    report = bench(tiny_artifact, ["ort_cpu", "ort_cuda"], ["batch=1,seq=3"], threads=1, budget_s=1.0)
    (rows,) = report.shapes.values()
    assert list(rows) == ["torch_eager", "ort_cpu"]
    assert list(report.absent) == ["ort_cuda"]
    assert "CUDAExecutionProvider" in report.absent["ort_cuda"]
    with pytest.raises(UnavailableError, match=r"ort_cuda was not run: .*CUDAExecutionProvider"):
        raise_for(report, ["ort-cuda"])


class Fragile(Child):
    """A child whose process gets a signal when ONNX Runtime is asked for its third run: it is killed."""

    signal = signal.SIGKILL

    def send(self, op: str, **fields: Any) -> None:
        self.runs = getattr(self, "runs", 0) + (op == "run")
        self.fragile = getattr(self, "fragile", False) or fields.get("runtime") == "ort_cpu"
        if self.fragile and self.runs == 3:
            os.kill(self.pid, self.signal)
            time.sleep(0.2)
        super().send(op, **fields)


@pytest.mark.usefixtures("idle")
def test_a_crashed_child_is_not_run_and_the_others_still_report(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "Child", Fragile)
    report = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3", "batch=2,seq=5"], threads=1, budget_s=1.0)
    for rows in report.shapes.values():
        assert rows["ort_cpu"].verdict == "NOT_RUN"
        assert rows["ort_cpu"].kind == "died"
        assert "SIGKILL" in rows["ort_cpu"].reason
        assert len(rows["torch_eager"].samples_ns) >= MIN_ROUNDS
    stages = open_folder(tiny_artifact).stages
    assert stages["bench"].inputs == "", "what failed by accident is measured again the next time"


class Hanging(Fragile):
    """It sleeps for ever instead."""

    signal = signal.SIGSTOP


class Hungry(Child):
    """A child that may take nothing while it is ONNX Runtime."""

    def send(self, op: str, **fields: Any) -> None:
        assert self._memory_bytes
        if fields.get("runtime") == "ort_cpu":
            self._memory_bytes = 1
        super().send(op, **fields)


@pytest.mark.slow
@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(("kind", "said"), [(Hanging, "answer"), (Hungry, "memory")])
def test_a_child_that_hangs_or_takes_all_memory_is_ended_and_the_others_still_report(
    kind: type[Child], said: str, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "Child", kind)
    report = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], threads=1, budget_s=1.0, timeout_s=10.0)
    (rows,) = report.shapes.values()
    assert rows["ort_cpu"].verdict == "NOT_RUN"
    assert rows["ort_cpu"].kind == "died"
    assert said in rows["ort_cpu"].reason
    assert len(rows["torch_eager"].samples_ns) >= MIN_ROUNDS


@pytest.mark.slow
@pytest.mark.usefixtures("idle")
def test_a_runtime_that_was_missing_is_measured_once_it_is_there(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(chosen: Any, limits: Any) -> dict[str, Capabilities]:
        gone = Capabilities("ort_cpu", False, "not installed.", "pip install it")
        return probe_all(chosen, limits) | {"ort_cpu": gone}

    given: Any = {"threads": 1, "budget_s": 1.0}
    with monkeypatch.context() as patch:
        patch.setattr(bench_verb, "probe_all", without)
        absent = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], **given).absent
        assert absent == {"ort_cpu": "not installed; pip install it"}
    (rows,) = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], **given).shapes.values()
    assert rows["ort_cpu"].median_ns is not None


class Unmeasured(Child):
    """A child whose process is killed when its memory is asked for."""

    signal = signal.SIGKILL

    def send(self, op: str, **fields: Any) -> None:
        if op == "peak":
            os.kill(self.pid, self.signal)
            time.sleep(0.2)
        super().send(op, **fields)


class Silent(Unmeasured):
    """It sleeps for ever instead."""

    signal = signal.SIGSTOP


@pytest.mark.slow
@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(("kind", "said"), [(Unmeasured, "SIGKILL"), (Silent, "did not answer in time")])
def test_memory_that_could_not_be_measured_is_said(
    kind: type[Child], said: str, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "Child", kind)
    options: dict[str, Any] = {"threads": 1, "budget_s": 60.0, "within": 9.0, "timeout_s": 10.0}
    report = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], **options)
    for row in report.shapes["batch=1,seq=3"].values():
        assert row.median_ns is not None
        assert row.peak_bytes is None
        assert "peak memory are unknown" in row.reason
        assert said in row.reason


def test_ctrl_c_ends_every_child_and_writes_nothing(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Seen(Child):
        def __init__(self, threads: int, command: tuple[str, ...], memory_bytes: int | None) -> None:
            super().__init__(threads, command, memory_bytes)
            started.append(self.pid)

    def interrupt(message: str) -> None:
        if "round 2/" in message:
            raise KeyboardInterrupt

    monkeypatch.setattr(verb, "Child", Seen)
    with pytest.raises(KeyboardInterrupt):
        bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], threads=1, budget_s=1.0, progress=interrupt)
    assert len(started) == 2
    assert not any(alive(pid) for pid in started)
    assert not (tiny_artifact / "latency.json").exists()


@pytest.mark.usefixtures("idle")
def test_the_form_of_a_named_runtime_is_written_first_and_of_others_its_command_is_named(
    tiny_artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with change(tiny_artifact) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, forms={})
        edit.finish("fuse", "")
    (rows,) = bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=3"], threads=1, budget_s=1.0).shapes.values()
    assert rows["ort_cpu"].median_ns is not None
    assert [message.endswith("has no form ort_cpu, so it is written first") for message in caplog.messages] == [True]
    caplog.clear()
    (rows,) = bench(tiny_artifact, None, ["batch=1,seq=3"], threads=1, budget_s=1.0).shapes.values()
    assert "attnport fuse" in rows["openvino"].reason, "some forms were chosen: no other is written unless it is named"
    assert not caplog.messages


def test_the_forms_of_this_machine_are_written_first_where_there_is_none(tiny_artifact: Path) -> None:
    with change(tiny_artifact) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, forms={})
        edit.finish("fuse", "")
    check(tiny_artifact, threads=1)
    assert {"ort_cpu", "openvino"} <= open_folder(tiny_artifact).forms.keys()


def test_a_form_that_cannot_be_written_leaves_the_other_runtimes_judged(
    tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with change(tiny_artifact) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, forms={})
        edit.finish("fuse", "")
    real = _needs.write_form

    def write(folder: Path, target: str, *how: Any) -> None:
        if target == "openvino":
            raise ArtifactError("openvino does not run the form.")
        real(folder, target, *how)

    monkeypatch.setattr(_needs, "write_form", write)
    found = check(tiny_artifact, threads=1).runtimes
    assert (found["ort_cpu"].verdict, found["openvino"].verdict) == ("PASS", "NOT_RUN")


def test_weights_that_changed_since_export_are_refused(tiny_artifact: Path) -> None:
    with change(tiny_artifact) as edit:
        source = dataclasses.replace(edit.manifest.source, weights_digest="0" * 64)
        edit.manifest = dataclasses.replace(edit.manifest, source=source)
        edit.finish("export", "")
    with pytest.raises(SpecError, match="weights"):
        bench(tiny_artifact, ["torch_eager"], ["batch=1,seq=3"], threads=1, budget_s=1.0)


def test_shapes_beyond_the_model_and_folders_that_are_none_are_refused(tiny_artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="seq"):
        bench(tiny_artifact, ["ort_cpu"], ["batch=1,seq=49"])
    with pytest.raises(UsageError, match="there is none"):
        bench(tiny_artifact, ["warp_drive"])
    with pytest.raises(ArtifactError):
        bench(tmp_path)
