"""Bundles as embeddings of LangChain, LlamaIndex and Haystack, as installed: the guide's programs, and more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, environment
from programs import HERE, ran

from attnport.verbs.bundle import bundle
from attnport_bundle import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python() -> Path:
    return environment("layouts/frameworks")


@pytest.fixture(scope="module")
def app(out: Path) -> Path:
    return bundle(out, out.parent / "app", forms=["ort_cpu"])


@pytest.mark.parametrize("package", ["langchain_core", "llama_index", "haystack"])
def test_the_program_of_the_guide_finds_the_text(package: str, python: Path, app: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "sentence-transformers.md").read_text("utf-8")
    blocks = [block.partition("\n```")[0] for block in text.split("```python\n")[1:]]
    (code,) = (block for block in blocks if f"from {package}" in block)
    shutil.copytree(app, tmp_path / "app")
    (tmp_path / "program.py").write_text(code)
    found = ran(["env", "-C", tmp_path, python, "program.py"])
    assert found.splitlines()[-1] == "Where is the nearest pharmacy?"


def test_vectors_are_those_of_the_bundle_also_where_they_are_awaited(python: Path, app: Path, texts: list[str]) -> None:
    got: dict[str, Any] = json.loads(ran([python, HERE / "frameworks.py", app], texts).splitlines()[-1])
    with load(app) as model:
        documents, query = model.embed_documents(texts), model.embed_query(texts[0])
    assert set(got) == {"langchain", "langchain awaited", "llama_index", "llama_index awaited"}
    for name, (of_query, of_texts) in got.items():
        assert of_query == pytest.approx(query, abs=1e-6), name
        for one, other in zip(of_texts, documents, strict=True):
            assert one == pytest.approx(other, abs=1e-6), name


def test_an_application_imports_none_of_them() -> None:
    for path in (ROOT / "attnport_bundle").rglob("*.py"):
        text = path.read_text("utf-8")
        assert not any(
            f"import {name}" in text or f"from {name}" in text for name in ("langchain", "llama_index", "haystack")
        )
