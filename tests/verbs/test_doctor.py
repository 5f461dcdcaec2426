"""What the doctor finds, on fake distributions, and that it never breaks on what is broken."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from fake_distributions import install_distribution

from attnport.artifacts import Capabilities
from attnport.folder.machine import version
from attnport.jsonfile import from_json, to_json
from attnport.runtimes import base
from attnport.verbs import doctor


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands alone on the path, in place of what is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    importlib.invalidate_caches()
    return tmp_path


def found(*names: str) -> dict[str, str | None]:
    return {name: version(name) for name in (*names, *doctor.ONNX_RUNTIMES)}


def test_both_onnxruntime_wheels_are_a_problem_with_the_lines_that_mend_it(site: Path) -> None:
    install_distribution(site, "onnxruntime", "1.31.1")
    install_distribution(site, "onnxruntime-gpu", "1.30.0")
    (problem,) = doctor.onnxruntime_problems(found())
    assert "onnxruntime 1.31.1" in problem.what
    assert "onnxruntime-gpu 1.30.0" in problem.what
    assert problem.mend == ("pip uninstall -y onnxruntime onnxruntime-gpu", "pip install onnxruntime-gpu")


def test_two_wheels_in_folders_of_their_own_are_no_problem_if_the_one_imported_is_whole(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pip install --target`: nothing was overwritten."""
    first = site / "first"
    install_distribution(first, "onnxruntime-gpu", "1.31.1")
    install_distribution(site, "onnxruntime", "1.31.1")
    monkeypatch.setattr(sys, "path", [str(first), str(site)])
    (site / "onnxruntime").mkdir()
    assert len(doctor.onnxruntime_problems(found())) == 1
    (first / "onnxruntime").mkdir()
    (first / "onnxruntime" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert doctor.onnxruntime_problems(found()) == ()
    install_distribution(first, "onnxruntime-openvino", "1.24.1")
    importlib.invalidate_caches()
    (problem,) = doctor.onnxruntime_problems(found())
    assert "overwrite each other" in problem.what


def test_a_tensorrt_of_another_release_than_the_provider_wants_is_a_problem() -> None:
    def problems(path: str, installed: str | None = "11.4.0.106", runtime: str = "ort_tensorrt") -> int:
        libraries = {"libcudart.so.13": "", "libnvinfer.so.10": path}
        given = doctor.tensorrt_problems(
            {"tensorrt-cu13": installed}, [Capabilities(runtime, False, libraries=libraries)]
        )
        for problem in given:
            assert "tensorrt-cu13 11.4.0.106 is installed" in problem.what
            assert "wants libnvinfer.so.10" in problem.what
            assert problem.mend == ('pip install "tensorrt-cu13==10.*"',)
        return len(given)

    assert problems("") == 1
    assert problems("lib/libnvinfer.so.10") == problems("", None) == problems("", runtime="tensorrt") == 0


@pytest.mark.parametrize("wheel", ["onnxruntime", "onnxruntime-gpu"])
def test_a_wheel_whose_files_are_gone_is_a_problem(site: Path, wheel: str) -> None:
    install_distribution(site, wheel, "1.31.1")
    (site / "onnxruntime" / "capi").mkdir(parents=True)
    (problem,) = doctor.onnxruntime_problems(found())
    assert "files are gone" in problem.what
    assert problem.mend == (f"pip uninstall -y {wheel}", f"pip install {wheel}")


def test_one_whole_wheel_is_no_problem(site: Path) -> None:
    install_distribution(site, "onnxruntime", "1.31.1")
    (site / "onnxruntime").mkdir()
    (site / "onnxruntime" / "__init__.py").touch()
    assert doctor.onnxruntime_problems(found()) == ()


def test_no_onnxruntime_is_no_problem(site: Path) -> None:
    assert doctor.onnxruntime_problems(found()) == ()


def test_an_old_pytorch_is_a_problem_with_the_line_that_mends_it(site: Path) -> None:
    install_distribution(site, "torch", "2.9.1+cu130")
    (problem,) = doctor.version_problems(found("torch"), ["torch>=2.11", "numpy>=2.0"])
    assert problem.what == "torch 2.9.1+cu130 is installed; attnport needs torch>=2.11."
    assert problem.mend == ('pip install "torch>=2.11"',)


@pytest.mark.parametrize(
    ("version", "least", "problems"),
    [
        ("2.11.0", "2.11", 0),
        ("2.11", "2.11.0", 0),
        ("2.13.0+cpu", "2.11", 0),
        ("3.0", "2.11", 0),
        ("2.9", "2.11", 1),
        ("2.10.9", "2.11", 1),
        ("no number", "2.11", 0),
    ],
)
def test_versions_are_compared_as_numbers(version: str, least: str, problems: int) -> None:
    wanted = [f'onnx_ir>={least}; extra == "cpu"']
    assert len(doctor.version_problems({"onnx-ir": version}, wanted)) == problems


def test_this_projects_own_requirements_are_read() -> None:
    wanted = doctor.requirements()
    assert any(line.startswith("torch>=") for line in wanted)
    assert any("extra == " in line and line.startswith("openvino>=") for line in wanted)


class Broken(base.Runtime):
    name = "broken"
    opens = "onnx"
    isolated = False

    def probe(self) -> Capabilities:
        raise ValueError("library is damaged")

    def session(self, opening: base.Opening) -> base.Session:
        raise NotImplementedError


def test_a_runtime_that_breaks_while_asked_is_listed_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "names", lambda: ["broken"])
    monkeypatch.setattr(base, "get", lambda name: Broken())
    (capabilities,) = doctor.doctor().runtimes
    assert not capabilities.available
    assert capabilities.reason == "its probe failed with ValueError: library is damaged"


def test_the_report_of_this_installation_is_whole_and_survives_json(tmp_path: Path) -> None:
    report = doctor.doctor(tmp_path)
    assert from_json(doctor.DoctorReport, to_json(report), "report") == report
    assert report.packages["torch"]
    assert [runtime.runtime for runtime in report.runtimes] == base.names()
    assert all(runtime.reason for runtime in report.runtimes if not runtime.available)
    assert "ort_cpu" in report.targets
