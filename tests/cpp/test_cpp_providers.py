"""Execution providers of ONNX Runtime that a program asks for, on a machine that has the CPU's alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_forms import manifest, reform, seal, wrong_model
from cpp_builds import Build

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
WITHOUT = f"this onnxruntime was built without {CUDA}."
Opened = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def opened(cpp_build: Build, app: Path, tmp_path: Path) -> Opened:
    """The exit code and the lines of a program that opens the bundle with these providers and plug-ins."""

    def run(providers: str, plugins: str = "", build: Build = cpp_build) -> tuple[int, list[str]]:
        done = build.run("open_with", app, tmp_path / "cache", providers, plugins)
        assert not done.stderr
        return done.returncode, done.stdout.splitlines()

    return run


def test_a_form_runs_on_its_own_provider(opened: Opened) -> None:
    assert opened("") == (0, [f"ort_cpu on {CPU}"])


def test_the_first_provider_that_starts_is_taken(opened: Opened) -> None:
    assert opened(f"{CUDA},{CPU}") == (0, [f"ort_cpu on {CPU}"])


def test_a_provider_that_was_asked_for_is_never_replaced(opened: Opened) -> None:
    assert opened(CUDA) == (3, [WITHOUT])
    rtx = "NvTensorRTRTXExecutionProvider"
    assert opened(f"{CUDA},{rtx}") == (3, [f"{CUDA}: {WITHOUT} {rtx}: this onnxruntime was built without {rtx}."])


def test_an_unknown_provider_is_a_fault_of_the_caller(opened: Opened) -> None:
    code, (said,) = opened(f"NoSuchExecutionProvider,{CPU}")
    assert code == 2
    assert said.startswith(f"provider 'NoSuchExecutionProvider' is not one of {CPU}, {CUDA}, ")


def test_another_provider_than_the_judged_one_is_proved_first(opened: Opened, app: Path, tmp_path: Path) -> None:
    """A form that was judged on a GPU is run on the CPU: with a wrong model behind it, its goldens do not pass."""
    found = manifest(app)
    found["forms"]["ort_cpu"]["provider"] = CUDA
    seal(app, found)
    assert opened(CPU) == (0, [f"ort_cpu on {CPU}"])
    assert len(list((tmp_path / "cache").glob("*.json"))) == 1
    wrong = wrong_model(app)
    reform(app, {"ort_cpu": {"file": wrong}})
    code, (said,) = opened(CPU)
    assert code == 4
    assert said.startswith("ort_cpu does not pass the goldens on ")


def test_a_plug_in_that_cannot_be_loaded_is_said(opened: Opened, tmp_path: Path) -> None:
    code, (said,) = opened("SomeExecutionProvider", f"mine={tmp_path / 'none.so'}")
    assert code == 3
    assert said.startswith("plug-in 'mine' cannot be loaded: ")


def test_the_cpu_needs_no_plug_in(opened: Opened, tmp_path: Path) -> None:
    for providers in (f"SomeExecutionProvider,{CPU}", CPU, ""):
        assert opened(providers, f"mine={tmp_path / 'none.so'}") == (0, [f"ort_cpu on {CPU}"])


@pytest.mark.slow
def test_no_thread_registers_a_plug_in_while_another_looks_for_a_provider(
    cpp_build: Build, app: Path, tmp_path: Path
) -> None:
    library, provider = cpp_build.module("plugged_onnxruntime"), "PretendedExecutionProvider"
    done = cpp_build.run("plugins_at_once", app, tmp_path / "cache", library, provider)
    assert (done.returncode, done.stdout) == (0, f"{provider}\n{provider}\n"), done.stderr


@pytest.mark.slow
def test_older_headers_know_no_plug_ins(opened: Opened, cpp_clang: Build) -> None:
    code, (said,) = opened("SomeExecutionProvider", "mine=none.so", build=cpp_clang)
    assert code == 3
    assert "headers of API 23 or later; this one was compiled with API 2" in said
