"""Nothing is imported from the current folder, the folder above it or an artifact's, by attnport or by its children."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import planted_modules as planted
import pytest
from setuptools import find_packages

from attnport import module_path

HERE = Path(__file__).parent
SCRIPT = (str(Path(sys.executable).with_name("attnport")),)
MODULE = (sys.executable, "-m", "attnport.cli")
SHIP_MODEL = f"{HERE / 'ship_model.py'}:spec"
SMALL = ("--budget", "1", "--shape", "batch=1,seq=8")
# Exit codes as without what is planted: 3 where there is no GPU, 6 for the names that torch's exporter wrote.
VERBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ship": (0, ("ship", SHIP_MODEL, "-o", "shipped", *SMALL)),
    "export": (0, ("export", SHIP_MODEL, "-o", "exported")),
    "fuse": (0, ("fuse", ".", "--force")),
    "build": (0, ("build", ".", "--target", "tensorrt_rtx", "--force")),
    "check": (0, ("check", ".", "--force", "--isolate")),
    "bench": (0, ("bench", ".", *SMALL)),
    "bundle": (0, ("bundle", ".", "-o", "../app", "--lang", "python", "--lang", "cpp")),
    "verify": (0, ("verify", ".")),
    "audit": (6, ("audit", ".")),
    "inspect": (0, ("inspect", ".")),
    "doctor": (0, ("doctor",)),
    "list": (0, ("list", "runtimes")),
    "report": (0, ("report", ".", "--force")),
    "gpu-check": (3, ("gpu-check",)),
}


def marks_of(
    arguments: tuple[str, ...], code: int, names: set[str], artifact: Path, tmp_path: Path,
    program: tuple[str, ...] = SCRIPT, python_path: str | None = None,
) -> list[str]:  # fmt: skip
    """The planted modules that a verb runs, called in an artifact's folder; its exit code has to be `code`."""
    above, marks = tmp_path / "above", tmp_path / "marks"
    planted.plant(above, names, marks)
    shutil.copytree(artifact, above / "artifact")
    planted.plant(above / "artifact", names, marks)
    more = {} if python_path is None else {"PYTHONPATH": planted.with_absolute(python_path)}
    done = planted.run([*program, *arguments], above / "artifact", more)
    assert done.returncode == code, done.stderr[-3000:]
    return planted.marked(marks)


def before_the_verb(program: tuple[str, ...], folder: Path) -> set[str]:
    """What is imported before attnport's own first step: by Python, by the script, and to have the command line."""
    return planted.OF_PYTHON | planted.recorded(folder, [*program, "--version"])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("bench", ".", "--runtime", "ort_cpu", *SMALL), marks=pytest.mark.slow),
        ("list", "runtimes"),  # whose probes have processes of their own too
    ],
    ids=" ".join,
)
def test_nothing_that_lies_in_the_artifact_is_run(
    arguments: tuple[str, ...], tiny_artifact: Path, tmp_path: Path
) -> None:
    assert marks_of(arguments, 0, planted.installed(), tiny_artifact, tmp_path) == []


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """An artifact that went through every stage, and the names of all modules that this imported or looked for."""
    folder = tmp_path_factory.mktemp("clean") / "run"
    names = planted.recorded(folder, [*SCRIPT, "ship", SHIP_MODEL, "-o", str(folder / "artifact"), *SMALL])
    assert names >= {"numpy", "torch", "onnxruntime", "json", "click"}
    return folder / "artifact", names | planted.installed()


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_what_lies_around_it(verb: str, shipped: tuple[Path, set[str]], tmp_path: Path) -> None:
    code, arguments = VERBS[verb]
    artifact, names = shipped
    assert marks_of(arguments, code, names, artifact, tmp_path) == []


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return before_the_verb(SCRIPT, tmp_path_factory.mktemp("early") / "record")


# It is read in one place for every verb: these start children in different ways, or none.
# An empty entry is read in the same place as a relative one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "python_path"),
    [*((verb, ".") for verb in ("ship", "build", "check", "bench", "verify", "audit", "inspect")), ("list", ":x")],
)
def test_no_verb_follows_a_relative_python_path(
    verb: str, python_path: str, shipped: tuple[Path, set[str]], early: set[str], tmp_path: Path
) -> None:
    code, arguments = VERBS[verb]
    artifact, names = shipped
    late = names - early
    assert {"numpy", "torch", "onnxruntime", "rich"} <= late
    assert marks_of(arguments, code, late, artifact, tmp_path, python_path=python_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["bench", "check", "doctor"])
