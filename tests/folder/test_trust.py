"""A folder from elsewhere names code: none of it is run before the user asked for it, whatever the manifest says."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from refusing import call, contents, refused

import attnport
from attnport.artifacts import Source
from attnport.errors import SpecError
from attnport.folder import loading
from attnport.folder.workspace import change, load_spec, open_folder
from attnport.parity.layers import Traced
from attnport.processes.worker import Worker
from attnport.verbs.fuse import fuse
from attnport_bundle.runtimes.kernels import Cache

TESTS = Path(__file__).parent.parent
MARKING = """
from pathlib import Path
Path(__file__).with_name("mark").write_text("it ran")
"""
MODEL = f"{MARKING}from ship_model import spec\n"


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source that leaves a mark when it is imported, and an artifact of it with one form."""
    place = tmp_path_factory.mktemp("theirs")
    (place / "model.py").write_text(MODEL)
    result = call("export", f"{place / 'model.py'}:spec", "-o", place / "out")
    assert result.exit_code == 0, result.output
    assert (place / "mark").is_file(), "a source that leaves no mark would make every test here pass"
    fuse(place / "out", targets=["ort_cpu"])
    return place


@pytest.fixture
def here(_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `_made`, of a user who has exported nothing; the records are in `state` beside it."""
    (_made / "model.py").write_text(MODEL)
    (_made / "mark").unlink(missing_ok=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copytree(_made / "out", tmp_path / "out")
    return tmp_path


@pytest.fixture
def mark(_made: Path) -> Path:
    """What the source leaves."""
    return _made / "mark"


def recorded(here: Path) -> list[str]:
    return sorted(path.name for path in (here / "state").rglob("*.json"))


def named(folder: Path, text: str) -> Source:
    """Makes a manifest name another SPEC, all digests as they were."""
    with change(folder) as edit:
        source = dataclasses.replace(edit.manifest.source, text=text)
        edit.manifest = dataclasses.replace(edit.manifest, source=source)
        edit.finish("forged", "")
    return source


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "{out}"],
        ["verify", "{out}"],
        ["fuse", "{out}", "--target", "ort_cpu", "--force"],
        ["bundle", "{out}", "-o", "{app}", "--unverified"],
        ["report", "{out}"],
        ["report", "{out}", "--format", "md"],
        ["audit", "{out}"],
        ["build", "{out}", "--target", "tensorrt_rtx"],
    ],
    ids=" ".join,
)
def test_what_needs_no_source_works_on_a_folder_from_elsewhere_and_never_runs_it(
    arguments: list[str], here: Path, mark: Path
) -> None:
    if "tensorrt_rtx" in arguments:
        pytest.importorskip("tensorrt_rtx")
    result = call(*(argument.format(out=here / "out", app=here / "app") for argument in arguments))
    assert result.exit_code == (6 if arguments[0] == "audit" else 0), result.output
    assert not mark.exists()
    assert recorded(here) == []


def test_a_report_leaves_the_maps_out_and_says_why(here: Path, mark: Path) -> None:
    page = attnport.report(here / "out", maps=True).read_text(encoding="utf-8")
    assert "There are no attention maps: the source of this folder was not exported by you on this machine" in page
    assert not mark.exists()
    loading.require(open_folder(here / "out").source, given=True)
    assert "There are no attention maps" not in attnport.report(here / "out", maps=True).read_text(encoding="utf-8")
    assert mark.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["check", "--bisect"],
        ["bench"],
        ["bench", "--runtime", "ort_cpu"],
        ["build", "--target", "tensorrt_rtx", "--precision", "auto"],
    ],
    ids=" ".join,
)
def test_what_reloads_the_source_names_it_and_stops(arguments: list[str], here: Path, mark: Path) -> None:
    if "tensorrt_rtx" in arguments:
        pytest.importorskip("tensorrt_rtx")
    before = contents(here / "out")
    result = call(arguments[0], here / "out", *arguments[1:])
    refused(result, f"spec of {mark.parent / 'model.py'}", "not exported by you", "give --trust-source once")
    assert not mark.exists()
    assert contents(here / "out") == before
    assert recorded(here) == []


def test_a_worker_and_a_bisection_run_no_source_that_was_not_asked_for(here: Path, mark: Path) -> None:
    manifest = open_folder(here / "out")
    asked = {"folder": str(here / "out"), "runtime": "torch_eager", "plan": "fp32", "model": None, "engine": None}
    with pytest.raises(SpecError, match="not exported by you"):
        Worker().do_open(asked | {"threads": 1})
    with pytest.raises(SpecError, match="not exported by you"):
        Traced(here / "out", manifest, [], report=None).graph("fp32")  # type: ignore[arg-type]
    assert not mark.exists()


def test_one_yes_is_enough_also_for_a_copy_of_the_folder(here: Path, mark: Path) -> None:
    only = ["--runtime", "ort_cpu"]
    assert call("check", here / "out", "--trust-source", *only).exit_code == 0
    assert mark.exists()
    assert len(recorded(here)) == 1
    shutil.move(here / "out", here / "elsewhere")
    assert call("check", here / "elsewhere", *only, "--force").exit_code == 0


def test_functions_refuse_alike(here: Path, mark: Path) -> None:
    with pytest.raises(SpecError, match="not exported by you"):
        attnport.check(here / "out")
    with pytest.raises(SpecError, match="not exported by you"):
        attnport.bench(here / "out")
    assert not mark.exists()


@pytest.mark.slow
def test_processes_of_their_own_run_what_was_asked_for(here: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))  # where they find what the source imports
    measured = attnport.bench(here / "out", ["ort_cpu"], ["batch=1"], budget_s=1, trust_source=True)
    assert mark.exists()
    assert {name for row in measured.shapes.values() for name, found in row.items() if found.median_ns} == {
        "torch_eager",
        "ort_cpu",
    }
    load_spec(open_folder(here / "out"))


def test_what_is_exported_is_asked_for(here: Path, mark: Path) -> None:
    text = open_folder(here / "out").source.text
    attnport.export(text, here / "out")  # nothing to do, but it is this user's now
    assert len(recorded(here)) == 1
    load_spec(open_folder(here / "out"))


@pytest.mark.parametrize(
    "text", ["{evil}/model.py:spec", "{evil}/model.py:other", "from_elsewhere.inner:spec", "from_elsewhere:spec"]
)
def test_digests_of_a_record_do_not_carry_over_to_other_code(
    text: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading.require(open_folder(here / "out").source, given=True)
    for file in ("evil/model.py", "evil/from_elsewhere/__init__.py", "evil/from_elsewhere/inner.py"):
        (here / file).parent.mkdir(parents=True, exist_ok=True)
        (here / file).write_text(MODEL)
    monkeypatch.syspath_prepend(here / "evil")
    named(here / "out", text.format(evil=here / "evil"))
    refused(call("check", here / "out"), "not exported by you", str(here / "evil"))
    assert not list((here / "evil").rglob("mark"))
    assert "from_elsewhere" not in sys.modules


@pytest.mark.parametrize("text", ["no_package.module:f", "no_package:f", "nowhere.py:f", "a b:f", ":f", "no name"])
def test_a_source_that_is_not_there_is_told_as_such(text: str, here: Path) -> None:
    with pytest.raises(
        SpecError, match=r"there is no module 'no_package'|is not a file|is not a module's name|names no model"
    ):
        loading.reload(named(here / "out", text))


def test_a_part_of_a_module_that_is_not_there_does_not_run_the_module(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "alone.py").write_text(MODEL)
    monkeypatch.syspath_prepend(here)
    with pytest.raises(SpecError, match=r"f of alone\.part"):
        loading.reload(Source("alone.part:f"))
    assert not (here / "mark").exists()


def test_a_file_that_changed_is_not_run_until_it_is_back(here: Path, mark: Path) -> None:
    source = open_folder(here / "out").source
    loading.require(source, given=True)
    file = mark.parent / "model.py"
    file.write_text(f"{MODEL}# changed\n")
    refused(call("check", here / "out"), f"the code of {file}:spec changed since export", "--trust-source")
    assert not mark.exists()
    loading.require(source, given=True)
    loading.require(source)
    file.write_text(MODEL)
    loading.require(source)


def test_code_that_importing_runs_is_asked_about_wherever_it_stands(here: Path, mark: Path) -> None:
    """The body of a class that nothing uses runs as well, and so does a default of a function."""
    source = open_folder(here / "out").source
    loading.require(source, given=True)
    for added in ("class Unused:\n    print()\n", "def unused(at=print()): ...\n"):
        (mark.parent / "model.py").write_text(f"{MODEL}\n{added}")
        with pytest.raises(SpecError, match="changed since export"):
            loading.require(source)


def test_weights_and_other_code_are_still_compared_after_the_yes(here: Path) -> None:
    manifest = open_folder(here / "out")
    loading.require(manifest.source, given=True)
    other = dataclasses.replace(manifest.source, code_digest="0" * 64)
    with pytest.raises(SpecError, match=r"the code of .* changed since export"):
        load_spec(dataclasses.replace(manifest, source=other))


def _another(here: Path) -> None:
    (here / "b" / "model.py").write_text(f"{MODEL}# another\n")


def _the_same(here: Path) -> None:  # what lies beside it may still be of others
    (here / "b" / "model.py").write_text(MODEL)


def _link(here: Path) -> None:
    (here / "b" / "model.py").symlink_to(here / "a" / "model.py")


@pytest.mark.parametrize("put", [_another, _the_same, _link])
def test_a_relative_spec_runs_no_file_of_another_folder(
    put: Callable[[Path], None], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (here / name).mkdir()
    (here / "a" / "model.py").write_text(MODEL)
    source = named(here / "out", "model.py:spec")
    monkeypatch.chdir(here / "a")
    loading.require(source, given=True)
    load_spec(open_folder(here / "out"))
    put(here)
    monkeypatch.chdir(here / "b")
    refused(call("check", here / "out"), f"spec of {here / 'b' / 'model.py'}")
    assert not (here / "b" / "mark").exists()


def test_a_package_of_the_current_folder_is_asked_about(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "theirs").mkdir()
    (here / "theirs" / "module_of_theirs.py").write_text(MODEL)
    named(here / "out", "module_of_theirs:spec")
    monkeypatch.chdir(here / "theirs")
    refused(call("check", here / "out"), f"spec of {here / 'theirs' / 'module_of_theirs.py'}")
    assert not (here / "theirs" / "mark").exists()


def test_what_the_code_of_a_package_in_the_current_folder_says_is_recorded(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("another_of_theirs:spec")
    (here / "another_of_theirs.py").write_text(MODEL)
    monkeypatch.chdir(here)
    loading.require(source, given=True)
    loading.require(source)
    (here / "another_of_theirs.py").write_text(f"{MODEL}# changed\n")
    with pytest.raises(SpecError, match="changed since export"):
        loading.require(source)


def test_the_own_code_of_an_hf_folder_is_asked_about_where_the_manifest_has_it_run(here: Path) -> None:
    folder = here / "hf"
    folder.mkdir()
    (folder / "config.json").write_text('{"auto_map": {"AutoConfig": "modeling.Config"}}')
    (folder / "modeling.py").write_text(MODEL)
    loading.require(Source(f"hf:{folder}"))
    source = Source(f"hf:{folder}", trust_remote_code=True)
    with pytest.raises(SpecError, match=f"the Python code that config.json names of {folder}"):
        loading.require(source)
    loading.require(source, given=True)
    loading.require(source)
    (folder / "modeling.py").write_text(f"{MODEL}# changed\n")
    with pytest.raises(SpecError, match="changed since export"):
        loading.require(source)
    with pytest.raises(SpecError, match="not exported by you"):
        loading.require(Source("hf:owner/name", trust_remote_code=True))


def test_a_path_through_a_link_is_not_taken_for_the_file_that_it_looks_like(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b/deep"):
        (here / name).mkdir(parents=True)
    for name in ("a", "b"):
        (here / name / "model.py").write_text(MODEL)
    loading.require(Source(f"{here / 'a' / 'model.py'}:spec"), given=True)
    (here / "a" / "link").symlink_to(here / "b" / "deep")
    with pytest.raises(SpecError, match="not exported by you"):
        loading.reload(Source(f"{here}/a/link/../model.py:spec"))
    assert not (here / "b" / "mark").exists()


def test_what_would_be_run_is_printed_so_that_all_of_it_can_be_seen(here: Path) -> None:
    hidden = here / "x\x1b[2K\rharmless.py"
    hidden.write_text(MODEL)
    named(here / "out", f"{hidden}:spec")
    refused(call("check", here / "out"), r"x\x1b[2K\rharmless.py")


def test_where_nothing_can_be_recorded_this_process_and_its_children_know(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "state").write_text("no folder")
    monkeypatch.setenv(loading.VARIABLE, "")  # so that what is added goes with the test
    source = open_folder(here / "out").source
    with pytest.raises(SpecError) as told:
        loading.require(source)
    assert "each time" in told.value.hint
    attnport.export(source.text, here / "out")
    loading.require(source)
    code = "import sys; from attnport.folder import loading; from attnport.artifacts import Source;"
    code += "loading.require(Source(sys.argv[1]))"
    asked = [sys.executable, "-c", code, source.text]
    assert subprocess.run(asked, check=False).returncode == 0
    later = {name: value for name, value in os.environ.items() if name != loading.VARIABLE}
    assert subprocess.run(asked, check=False, env=later, capture_output=True).returncode != 0


def test_records_that_others_may_write_are_not_believed(here: Path) -> None:
    source = open_folder(here / "out").source
    loading.require(source, given=True)
    (here / "state" / "attnport").chmod(0o777)
    with pytest.raises(SpecError, match="not exported by you"):
        loading.require(source)


def test_a_record_says_itself_what_it_stands_for(here: Path) -> None:
    source = open_folder(here / "out").source
    loading.require(source, given=True)
    (name,) = recorded(here)
    Cache(here / "state" / "attnport").write(name, b"{}\n")
    with pytest.raises(SpecError):
        loading.require(source)


def test_the_folder_for_state_is_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME")
    assert loading.folder() == tmp_path / ".local" / "state" / "attnport"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert loading.folder() == tmp_path / ".local" / "state" / "attnport"
    monkeypatch.setenv("HOME", "relative")
    assert loading.folder() is None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert loading.folder() == tmp_path / "xdg" / "attnport"


def test_every_reload_goes_by_the_one_place_that_asks() -> None:
    package = Path(attnport.__file__).parent
    loading = re.compile(r"folder\.loading import .*\bload\b|sources(\.load)? import load|folder import loading")
    users = {path.stem for path in package.rglob("*.py") if loading.search(path.read_text(encoding="utf-8"))}
    assert users == {"__init__", "loading", "given"}
