"""Typos in declarations are found before torch is imported, which takes seconds."""

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
        (["x=float32[bat ch,2-3]"], [], "dim '2-3' is neither a name, a size, nor an expression"),
        ([X, "m=int64[batch,seq]:paddin"], [], "got mark 'paddin'; expected padding, causal"),
        ([X], ["sqe=1:2:3"], "--dim sqe: no input has that dim; they have batch, seq. Is it seq? False"),
        ([X], ["seq=1:2"], "Write DIM=MIN:OPT:MAX"),
        ([X], ["seq=4:8:18:4"], "dim seq: got 4, 8 and 18 with step 4; expected multiples of a step"),
        ([X, X], [], "a name is declared twice"),
    ],
)
def test_a_typo_is_found_before_torch_is_imported(
    inputs: list[str], dims: list[str], said: str, tmp_path: Path
) -> None:
    code = CODE.format(inputs=inputs, dims=dims)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert said in done.stdout
    assert done.stdout.strip().endswith("False")
