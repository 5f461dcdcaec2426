"""Optional packages: what is missing is an error with the pip line, whatever is wrong with it."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from attnport.errors import MissingDependency
from attnport.optional import PACKAGES, pip_line, require

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the module path, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def test_what_is_installed_is_imported() -> None:
    assert require("json") is sys.modules["json"]


def test_what_is_not_installed_is_an_error_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "no_such_runtime", "its-package")
    with pytest.raises(MissingDependency, match="no_such_runtime is not installed") as raised:
        require("no_such_runtime")
    assert raised.value.hint == "pip install its-package"
    assert raised.value.exit_code == 3


def test_a_package_of_no_extra_gets_a_plain_pip_line() -> None:
    assert pip_line("no_such_package") == "pip install no_such_package"


def test_a_package_that_lacks_a_part_says_which(packages: Path) -> None:
    (packages / "half_a_runtime.py").write_text("import its_missing_part\n")
    with pytest.raises(MissingDependency, match=r"half_a_runtime cannot be imported: .*its_missing_part"):
        require("half_a_runtime")


@pytest.mark.parametrize("kind", ["ImportError", "OSError"])
def test_a_package_whose_library_does_not_load_says_why(kind: str, packages: Path) -> None:
    (packages / "broken_runtime.py").write_text(f"raise {kind}('libnothing.so.1: cannot open shared object')\n")
    with pytest.raises(MissingDependency, match=r"installed but cannot be imported: libnothing\.so\.1"):
        require("broken_runtime")


def test_a_bug_inside_a_package_is_not_taken_for_a_missing_one(packages: Path) -> None:
    (packages / "buggy_runtime.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        require("buggy_runtime")


def test_every_package_that_a_pip_line_names_is_one_that_an_extra_brings() -> None:
    """Not the extras themselves: before a release, pip does not find attnport."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {re.split("[<>=;]", each)[0] for extra in extras.values() for each in extra}
    assert {package for line in PACKAGES.values() for package in line.split()} <= brought
