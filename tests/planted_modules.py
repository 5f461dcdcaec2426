"""Modules that must not be run: each is named as one that is imported, and leaves a mark when it is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from attnport.optional import PACKAGES

PLUGIN = "planted_plugin"
# Python itself looks for these before any program begins: the last are those of other systems.
OF_PYTHON = {"sitecustomize", "usercustomize"} | {name for name in sys.stdlib_module_names if find_spec(name) is None}
RECORDER = """
import sys
seen = set()
def note(name):
    top = name.partition(".")[0]
    if top not in seen:
        seen.add(top)
        with open({names!r}, "a") as file:
            file.write(top + chr(10))
for name in list(sys.modules):
    note(name)
sys.addaudithook(lambda event, what: note(what[0]) if event == "import" else None)
"""


def installed() -> set[str]:
    """Every top-level name of the standard library and of what is installed, and the optional ones that are not."""
    names = {PLUGIN, *sys.stdlib_module_names, *packages_distributions(), *PACKAGES}
    return {name for name in names if name.isidentifier()} - {"attnport", "__main__"}


def plant(folder: Path, names: Iterable[str], marks: Path) -> None:
    """Puts a module of each name into a folder, and a package whose metadata offers one as a plug-in of PyTorch's."""
    marks.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'a').close()\n")
    about = folder / "planted-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    groups = ("torch.backends", "torch_dynamo_backends", "pydantic")
    (about / "entry_points.txt").write_text("".join(f"[{group}]\nplanted = {PLUGIN}\n" for group in groups))


def marked(marks: Path) -> list[str]:
    """The names of the planted modules that were run."""
    return sorted(path.name for path in marks.iterdir())


def recorded(folder: Path, command: Sequence[str]) -> set[str]:
    """The top-level modules that a command and its children import or look for; it has to succeed."""
    names = folder / "names.txt"
    (folder / "site").mkdir(parents=True)
    (folder / "site" / "sitecustomize.py").write_text(textwrap.dedent(RECORDER.format(names=str(names))))
    done = run(command, folder, {"PYTHONPATH": with_absolute(str(folder / "site"))})
    assert done.returncode == 0, done.stderr
    return {name for name in names.read_text().split() if name.isidentifier()} - {"attnport", "__main__"}


def with_absolute(first: str) -> str:
    """A PYTHONPATH that begins with `first` and keeps what is on it by an absolute path."""
    kept = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([first, *(entry for entry in kept if Path(entry).is_absolute())])


def run(command: Sequence[str], folder: Path, more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder."""
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=540, check=False
    )
