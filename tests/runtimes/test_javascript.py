"""Runtimes of npm: where their packages are looked for. What they compute is in tests/layouts/test_web.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnport.errors import MissingDependency
from attnport.runtimes import base
from attnport.runtimes._javascript import package


def installed(folder: Path, version: str) -> Path:
    place = folder / "node_modules" / "onnxruntime-web"
    place.mkdir(parents=True)
    (place / "package.json").write_text(json.dumps({"version": version}))
    return place


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NODE_PATH", raising=False)


def test_a_package_is_found_in_node_path_and_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = installed(tmp_path / "cache" / "node", "1.0.0")
    assert package("onnxruntime-web") == (own, "1.0.0")
    named = installed(tmp_path / "named", "2.0.0")
    monkeypatch.setenv("NODE_PATH", str(named.parent))
    assert package("onnxruntime-web") == (named, "2.0.0")


def test_what_lies_beside_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "strange", "1.0.0")
    monkeypatch.chdir(tmp_path / "strange")
    with pytest.raises(MissingDependency):
        package("onnxruntime-web")


@pytest.mark.parametrize("name", ["ort_node", "ort_web", "ort_webgpu"])
def test_without_packages_the_probe_says_which_to_install(name: str) -> None:
    found = base.get(name).probe()
    assert not found.available
    assert found.hint.startswith("npm install --ignore-scripts --prefix ")
    assert f"{base.get(name).npm}@" in found.hint  # type: ignore[attr-defined]  # of this kind alone


def test_a_package_that_is_installed_later_is_seen(tmp_path: Path) -> None:
    before = base.get("ort_web").depends()
    installed(tmp_path / "cache" / "node", "1.0.0")
    assert base.get("ort_web").depends() != before
