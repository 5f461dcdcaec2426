"""What probes found is kept for one state of the machine, and what is not as it was written is asked for again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fake_distributions import install_distribution

import attnport_bundle
from attnport.artifacts import Capabilities
from attnport.console.terminal import shown
from attnport.folder.machine import machine
from attnport.processes import isolated
from attnport.processes.isolated import keep_probe, kept_probe
from attnport.runtimes import base
from attnport.verbs.doctor import DoctorReport, doctor
from attnport_bundle.runtimes.kernels import VARIABLE

FOUND = Capabilities("ort_cpu", True, version="1.31.1", devices=("CPU",), plans=("fp32",), max_opset=26)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _probes_are_not_kept: None) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(isolated, "kept_probe", kept_probe)
    monkeypatch.setattr(isolated, "keep_probe", keep_probe)
    isolated._state.cache_clear()
    return tmp_path / "cache"


class Counted(base.Runtime):
    """A runtime that counts how often it is probed."""

    name = "counted"
    opens = "onnx"
    isolated = False
    found = dataclasses.replace(FOUND, runtime="counted")

    def __init__(self) -> None:
        self.probes = 0

    def probe(self) -> Capabilities:
        self.probes += 1
        return self.found or 1 // 0

    def session(self, opening: base.Opening) -> base.Session:
        raise AssertionError("nothing is opened here")


def test_a_runtime_is_probed_once_and_again_where_that_is_asked_for() -> None:
    runtime = Counted()
    for _ in range(2):
        assert isolated.probe(runtime) == runtime.found
    assert runtime.probes == 1
    isolated.probe(runtime, refresh=True)
    assert runtime.probes == 2


def test_what_is_absent_is_kept_and_a_probe_that_failed_is_not() -> None:
    absent, damaged = Counted(), Counted()
    absent.found = Capabilities("counted", False, "it is not installed")
    assert [isolated.probe(absent).reason for _ in range(2)] == ["it is not installed"] * 2
    assert absent.probes == 1
    damaged.name = "damaged"
    damaged.found = None
    assert "its probe failed with ZeroDivisionError" in isolated.probe(damaged).reason
    assert kept_probe("damaged") is None


CHANGES = ["environment", "package", "version", "machine", "code", "reader", "compiler", "library"]


@pytest.mark.parametrize("change", CHANGES)
def test_another_machine_or_package_is_probed_anew(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "package_of_this_test"  # no other test has imported it
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(base, "distributions", lambda named: (package.name,))
    keep_probe(FOUND)
    assert kept_probe("ort_cpu") == FOUND
    assert kept_probe("openvino") is None
    if change == "environment":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    elif change == "package":
        (package / "lib").mkdir()
        (package / "lib" / "library.so").touch()
    elif change == "version":
        install_distribution(package.parent, package.name, "9.9")
    elif change == "compiler":
        monkeypatch.setattr(isolated.shutil, "which", lambda name: str(package / "__init__.py"))
    elif change == "library":
        monkeypatch.setattr(isolated, "_LIBRARIES_OF_SYSTEM", str(package / "__init__.py"))
    elif change == "machine":
        there = dataclasses.replace(isolated.machine(), cuda="13.0")
        monkeypatch.setattr(isolated, "machine", lambda: there)
    else:
        code = tmp_path / "runtimes"
        code.mkdir()
        (code / "base.py").touch()
        monkeypatch.setattr(base if change == "code" else attnport_bundle, "__file__", str(code / "base.py"))
    isolated._state.cache_clear()
    assert kept_probe("ort_cpu") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runtime": "ort_cpu"}', "RUNTIME OF ANOTHER"])
def test_a_file_that_is_not_as_it_was_written_is_not_believed(cache: Path, text: str) -> None:
    keep_probe(FOUND)
    (path,) = cache.iterdir()
    other = path.read_text().replace("ort_cpu", "openvino")
    path.write_text(other if text.startswith("RUNTIME") else text)
    assert kept_probe("ort_cpu") is None


def test_doctor_believes_what_was_kept_and_says_how_to_ask_again() -> None:
    for name in base.names():
        keep_probe(dataclasses.replace(FOUND, runtime=name, version="kept"))
    report = doctor()
    assert {runtime.version for runtime in report.runtimes} == {"kept"}
    assert "doctor --refresh" in " ".join(shown(report).split())


def test_the_tables_fit_a_terminal_of_80_columns_and_name_libraries_with_their_places() -> None:
    found = dataclasses.replace(FOUND, libraries={"libnvinfer.so.10": "", "libcudart.so.13": "/lib/c"})
    report = DoctorReport(attnport="0.1.0", machine=machine(), packages={}, runtimes=(found,), targets=(), problems=())
    text = shown(report)
    assert "ort_cpu wants libnvinfer.so.10: not found" in text
    assert "ort_cpu wants libcudart.so.13: /lib/c" in text
    assert "CPU; fp32; opset 26" in text
