"""The reader as a package: a wheel in environments of its own, on every release of Python that it is for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import bare_venv
import numpy as np
import pytest
from small_embedders import Embedder, bundled, save

from attnport_bundle import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
RELEASES = ("3.10", "3.11", "3.12", "3.13")
TEXTS = ["How far is it?", "", "word " * 60]
PROGRAM = (
    "import json, sys\nimport attnport_bundle\nfrom attnport_bundle import load\n"
    "with load(sys.argv[1], threads=1) as model:\n"
    "    vectors = model.embed(json.loads(sys.argv[2]), prompt='query')\n"
    "print(json.dumps([attnport_bundle.__file__, model.form, vectors.tolist()]))\n"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy of the source, beside which setuptools writes."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    source = shutil.copytree(ROOT / "attnport_bundle", folder / "attnport_bundle", ignore=ignored)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        source,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("attnport_bundle-*.whl")
    return made


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bundle whose tokenizer the reader reads by itself, and one that needs a package."""
    made = {}
    for embedder in (Embedder("word_pieces", "Bert"), Embedder("byte_pairs", "Roberta")):
        folder = tmp_path_factory.mktemp(embedder.tokenizer)
        made[embedder.tokenizer] = bundled(save(embedder, folder / "model"), folder)
    return made


def python_of(release: str) -> Path | None:
    """A Python of this release: this one, pyenv's, or one of the path."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == release:
        return Path(sys.executable)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [*sorted((root / "versions").glob(f"{release}.*/bin/python")), shutil.which(f"python{release}")]
    return next((Path(path) for path in found if path), None)


@pytest.mark.parametrize("release", RELEASES)
def test_the_wheel_reads_bundles_on_every_python(
    release: str, wheel: Path, apps: dict[str, Path], tmp_path: Path
) -> None:
    by = python_of(release)
    if by is None:
        pytest.skip(f"there is no Python {release} here")
    python = bare_venv.make(tmp_path / "venv", str(wheel), by=by)
    assert set(bare_venv.packages(python)) == {"attnport-bundle", "numpy"}
    work = tmp_path / "work"
    work.mkdir()
    app = apps["word_pieces"]
    done = bare_venv.run(python, work, "-m", "attnport_bundle", "selftest", str(app))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "pip install" in done.stdout + done.stderr
    bare_venv.install(python, f"{wheel}[openvino]")
    for kind, extra in (("word_pieces", None), ("byte_pairs", "text")):
        if extra:
            done = bare_venv.run(python, work, "-c", PROGRAM, str(apps[kind]), json.dumps(TEXTS))
            assert done.returncode == 1
            assert "pip install tokenizers." in done.stderr.splitlines()[-1]
            bare_venv.install(python, f"{wheel}[{extra}]")
        done = bare_venv.run(python, work, "-c", PROGRAM, str(apps[kind]), json.dumps(TEXTS))
        assert done.returncode == 0, done.stderr
        place, form, vectors = json.loads(done.stdout)
        assert Path(place).is_relative_to(tmp_path / "venv")
        assert form == "openvino"
        with load(apps[kind], form=form, threads=1) as model:
            assert np.abs(model.embed(TEXTS, prompt="query") - np.array(vectors)).max() < 1e-5
