"""Every line of code of every page is run by a test, or stands below with the reason why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import PAGES, blocks, shell_lines
from scripts import ROOT

from attnport.sources.parsing import parse_input

BUILT = {"docs/embedding-cpp.md": ("cpp", "cmake"), "docs/web.md": ("js",), "docs/ci.md": ("bash",)}
"""What tests/cpp/test_cpp_readme.py compiles and runs, tests/layouts/test_web.py, and test_examples.py beside this."""
NOT_RUN = {
    "make ": "sets up environments, and takes minutes; it runs these tests",
    "pip install ./attnport_bundle ": "the tests run in such an environment",
    'pip install "./attnport_bundle[': "test_installed_reader.py and `make serve-test` install it",
    "python -m venv serving ": "as above",
    "serving/bin/python ": "tests/serving runs servers so",
    "curl 127.0.0.1:8080/": "needs a server; tests/serving/test_serving_page.py asks one",
    '{"inputs": [{': "as above",
    '{"model": "': "as above",
    "pip install --upgrade onnxruntime": "another release is not what the tests are for",
    "pip download -d wheels ": "gigabytes; tests/tools/test_gpu_offline.py runs it with small packages",
    "python3 -m venv .venv-gpu": "as above",
    ".venv-gpu/bin/": "as above",
    "apt-get install ": "needs root; tools/cpp_setup.py installs these",
    "cmake -S app/cpp ": "tests/cpp builds it so",
    "cmake --build build ": "as above",
    "curl -LO https://github.com/microsoft/onnxruntime/": "a release; tools/cpp_setup.py fetches headers elsewhere",
    "tar xzf onnxruntime-linux-x64-": "as above",
    "build/attnport-": "tests/cpp runs them",
    "export ATTNPORT_ONNXRUNTIME=": "tests/cpp sets it to the library that is installed",
    '--input "': "declarations, no commands; they are read below",
}
"""Lines that no test here runs, by how they begin, and why."""


def left_out(name: str, text: str) -> list[str]:
    """The lines of a page's code that nothing runs; `text` is what a command prints, `yaml` and `toml` what is read.

    Python and commands of attnport are all run: tests/docs/test_examples.py lists the pages that have some.
    """
    run_whole = {"text", "python", "yaml", "toml", *BUILT.get(name, ())}
    code = "".join(code for language, code in blocks(text) if language not in run_whole)
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", code).splitlines()]
    ran = shell_lines(text)
    return [line for line in lines if line and line not in ran and not line.startswith(("#", *NOT_RUN))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_line_of_a_page_is_run_or_left_out_for_a_reason(page: Path) -> None:
    assert left_out(page.relative_to(ROOT).as_posix(), page.read_text("utf-8")) == []


def test_a_block_that_nothing_runs_is_found() -> None:
    fenced = "Words\n```\nattnport doctor\nrm -r out\n```\n```text\nPASS\n```\n"
    said = f"{fenced}## Title\n    cargo build\n\n    attnport doctor  # one\n"
    assert left_out("docs/page.md", said) == ["rm -r out", "cargo build"]
    assert left_out("docs/page.md", "```cpp\nint x;\n```\n```json\n{}\n```\n") == ["int x;", "{}"]


def test_nothing_is_left_out_that_no_page_has() -> None:
    shown = "".join(code for path in PAGES for _, code in blocks(path.read_text("utf-8")))
    assert [begin for begin in NOT_RUN if begin not in shown] == []


def test_every_declaration_of_the_page_on_masks_is_read() -> None:
    declared = re.findall(r'--input "([^"]+)"', (ROOT / "docs" / "masks.md").read_text("utf-8"))
    assert len(declared) > 5
    for text in declared:
        assert parse_input(text).mask is not None
