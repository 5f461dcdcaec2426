"""A job on Ray Data whose actor, or whose worker that writes, is killed: every row is in its output, once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from small_embedder import bundle_of

JOB = Path(__file__).with_name("corpus_job.py")
ROWS, FILES, POISONED = 4000, 8, 1234


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of several files; one has no text."""
    folder = tmp_path_factory.mktemp("texts")
    words = ["the ferry", "leaves at dawn", "with letters", "and bread", "for the island"]
    lines = [" ".join(words[at % 5 :: 1 + at % 3]) + f" {at}" for at in range(ROWS)]
    lines[POISONED] = None  # type: ignore[call-overload]
    table = pyarrow.table({"key": range(ROWS), "text": pyarrow.array(lines, pyarrow.string())})
    for at in range(FILES):
        parquet.write_table(table.slice(at * ROWS // FILES, ROWS // FILES), folder / f"{at}.parquet")
    return folder


def run(app: Path, texts: Path, vectors: Path, *kill: str) -> pyarrow.Table:
    """Runs the job; returns what it wrote, in the order of the keys."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(JOB.parent), *sys.path])}
    command = [sys.executable, str(JOB), str(app), str(texts), str(vectors), *kill]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return parquet.read_table(vectors).sort_by("key")


@pytest.fixture(scope="module")
def undisturbed(app: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> pyarrow.Table:
    return run(app, texts, tmp_path_factory.mktemp("vectors") / "out")


def vectors(table: pyarrow.Table) -> np.ndarray:
    return np.array(table["embedding"].to_pylist(), np.float32)


def test_a_row_without_text_costs_itself_alone(undisturbed: pyarrow.Table) -> None:
    assert undisturbed["key"].to_pylist() == list(range(ROWS))
    errors = undisturbed["error"].to_pylist()
    assert [at for at, error in enumerate(errors) if error] == [POISONED]
    found = vectors(undisturbed)
    assert np.isnan(found[POISONED]).all()
    others = np.delete(found, POISONED, axis=0)
    np.testing.assert_allclose(np.linalg.norm(others, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("kill", ["actor", "writing"])
def test_no_row_is_lost_or_twice(kill: str, app: Path, texts: Path, undisturbed: pyarrow.Table, tmp_path: Path) -> None:
    found = run(app, texts, tmp_path / "out", kill, str(tmp_path / "died"))
    assert (tmp_path / "died").is_file(), "nothing was killed"
    assert found["key"].to_pylist() == list(range(ROWS))
    assert found["error"].to_pylist() == undisturbed["error"].to_pylist()
    np.testing.assert_allclose(vectors(found), vectors(undisturbed), atol=1e-5)
