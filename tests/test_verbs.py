"""`import attnport` offers the verbs of the command line as functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import attnport
from attnport.cli import cli
from attnport.errors import ArtifactError, UnavailableError, UsageError
from attnport.runtimes import base
from attnport.verbs.fuse import asked

TRY_ALL = """
import importlib, pkgutil, types
import attnport
for package in pkgutil.iter_modules(attnport.__path__):
    importlib.import_module(f"attnport.{package.name}")
for package in pkgutil.iter_modules(importlib.import_module("attnport.verbs").__path__):
    importlib.import_module(f"attnport.verbs.{package.name}")
for name in attnport.__all__:
    verb = getattr(attnport, name)
    if name == "Artifact":
        continue
    assert isinstance(verb, types.FunctionType), (name, verb)
    assert verb.__module__ == ("attnport.artifact" if name in ("export", "open") else f"attnport.verbs.{name}"), name
"""


def test_every_verb_of_the_command_line_is_a_function_and_no_other() -> None:
    assert {*attnport.__all__} - {"Artifact", "open"} == {name.replace("-", "_") for name in cli.commands} - {"list"}


def test_a_verb_stays_a_function_whatever_else_was_imported() -> None:
    """A subpackage called like a verb would take its place once it is imported."""
    subprocess.run([sys.executable, "-c", TRY_ALL], check=True, timeout=120)


def test_a_verb_takes_text_for_a_path(tiny_artifact: Path) -> None:
    verbs: Any = attnport  # their annotations ask for a Path
    assert verbs.inspect(str(tiny_artifact)) == verbs.inspect(path=tiny_artifact)
    assert verbs.report(str(tiny_artifact), text=None).is_file()
    with pytest.raises(ArtifactError, match="nowhere"):
        verbs.check("nowhere")
    with pytest.raises(TypeError, match="folder"):
        verbs.fuse(targets=["onnx_18"])


@pytest.mark.parametrize("verb", [attnport.check, attnport.bench])
def test_a_precision_is_taken_in_the_spellings_of_other_tools(
    verb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spelled in ("fp16", "FP16", "float16", "fp16-islands"):
        with pytest.raises(ArtifactError, match="nowhere"):
            verb(tmp_path / "nowhere", precision=spelled)
    with pytest.raises(UsageError, match="'fp15'"):
        verb(tmp_path / "nowhere", precision="fp15")
    assert [(one.name, plan) for one, plan in asked(["openvino.BF16", "tensorrt-rtx"], "BFloat16")] == [
        ("openvino", "bf16"),
        ("tensorrt_rtx", "bf16"),
    ]
    assert base.Key.parse("ort-cuda.float16") == base.Key("ort_cuda", "fp16")
    monkeypatch.setattr("attnport.verbs.gpu_check.find_gpus", lambda: ([], "none", ""))
    with pytest.raises(UnavailableError):
        attnport.gpu_check(tmp_path / "out", precisions=("FP16",))


def test_what_is_no_verb_is_no_attribute() -> None:
    assert "ship" in dir(attnport)
    with pytest.raises(AttributeError, match="no attribute 'sheep'"):
        attnport.sheep  # noqa: B018
