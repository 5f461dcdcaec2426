"""docs/corpus.md: each program and each command of the page runs, on Ray, on Spark, on Daft and without any."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import ray
from small_embedder import artifact_of, bundle_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own
PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"
TEXTS = [f"The ferry {number} leaves at dawn" for number in range(50)] + [None]


def program(title: str) -> str:
    section = PAGE.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return str(code)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory)


@pytest.fixture(scope="module")
def folder(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder: texts and a bundle."""
    made = tmp_path_factory.mktemp("reader")
    (made / "app").symlink_to(app)
    (made / "out").symlink_to(artifact_of(tmp_path_factory))
    (made / "texts").mkdir()
    parquet.write_table(pyarrow.table({"key": range(len(TEXTS)), "text": TEXTS}), made / "texts" / "0.parquet")
    return made


@pytest.fixture(scope="module")
def expected(folder: Path, app: Path) -> np.ndarray:
    from attnport_bundle import load

    with load(app, threads=1) as model:
        return np.asarray(model.embed([text for text in TEXTS if text]))


@pytest.fixture(scope="module", autouse=True)
def _ray(folder: Path) -> Iterator[None]:
    """A Ray with room for the actors of the page and for reading and writing, where the machine has few processors."""
    with contextlib.chdir(folder):  # the current folder of its workers
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        yield
    ray.shutdown()


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable}
    environment |= {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize(("title", "written"), [("Ray Data", "vectors"), ("Spark", "spark"), ("Daft", "daft")])
def test_texts_become_vectors(title: str, written: str, folder: Path, expected: np.ndarray) -> None:
    run([sys.executable, "-c", program(title)], folder)
    found = parquet.read_table(folder / written).sort_by("key")
    rows = found["found"].to_pylist() if "found" in found.column_names else found.to_pylist()
    assert found["key"].to_pylist() == list(range(len(TEXTS)))
    assert [bool(row["error"]) for row in rows] == [text is None for text in TEXTS]
    np.testing.assert_allclose([row["embedding"] for row in rows[:-1]], expected, atol=1e-5)


def test_arrays_of_different_lengths_run(folder: Path) -> None:
    assert run([sys.executable, "-c", program("Other models")], folder).strip() == "[3, 2]"


def test_a_loop_needs_no_engine(folder: Path) -> None:
    code = program("A loop") + "\nimport sys\nassert not {'ray', 'pandas', 'pyarrow'} & set(sys.modules)"
    assert run([sys.executable, "-c", code], folder).startswith("(2, 64) ['', 'text: got None")


def test_the_commands_show_the_tables_of_each_machine(folder: Path) -> None:
    commands = re.findall(r"^ {4}(attnport .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        told = run(["bash", "-c", f"unset RAY_ADDRESS; {command} --runtime ort_cpu"], folder)
        assert re.search(rf"^{re.escape(platform.node())}, out$", told, re.MULTILINE)
        assert re.search(r"^ ort_cpu ", told, re.MULTILINE)
