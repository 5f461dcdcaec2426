"""gpu-check from a folder of wheels: laid out once for each state of the folder, and what it says without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from attnport.folder.machine import find_gpus

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "gpu_offline.sh"
NAME = "pretended_for_offline"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "timeout", "cksum"))), reason="no bash, timeout or cksum"
)


def wheel(folder: Path, version: str, code: str = "") -> None:
    """A wheel of one module."""
    folder.mkdir(exist_ok=True)
    info = f"{NAME}-{version}.dist-info"
    files = {
        f"{NAME}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{NAME}-{version}-py3-none-any.whl", "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the script in a folder of the test's own, whose name has a space; options are variables."""
    here = tmp_path / "a folder"
    here.mkdir()

    def started(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        given = {"PYTHON": sys.executable, "SITE": "laid out", "MODELS": "", "DTYPES": "fp16", **variables}
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        line = ["bash", str(SCRIPT), *arguments]
        return subprocess.run(line, cwd=here, env={**environment, **given}, capture_output=True, text=True)

    return started


@pytest.mark.skipif(bool(find_gpus()[0]), reason="there is a GPU here, which would be measured")
def test_without_a_gpu_it_ends_as_gpu_check_does(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    wheel(tmp_path / "a folder" / "wheels", "1.0")
    done = run("wheels", MODELS="bert_encoder")
    assert done.returncode == 3
    assert "there is no CUDA GPU here" in done.stderr
    site = tmp_path / "a folder" / "laid out" / "packages"
    assert done.stdout.splitlines() == [
        f"laying out 1 wheels in {site}",
        "== bert_encoder fp16",
        "== bert_encoder fp16: exit 3",
    ]
    assert (site / f"{NAME}.py").is_file()


def test_wheels_are_laid_out_once_and_again_when_one_changes(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    wheels, site = tmp_path / "a folder" / "wheels", tmp_path / "a folder" / "laid out" / "packages"
    wheel(wheels, "1.0", "value = 1")
    assert [bool(run("wheels").stdout) for _ in range(2)] == [True, False]
    wheel(wheels, "1.0", "value = 2")  # of the same size, within the same minute
    assert "laying out" in run("wheels").stdout
    assert (site / f"{NAME}.py").read_text() == "value = 2"
    next(wheels.iterdir()).unlink()
    wheel(wheels, "2.0")
    done = run(str(wheels))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in site.glob("*.dist-info")] == [f"{NAME}-2.0.dist-info"]
    assert run("wheels").stdout == ""


def test_what_could_not_be_laid_out_is_tried_again(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    wheels = tmp_path / "a folder" / "wheels"
    wheel(wheels, "1.0")
    (broken := next(wheels.iterdir())).write_bytes(b"no wheel")
    assert [run("wheels").returncode == 0 for _ in range(2)] == [False, False]
    broken.unlink()
    wheel(wheels, "1.0")
    assert run("wheels").returncode == 0


def test_what_lies_in_the_place_already_is_left(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    wheel(tmp_path / "a folder" / "wheels", "1.0")
    mine = tmp_path / "a folder" / "laid out" / "packages" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert run("wheels").returncode == 0
    assert mine.exists()


def test_the_loader_is_given_the_libraries_of_wheels_and_never_the_current_folder(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    wheel(tmp_path / "a folder" / "wheels", "1.0")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *gpu-check*) echo "$LD_LIBRARY_PATH";; *) exec \'{sys.executable}\' "$@";; esac\n'
    )
    python.chmod(0o755)
    extra = tmp_path / "site" / "nvidia" / "cu99" / "lib"
    extra.mkdir(parents=True)
    options = {"PYTHON": str(python), "MODELS": "bert_encoder"}

    def told(**variables: str) -> list[str]:
        lines = run("wheels", **options, **variables).stdout.splitlines()
        return lines[lines.index("== bert_encoder fp16") + 1].split(":")

    assert "" not in told(LD_LIBRARY_PATH="/first:/second")
    assert told(LD_LIBRARY_PATH="/first:/second")[-2:] == ["/first", "/second"]
    assert told(PYTHONPATH=str(tmp_path / "site"), LD_LIBRARY_PATH="/first")[0] == str(extra)


@pytest.mark.parametrize(
    ("arguments", "said"), [((), ""), (("nowhere",), ""), (("empty",), "no wheels (*.whl) in empty")]
)
def test_without_a_folder_of_wheels_it_says_how_it_is_used(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "a folder" / "empty").mkdir()
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert "tools/gpu_offline.sh WHEELS [OPTION of gpu-check]..." in done.stderr
    assert "SITE=out/gpu-offline" in done.stderr
    assert "set -e" not in done.stderr
