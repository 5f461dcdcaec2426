"""Where `tools/cpp_setup.py` looks for packages of another release: the machine's own sources, in both formats."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cpp_setup", ROOT / "tools" / "cpp_setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["cpp_setup"] = module
    spec.loader.exec_module(module)
    return module


def sources(setup: ModuleType, folder: Path) -> list[tuple[str, str]]:
    return list(setup.sources_of("sid", "bookworm", folder))


def test_a_stanza_of_this_release_is_taken_and_security_and_others_are_not(setup: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    stanzas = [
        "Types: deb\n# a comment\nURIs: mirror\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: k",
        "Types: deb\nURIs: mirror-security\nSuites: bookworm-security\nComponents: main",
    ]
    (tmp_path / "sources.list.d" / "debian.sources").write_text("\n\n".join(stanzas) + "\n")
    (tmp_path / "sources.list.d" / "other.sources").write_text("Types: deb\nURIs: other\nSuites: nodistro\n")
    expected = "Types: deb\n# a comment\nURIs: mirror\nSuites: sid\nComponents: main\nSigned-By: k\n"
    assert [(text.strip(), suffix) for text, suffix in sources(setup, tmp_path)] == [(expected.strip(), ".sources")]


def test_lines_are_taken_as_well(setup: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb commented bookworm main\n"
        "deb [signed-by=key.gpg] mirror/debian bookworm main contrib\n"
        "deb-src mirror/debian bookworm main\n"
        "deb mirror/debian bookworm-updates main\n"
    )
    assert sources(setup, tmp_path) == [("deb [signed-by=key.gpg] mirror/debian sid main contrib\n", ".list")]


def test_without_any_nothing_is_made_up(setup: ModuleType, tmp_path: Path) -> None:
    assert sources(setup, tmp_path) == []


def test_the_version_of_the_interface_is_read(setup: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_c_api.h").write_text("#pragma once\n#define ORT_API_VERSION 23\n")
    assert setup.api_version(tmp_path) == "23"


def test_what_a_command_says_is_the_error(setup: ModuleType) -> None:
    with pytest.raises(setup.SetupError, match="sh said: no such package"):
        setup.run("sh", "-c", "echo first >&2; echo no such package >&2; exit 1")


def test_only_root_can_have_a_compiler(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "run", lambda *command, **_: ran.append(command))
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(setup.shutil, "which", lambda *_, **__: "found")
    with pytest.raises(setup.SetupError, match="apt-get install clang"):
        setup.install(["cmake", "nlohmann-json3-dev", "clang"])
    assert any("pip" in command and "cmake" in command for command in ran)
    assert ("apt-get", "download", "nlohmann-json3-dev") in ran
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    setup.install(["clang"])
    assert ran[-1] == ("apt-get", "install", "--yes", "--no-install-recommends", "clang")
