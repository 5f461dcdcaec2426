"""The notebook of examples/ runs from its first cell to its last, in a process of its own as in a kernel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"
NOTEBOOK = json.loads(PATH.read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
RUN = """
import ast, json, sys

shown, space = [], vars(sys.modules["__main__"])
for text in json.load(sys.stdin):
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), space) if last else None
    show = getattr(value, "_repr_html_", None)
    shown.append((show() if show else None) or repr(value))
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the cells show: HTML, or text."""
    folder = tmp_path_factory.mktemp("notebook")
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(CODE), capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "app" / "bundle.json").is_file()
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_it_is_stored_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], len(CODE)) == (4, 7)
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None]


@pytest.mark.slow
def test_the_artifact_shows_itself_as_a_table(shown: list[str]) -> None:
    assert "<table><caption>Encoder</caption>" in shown[1]
    text = re.sub("<[^>]*>", "", shown[1])
    for part in ("ids=int64[batch,seq]", "batch=1:8:64, seq=1:128:512", "NOT RUN"):
        assert part in text


@pytest.mark.slow
def test_results_show_their_tables_and_the_report_its_page(shown: list[str]) -> None:
    assert shown[2].startswith("<pre>")
    assert "ort_cpu     1/1   Attention" in shown[2]
    assert "parity against float64: PASS" in shown[3]
    assert float(shown[4]) < 1e-5
    assert shown[6].startswith("<iframe srcdoc=")
