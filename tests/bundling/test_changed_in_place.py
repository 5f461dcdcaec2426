"""Files that are changed in place under an open model: its answers stay, where the format promises it.

Each case is a process of its own: the system ends it with SIGBUS where a file that it maps was cut short.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import bundle_forms
import numpy as np
import pytest

PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from attnport_bundle import load, runtimes

folder, damage, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
runtimes.READ_BYTES = limit
feeds = {"ids": np.arange(10).reshape(2, 5), "attention_mask": np.ones((2, 5), np.int64)}
with load(folder, threads=1) as model:
    if damage == "before the first run":
        wanted = None
    else:
        wanted = model.run(**feeds)
    for path in folder.rglob("*"):
        if path.is_file() and damage == "overwritten":
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.write(b"\\x3f" * size)
        elif path.is_file():
            os.truncate(path, 0)
    found = model.run(**feeds)
    np.savez(sys.argv[4], **found)
    assert wanted is None or all(np.array_equal(wanted[name], found[name]) for name in wanted), "other numbers"
"""


@pytest.fixture(params=["onnxruntime", "openvino"])
def on_each(app: Path, request: pytest.FixtureRequest) -> Path:
    pytest.importorskip(request.param)
    if request.param == "openvino":
        requires = bundle_forms.manifest(app)["forms"]["ort_cpu"]["requires"] | {"runtime": "2024.0"}
        bundle_forms.reform(app, {"openvino": {"runtime": "openvino", "provider": None, "requires": requires}})
    return app


def change(app: Path, damage: str, limit: int = 1 << 28) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(app), damage, str(limit), str(app.parent / "found.npz")]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("damage", ["overwritten", "cut short", "before the first run"])
def test_an_open_model_does_not_see_it(on_each: Path, damage: str) -> None:
    done = change(on_each, damage)
    assert done.returncode == 0, (done.returncode, done.stderr)
    with np.load(on_each.parent / "found.npz") as found:
        assert all(np.isfinite(found[name]).all() for name in found.files)


@pytest.mark.parametrize("damage", ["overwritten", "cut short"])
def test_weights_over_the_limit_are_mapped_and_not_survived(on_each: Path, damage: str) -> None:
    # What FORMAT.md says of these. A runtime that survives it may have its limit raised.
    done = change(on_each, damage, limit=0)
    if damage == "cut short":
        assert done.returncode == -signal.SIGBUS, done.stderr
    else:
        assert "other numbers" in done.stderr


def test_weights_that_cannot_be_read_are_said(app: Path) -> None:
    from attnport_bundle import IntegrityError, load

    (app / "weights.bin").unlink()
    with pytest.raises(IntegrityError, match=r"weights\.bin: cannot be read: No such file"):
        load(app, check_files=False)
