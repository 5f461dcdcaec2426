"""A bundle on the oldest ONNX Runtime that it promises: its goldens pass there, and an older one is refused.

That the number is not idle is shown on MiniLM, in test_bare_venv.py: this module's few rows come out right in 1.23.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import bare_venv
import pytest
import tiny_attention as tiny

from attnport.verbs.bundle import bundle
from attnport_bundle.format.manifest import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WITH_ATTENTION, WITHOUT = "1.28", "1.23"


def environment(folder: Path, release: str) -> Path:
    python = bare_venv.make(folder / "venv", f"onnxruntime=={release}.*", "numpy")
    assert bare_venv.packages(python)["onnxruntime"].startswith(f"{release}.")
    return python


@pytest.fixture(scope="module")
def attentions_oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("attention"), WITH_ATTENTION)


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("oldest"), WITHOUT)


@pytest.fixture(scope="module")
def decomposed(tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Any]) -> Path:
    """A bundle of the same module in an opset that has no attention operator."""
    folder = tmp_path_factory.mktemp("decomposed")
    (folder / "exported").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns about itself
        tiny.export(folder / "exported", 18)
    return bundle(tiny.make(folder / "out", folder / "exported", arrays, tiny.parity()), folder / "app")


def selftest(python: Path, app: Path) -> tuple[int, str]:
    done = bare_venv.run(python, app / "python", "-m", "attnport_bundle", "selftest")
    return done.returncode, done.stdout + done.stderr


def test_a_form_with_attention_passes_on_the_oldest_that_it_promises(attentions_oldest: Path, app: Path) -> None:
    assert read(app).forms["ort_cpu"].requires.runtime == WITH_ATTENTION
    code, said = selftest(attentions_oldest, app)
    assert code == 0, said
    assert "ort_cpu golden-2 pooled" in said


def test_a_form_without_attention_passes_on_the_oldest_that_it_promises(oldest: Path, decomposed: Path) -> None:
    assert read(decomposed).forms["ort_cpu"].requires.runtime == WITHOUT
    code, said = selftest(oldest, decomposed)
    assert code == 0, said


def test_an_older_one_is_refused_by_its_number(oldest: Path, app: Path) -> None:
    code, said = selftest(oldest, app)
    assert code == 3
    assert f"got onnxruntime {WITHOUT}." in said
    assert f"expected {WITH_ATTENTION} or later" in said
