"""Which code a SPEC names: found without importing it, and no other is run."""

from __future__ import annotations

import importlib.util
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from loaded import load

from attnport.artifacts import Source
from attnport.sources.code import code_of, runs_code

MARKING = 'from pathlib import Path\nPath(__file__).with_name("mark").write_text("it ran")\n'
MODEL = f"{MARKING}from ship_model import spec\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("bert_encoder", False),
        ("hf:folder", False),
        ("hf:owner/name", False),
        ("hf:x.py:f", False),  # a folder of that name
        ("hf.py:f", True),
        ("model.py:f", True),
        ("./model:f", True),
        ("package.module:f", True),
        ("attnport.cli:main", True),
        ("os:getcwd", True),
    ],
)
def test_only_sources_that_name_code_run_code(text: str, code: bool) -> None:
    assert runs_code(Source(text)) is code


@pytest.mark.parametrize(
    "module", ["json.decoder", "onnx.helper", "xml.dom.minidom", "this", "sys", "_frozen_importlib"]
)
def test_the_file_of_a_module_is_the_one_that_an_import_takes(module: str) -> None:
    code = """
import importlib, sys
from attnport.artifacts import Source
from attnport.sources.code import code_of

name = sys.argv[1]
print(code_of(Source(f"{name}:f")).place)
print(getattr(importlib.import_module(name), "__file__", None) or name)
"""
    done = subprocess.run([sys.executable, "-c", code, module], capture_output=True, text=True, check=True)
    found, *_, taken = done.stdout.splitlines()  # `this` prints too
    assert found == taken


def test_looking_for_a_module_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spaced" / "package").mkdir(parents=True)  # `spaced` is a namespace package
    for name in ("__init__", "module"):
        (tmp_path / "spaced" / "package" / f"{name}.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    found = code_of(Source("spaced.package.module:spec"))
    assert found is not None
    assert found.place == str(tmp_path / "spaced" / "package" / "module.py")
    assert not [name for name in sys.modules if name.startswith("spaced")]


def test_bytecode_beside_a_file_is_not_what_runs(tmp_path: Path) -> None:
    """What a user reads before saying yes is what runs: a `.pyc` may say that its source need not be looked at."""
    (tmp_path / "model.py").write_text("from ship_model import spec\n")
    (tmp_path / "other.py").write_text(MODEL)
    cached = importlib.util.cache_from_source(str(tmp_path / "model.py"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "other.py"), cached, str(tmp_path / "model.py"), invalidation_mode=unchecked)
    load(f"{tmp_path / 'model.py'}:spec")
    assert not (tmp_path / "mark").exists()
