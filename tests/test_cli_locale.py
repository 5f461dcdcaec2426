"""The user's locale decides neither what is in a file nor whether a verb ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NAME = "İstanbul ışığı"
# Files in ASCII, without Python's own way to UTF-8, and a terminal in an encoding that lacks most letters.
ENCODING = "iso8859-1"
NARROW = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ENCODING}


def attnport(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Runs a verb in a narrow locale."""
    command = [sys.executable, "-c", "from attnport.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, env={**os.environ, **NARROW})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of a model with a name beyond ASCII, made in that locale."""
    folder = tmp_path_factory.mktemp("locale")
    text = (Path(__file__).parent / "tiny_model.py").read_text(encoding="utf-8")
    (folder / "model.py").write_text(text.replace('ModelSpec("tiny"', f'ModelSpec("{NAME}"'), encoding="utf-8")
    done = attnport("export", f"{folder / 'model.py'}:spec", "-o", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.mark.slow
def test_a_manifest_is_utf_8_in_every_locale(artifact: Path) -> None:
    assert json.loads((artifact / "attnport.json").read_text(encoding="utf-8"))["name"] == NAME


@pytest.mark.parametrize("arguments", [("fuse", "--target", "ort_cpu"), ("verify",), ("inspect",)])
def test_a_verb_ends_well_where_its_words_cannot_be_shown(arguments: tuple[str, ...], artifact: Path) -> None:
    verb, *more = arguments
    done = attnport(verb, artifact, *more)
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout.decode(ENCODING)


def test_json_stays_json_where_its_words_cannot_be_shown(artifact: Path) -> None:
    done = attnport("inspect", artifact, "--json")
    assert done.returncode == 0, done.stderr
    assert NAME in json.dumps(json.loads(done.stdout.decode(ENCODING)), ensure_ascii=False)
