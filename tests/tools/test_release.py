"""What a release must be before it is tried: one version everywhere, a section of the changes, nothing left out."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import attnport

ROOT = Path(__file__).resolve().parents[2]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["release"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load()


def tree(
    at: Path, *, reader: str = "0.2.0", asked: str = "attnport-bundle==0.2.0", changes: str = "## 0.2.0 (2027-01-01)"
) -> Path:
    (at / "attnport").mkdir()
    (at / "attnport_bundle").mkdir()
    (at / "attnport" / "version.py").write_text('__version__ = "0.2.0"\n')
    (at / "attnport_bundle" / "pyproject.toml").write_text(f'[project]\nversion = "{reader}"\n')
    (at / "pyproject.toml").write_text(f'[project]\ndependencies = ["click>=8", "{asked}"]\n')
    (at / "CHANGELOG.md").write_text(f"# Changes\n\n{changes}\n- One.\n")
    return at


def test_both_packages_have_one_version_and_the_changes_a_section_of_it() -> None:
    assert release.the_version(ROOT) == attnport.__version__


def test_a_version_with_its_section_is_taken(tmp_path: Path) -> None:
    assert release.the_version(tree(tmp_path)) == "0.2.0"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"reader": "0.1.9"}, "not the same everywhere"),
        ({"asked": "attnport-bundle"}, "not the same everywhere"),
        ({"asked": "attnport-bundle==0.1.0"}, "not the same everywhere"),
        ({"changes": "## 0.1.0 (2026-01-01)"}, "no section"),
        ({"changes": "## Unreleased"}, "no section"),
    ],
)
def test_a_version_that_does_not_fit_is_refused(wrong: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match=said):
        release.the_version(tree(tmp_path, **wrong))


def test_a_wheel_that_lacks_a_file_is_found(tmp_path: Path) -> None:
    package = tmp_path / "attnport"
    (package / "cpp").mkdir(parents=True)
    for name in ("__init__.py", "FORMAT.md", "cpp/one.cpp"):
        (package / name).touch()
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("attnport/__init__.py", "")
        wheel.writestr("attnport/FORMAT.md", "")
    assert release.lacks(tmp_path / "a.whl", package) == ["attnport/cpp/one.cpp"]


def test_a_command_that_fails_ends_the_release_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="ended with 3:\nwhat went wrong"):
        release.run([sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)"], tmp_path)


def test_a_python_that_is_not_here_is_none() -> None:
    assert release.find_python("2.99") is None
    assert release.find_python(f"{sys.version_info.major}.{sys.version_info.minor}") == sys.executable
