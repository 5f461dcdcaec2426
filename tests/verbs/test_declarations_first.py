"""What can be known at once is said at once: before torch is imported, which takes seconds, and before any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from pathlib import Path
from attnport.errors import UsageError
from attnport.verbs.export import export
try:
    export("net.py:make", Path("out"), inputs={inputs!r}, dims={dims!r})
except UsageError as err:
    print(err.message, err.hint, "torch" in sys.modules)
"""
X = "x=float32[batch,seq]"


@pytest.mark.parametrize(
    ("inputs", "dims", "said"),
    [
        (["x=flaot32[batch]"], [], "dtype 'flaot32' is not one of float32, "),
        (["x=flaot32[batch]"], [], "Is it float32? False"),
        (["x=int[batch]"], [], "Is it int64? False"),
        (["x=float32[bat ch,2-3]"], [], "dim '2-3' is neither a name, a size, nor an expression"),
        ([X, "m=int64[batch,seq]:paddin"], [], "got mark 'paddin'; expected padding, causal"),
        ([X], ["sqe=1:2:3"], "dim sqe: no input has that dim; they have batch, seq. Is it seq? False"),
        ([X], ["seq=1:2"], "Write DIM=MIN:OPT:MAX"),
        ([X], ["seq=4:8:18:4"], "dim seq: got 4, 8 and 18 with step 4; expected multiples of a step"),
        ([X, X], [], "input x is declared twice"),
    ],
)
def test_a_typo_is_found_before_torch_is_imported(
    inputs: list[str], dims: list[str], said: str, tmp_path: Path
) -> None:
    code = CODE.format(inputs=inputs, dims=dims)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert said in done.stdout
    assert done.stdout.strip().endswith("False")


LACKS = """
import sys
from pathlib import Path
sys.modules["openvino"] = None
from attnport.errors import AttnportError
from attnport.verbs import _needs
_needs.versions = lambda patterns: {}
from attnport.verbs.bench import bench
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.ship import ship
out = Path(sys.argv[1])
calls = {
    "export": lambda: export("net.py:make", out / "attnport.json" / "out"),
    "ship": lambda: ship("net.py:make", out / "attnport.json" / "out"),
    "check": lambda: check(out, ["openvino"]),
    "bench": lambda: bench(out, ["openvino"]),
    "bundle": lambda: bundle(out, out / "attnport.json" / "x" / "app"),
    "unknown": lambda: check(out, ["warp_drive"]),
}
for name, call in calls.items():
    try:
        call()
    except AttnportError as err:
        print(name, err.exit_code, "torch" in sys.modules, err)
"""


def test_a_place_that_cannot_be_written_and_a_runtime_that_is_not_there_are_told_first(tiny_artifact: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LACKS, tiny_artifact], capture_output=True, text=True, check=True)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for verb in ("export", "ship", "bundle"):
        assert told[verb].startswith("2 False"), told[verb]
        assert "Not a directory" in told[verb]
    for verb in ("check", "bench"):
        assert told[verb].startswith("3 False openvino was not run: openvino is not installed.")
    assert told["unknown"].startswith("2 False runtime 'warp_drive': there is none")
