"""`attnport --help` imports no heavy module: that, and not a stopwatch, is what keeps it quick (see benchmarks/)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from test_layers import HEAVY as HEAVY_AT_IMPORT

HEAVY = HEAVY_AT_IMPORT | {"google.protobuf", "numpy", "onnx", "onnx_ir"}
RUN = """
import json, sys
sys.argv = ["attnport", *json.loads(sys.argv[1])]
try:
    {statement}
except SystemExit as end:
    assert not end.code, end.code
print("MODULES " + json.dumps(sorted(sys.modules)))
"""


def loaded(arguments: list[str], statement: str = "from attnport.cli import main; main()") -> tuple[str, set[str]]:
    """What a run printed, and the heavy modules it imported."""
    code = RUN.format(statement=statement)
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, text=True, check=True, timeout=60
    )
    text, _, modules = done.stdout.rpartition("MODULES ")
    return text, HEAVY & set(json.loads(modules))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["ship", "--help"], ["check", "--help"]], ids=" ".join
)
def test_help_imports_no_heavy_module(arguments: list[str]) -> None:
    text, heavy = loaded(arguments)
    assert "attnport" in text
    # The options of a verb are those of its signature, so that its own help imports it: a fifth of a second.
    assert heavy <= ({"numpy"} if len(arguments) > 1 else set())


def test_importing_the_package_imports_no_heavy_module() -> None:
    assert loaded([], "import attnport")[1] == set()


def test_the_check_sees_a_heavy_module() -> None:
    assert loaded([], "import numpy")[1] == {"numpy"}