def test_no_verb_follows_the_path_of_python_m(verb: str, shipped: tuple[Path, set[str]], tmp_path: Path) -> None:
    code, arguments = VERBS[verb]
    artifact, names = shipped
    late = names - before_the_verb(MODULE, tmp_path / "record")
    assert marks_of(arguments, code, late, artifact, tmp_path, program=MODULE) == []


@pytest.mark.slow
def test_a_package_of_the_current_folder_is_loaded_by_children_and_in_the_place_of_none(tmp_path: Path) -> None:
    here, marks = tmp_path / "here", tmp_path / "marks"
    # Installed ones only: what is not installed may come from a folder whose code was asked for.
    there = {planted.PLUGIN, *sys.stdlib_module_names, *packages_distributions()} - planted.OF_PYTHON
    planted.plant(here, there & planted.installed(), marks)
    (here / "their_package").mkdir()
    shutil.copy(HERE / "ship_model.py", here / "their_package" / "inner.py")
    for arguments in (
        ("export", "their_package.inner:spec", "-o", "out"),
        ("check", "out", "--runtime", "torch_eager", "--isolate"),
        ("bench", "out", "--runtime", "torch_eager", *SMALL),
    ):
        done = planted.run([*SCRIPT, *arguments], here, {})
        assert done.returncode == 0, done.stderr[-3000:]
    assert planted.marked(marks) == []


def test_an_editable_install_puts_no_relative_name_on_the_module_path() -> None:
    wanted = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert wanted["namespaces"] is False  # one folder without __init__.py is enough for such a name
    found = set(find_packages(str(HERE.parent), include=wanted["include"]))
    ours = {path.parent.relative_to(HERE.parent) for path in (HERE.parent / "attnport").rglob("*.py")}
    assert {".".join(folder.parts) for folder in ours} == found


def test_what_is_planted_leaves_a_mark_when_it_is_imported(tmp_path: Path) -> None:
    planted.plant(tmp_path / "here", planted.installed(), tmp_path / "marks")
    assert planted.marked(tmp_path / "marks") == []
    planted.run([sys.executable, "-c", "import numpy"], tmp_path / "here", {})
    assert planted.marked(tmp_path / "marks") == ["numpy"]


def test_a_child_gets_the_absolute_entries_of_the_python_path_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, kept in {"/a::x:.:../y:/b": ["/a", "/b"], ":x": [], "": [], "/a": ["/a"]}.items():
        monkeypatch.setenv("PYTHONPATH", given)
        environment = module_path.child_environment()
        assert environment["PYTHONPATH"].split(os.pathsep) == [module_path.ROOT, *kept]
        assert environment["PYTHONSAFEPATH"] == "1"
    monkeypatch.delenv("PYTHONPATH")
    assert module_path.child_environment()["PYTHONPATH"] == module_path.ROOT


def test_the_current_folder_leaves_the_module_path_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "folder_of_a_hook").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", "..:x:./y:/a")
    entries = [str(here), str(tmp_path), f"{here}/x", f"{here}/y", "/a", "", "/stdlib", "folder_of_a_hook", "a_hook"]
    monkeypatch.setattr(sys, "path", entries)
    module_path.leave_current_folder()
    assert sys.path == ["/a", "/stdlib", "a_hook"]


def test_an_absolute_entry_stays_where_it_is_also_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f".:{tmp_path}/")
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/stdlib"])
    module_path.leave_current_folder()
    assert sys.path == [str(tmp_path), "/stdlib"]


def test_the_folder_of_attnport_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(module_path.ROOT)  # as by pip install --target, or in a checkout
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.setattr(sys, "path", [module_path.ROOT])
    module_path.leave_current_folder()
    assert sys.path == [module_path.ROOT]


def test_a_current_folder_that_was_deleted_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", ["", "/stdlib"])
    module_path.leave_current_folder()
    assert "/stdlib" in sys.path
