"""The user's locale decides neither what is in a file nor whether a verb ends well."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnport.folder.workspace import change

NAME = "İstanbul ışığı"
# Files in ASCII, without Python's own way to UTF-8, and a terminal in an encoding that lacks most letters.
ENCODING = "iso8859-1"
NARROW = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ENCODING}


def attnport(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Runs a verb in a narrow locale."""
    command = [sys.executable, "-c", "from attnport.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, env={**os.environ, **NARROW})


@pytest.fixture
def artifact(tiny_artifact: Path) -> Path:
    """An artifact of a model with a name beyond ASCII."""
    with change(tiny_artifact) as edit:
        edit.manifest = dataclasses.replace(edit.manifest, name=NAME)
        edit.finish("export", "")
    return tiny_artifact


@pytest.mark.slow
def test_a_manifest_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    text = (Path(__file__).parent / "tiny_model.py").read_text(encoding="utf-8")
    (tmp_path / "model.py").write_text(text.replace('ModelSpec("tiny"', f'ModelSpec("{NAME}"'), encoding="utf-8")
    done = attnport("export", f"{tmp_path / 'model.py'}:spec", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "attnport.json").read_text(encoding="utf-8"))["name"] == NAME


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
