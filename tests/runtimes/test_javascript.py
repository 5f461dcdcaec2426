"""Runtimes of npm: where their packages are looked for. What they compute is in tests/layouts/test_web.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest

from attnport.errors import MissingDependency
from attnport.runtimes import base
from attnport.runtimes._javascript import on_processor, package


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


BROWSER = """#!/bin/sh
for each; do case $each in --user-data-dir=*) echo > "${each#*=}/state";; esac; done
exec cat <&3 > /dev/null
"""


def test_nodes_on_the_processor_are_told_but_those_of_integers() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 23]> g (float[B,4] x, int64[B] n) => (float[B,4] y, int64[B] m) {'
        " [first] y = Softmax (x) [second] m = Neg (n) }"
    )
    assert on_processor(model, [["Neg", "second"]]) == ""
    nodes = [["Softmax", "first"], ["Neg", "second"], ["Neg", "another"], ["FusedConv", "made by the runtime"]]
    assert on_processor(model, nodes) == "; on the CPU: 1 Softmax (first), 1 FusedConv (made by the runtime)"


OPENING = "from pathlib import Path; from attnport.runtimes._javascript import Chromium; Chromium(Path(), 'x', {})"


def _until(so: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 30
    while not so() and time.monotonic() < until_s:
        time.sleep(0.05)
    return so()


def test_no_profile_of_chromium_is_left_where_the_process_of_a_runtime_is_killed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (browser := tmp_path / "bin" / "chromium").write_text(BROWSER)
    browser.chmod(0o755)
    (temporary := tmp_path / "temporary").mkdir()
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    opening = subprocess.Popen([sys.executable, "-c", OPENING], env=environment)
    assert _until(lambda: any(temporary.glob("attnport-chromium-*/state")))
    opening.kill()
    opening.wait()
    assert _until(lambda: not any(temporary.iterdir()))
