"""Answers about attention forms are kept by release, and what is not as it was written is asked for again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from attnport.artifacts import Capabilities
from attnport.console.cells import render
from attnport.console.runtime_tables import able, show_attention_forms, show_libraries
from attnport.processes import isolated
from attnport.processes.form_cache import read_forms, write_forms
from attnport.runtimes import base
from attnport_bundle.cache import VARIABLE

FOUND = Capabilities("ort_cpu", True, version="1.31.1", devices=("CPU",), plans=("fp32",), max_opset=26)
FORMS = {"Attention": "fused", "Attention, bool mask [B,1,1,T]": "refused: inconsistent"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_answers_come_back_for_the_same_release_and_for_no_other(cache: Path) -> None:
    assert read_forms(FOUND) is None
    write_forms(FOUND, FORMS)
    assert read_forms(FOUND) == FORMS
    assert [path.name.rsplit(".", 2)[0] for path in cache.iterdir()] == ["attention-forms.ort_cpu-1.31.1"]
    for other in ({"version": "1.31.2"}, {"devices": ("CUDA",)}, {"plans": ("fp16",)}, {"runtime": "openvino"}):
        assert read_forms(dataclasses.replace(FOUND, **other)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"no such form": "fused"}', '{"Attention": 1}'])
def test_a_file_that_is_not_as_it_was_written_is_not_believed(cache: Path, text: str) -> None:
    write_forms(FOUND, FORMS)
    (path,) = cache.iterdir()
    path.write_text(text)
    assert read_forms(FOUND) is None


def test_a_version_that_is_no_file_name_stays_in_the_folder(cache: Path) -> None:
    write_forms(dataclasses.replace(FOUND, version="../../x y"), FORMS)
    assert [path.parent for path in cache.rglob("*.json")] == [cache]


def test_forms_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(isolated, "tried", lambda runtime, plans: asked.append((runtime.name, plans)) or dict(FORMS))
    runtime = base.get("ort_cpu")
    if not runtime.probe().available:
        pytest.skip("onnxruntime is not installed")
    for _ in range(2):
        assert isolated.probe(runtime, forms=True).attention_forms == FORMS
    assert asked == [("ort_cpu", runtime.probe().plans)]
    assert isolated.probe(base.get("torch_eager"), forms=True).attention_forms == {}


def test_the_tables_fit_a_terminal_of_80_columns_and_say_why_a_form_is_refused() -> None:
    found = dataclasses.replace(
        FOUND, attention_forms=FORMS, libraries={"libnvinfer.so.10": "", "libcudart.so.13": "/lib/c"}
    )
    both = [found, dataclasses.replace(FOUND, runtime="torch_eager")]
    text = render(show_libraries, [found]) + render(show_attention_forms, both)
    assert max(map(len, text.splitlines())) <= 80
    assert "ort_cpu wants libnvinfer.so.10: not found" in text
    assert "ort_cpu wants libcudart.so.13: /lib/c" in text
    assert "refused by ort_cpu: inconsistent" in text
    assert "torch_eager" not in text
    assert able(found) == "CPU; fp32; opset 26"
    assert render(show_attention_forms, []) == ""  # no table without anything to show
