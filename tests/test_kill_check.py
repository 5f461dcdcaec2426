"""`attnport check` killed half-way, five times, loses nothing and is finished by the next run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnport.artifacts import ParityReport
from attnport.jsonfile import read
from attnport.transaction import LOCK
from attnport.verbs.verify import raise_for, verify

MOMENTS = 5


def start(folder: Path, scratch: Path) -> subprocess.Popen[bytes]:
    """A check in a session of its own; runtimes have processes of their own, which a killed parent leaves behind."""
    command = ["check", str(folder), "--runtime", "torch_eager", "--runtime", "ort_cpu", "--isolate", "--force"]
    return subprocess.Popen(
        [sys.executable, "-c", "from attnport.cli import main; main()", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def of(scratch: Path) -> list[int]:
    """The processes that work with this folder for temporary files."""
    wanted = f"TMPDIR={scratch}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_check_killed_at_any_moment_loses_nothing_and_is_finished_by_the_next_run(
    tiny_artifact: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    began = time.monotonic()
    assert start(tiny_artifact, scratch).wait() == 0
    seconds = time.monotonic() - began
    first = read(ParityReport, tiny_artifact / "parity.json")
    chance, killed = random.Random(20261122), 0
    for moment in range(MOMENTS):
        process = start(tiny_artifact, scratch)
        time.sleep(seconds * (moment + chance.random()) / MOMENTS)  # one in each fifth of the time
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        raise_for(verify(tiny_artifact))
        until = time.monotonic() + 60
        while of(scratch) and time.monotonic() < until:
            time.sleep(0.1)
        assert not of(scratch), "a process outlives the check that started it"
    assert killed > MOMENTS / 2
    assert start(tiny_artifact, scratch).wait() == 0, "a killed check cannot be finished"
    raise_for(verify(tiny_artifact))
    again = read(ParityReport, tiny_artifact / "parity.json")
    assert {name: row.verdict for name, row in again.runtimes.items()} == {
        name: row.verdict for name, row in first.runtimes.items()
    }
    assert not (tiny_artifact / LOCK).exists()
