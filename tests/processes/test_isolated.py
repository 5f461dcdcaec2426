"""A runtime that crashes, hangs or eats memory in its process is NOT_RUN, and all others report all the same."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import planting
import pytest
from click.testing import CliRunner

from attnport import registry, runtimes
from attnport.cli import cli
from attnport.errors import FeedError, UnavailableError, UsageError
from attnport.folder.workspace import model_openings, open_folder
from attnport.processes import isolated
from attnport.processes.isolated import Died, IsolatedSession, Limits, probe
from attnport.runtimes import base
from attnport.verbs.check import check, raise_for

RUNTIME = """
import ctypes, os, sys, time
import numpy as np
from attnport.artifacts import Capabilities, Ran
from attnport.runtimes.base import Runtime

class Planted(Runtime):
    name = {name!r}
    opens = "onnx"

    def probe(self):
        {probe}
        return Capabilities(self.name, True, version="1", devices=("CPU",), plans=("fp32",))

    def session(self, opening):
        return Session(opening)

class Session:
    def __init__(self, opening):
        self.ran, self.calls = Ran("CPU", "planted", "fp32"), 0
        from attnport.runtimes import base
        self.inner = base.get("ort_cpu").open(opening)

    def run(self, feeds):
        self.calls += 1
        if self.calls > 1:
            print("about to do it", file=sys.stderr, flush=True)
            {run}
        return self.inner.run(feeds)

    def close(self):
        self.inner.close()

RUNTIME = Planted()
"""
CRASH, HANG = "ctypes.string_at(0)", "time.sleep(600)"
LIMITS = Limits()
EAT = "held = [bytearray(os.urandom(1) * (64 << 20)) for _ in range(200)]"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder whose files are runtimes, here and in workers."""
    folder = tmp_path / "planted"
    folder.mkdir()
    monkeypatch.setattr(registry, "files", registry.files)
    monkeypatch.setattr(runtimes, "__path__", list(runtimes.__path__))
    monkeypatch.setenv(planting.VARIABLE, str(folder))
    monkeypatch.setattr(isolated, "WORKER", (planting.__file__,))
    planting.plant(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("attnport.runtimes."):
            monkeypatch.delitem(sys.modules, name)


def write(folder: Path, name: str, run: str = "pass", probe: str = "pass") -> base.Runtime:
    (folder / f"{name}.py").write_text(textwrap.dedent(RUNTIME.format(name=name, run=run, probe=probe)))
    return base.get(name)


def opened(runtime: base.Runtime, folder: Path, limits: Limits = LIMITS) -> IsolatedSession:
    manifest = open_folder(folder)
    (opening,) = model_openings(runtime, folder, manifest, ("fp32",), 1).values()
    return IsolatedSession(runtime, opening, folder, manifest, limits)


def feeds(batch: int = 2, seq: int = 5) -> dict[str, np.ndarray]:
    return {
        "input_ids": np.random.default_rng(0).integers(0, 40, (batch, seq)),
        "attention_mask": np.ones((batch, seq), np.int64),
    }


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_session_gives_what_it_gives_without_a_process_of_its_own(tiny_artifact: Path) -> None:
    runtime = base.get("ort_cpu")
    (opening,) = model_openings(runtime, tiny_artifact, open_folder(tiny_artifact), ("fp32",), 1).values()
    inside, session = runtime.open(opening), opened(runtime, tiny_artifact)
    for sizes in ((2, 5), (1, 1), (4, 16)):
        got, expected = session.run(feeds(*sizes)), inside.run(feeds(*sizes))
        assert list(got) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)
            assert got[name].dtype == array.dtype
    assert session.ran == inside.ran
    with pytest.raises(FeedError, match="'input_ids'"):
        session.run({"attention_mask": feeds()["attention_mask"]})
    assert session.run(feeds())  # a feed that was refused leaves it open
    pid = session._child.pid
    session.close()
    session.close()
    assert gone(pid)
    with pytest.raises(UsageError, match="closed"):
        session.run(feeds())


@pytest.mark.parametrize(
    ("run", "limits", "words"),
    [
        (CRASH, Limits(), ["SIGSEGV", "about to do it"]),
        pytest.param(HANG, Limits(timeout_s=5), ["did not answer in time", "about to do it"], marks=pytest.mark.slow),
        (EAT, Limits(memory_bytes=1 << 30), ["GiB of memory; 1.0 GiB is its limit", "about to do it"]),
        ("raise MemoryError('none left')", Limits(), ["none left"]),
        ("os._exit(7)", Limits(), ["exit status 7", "about to do it"]),
    ],
    ids=["crash", "hang", "eat", "memory error", "exit"],
)
def test_what_ends_a_process_is_said_with_its_last_lines(
    run: str, limits: Limits, words: list[str], planted: Path, tiny_artifact: Path
) -> None:
    session = opened(write(planted, "bad", run), tiny_artifact, limits)
    assert session.run(feeds())
    with pytest.raises(Died) as caught:
        session.run(feeds())
    for word in words:
        assert word in caught.value.message
    pid = session._child.pid
    session.close()
    assert gone(pid)


@pytest.mark.slow
def test_all_others_report_beside_one_that_crashes_one_that_hangs_and_one_that_eats(
    planted: Path, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnport.processes.isolated.free_memory_bytes", lambda: int(1.2 * 2**30))
    for name, run in (("crashes", CRASH), ("hangs", HANG), ("eats", EAT), ("well", "pass")):
        write(planted, name, run)
    names = ["crashes", "hangs", "eats", "well", "ort_cpu"]
    began = time.monotonic()
    report = check(tiny_artifact, names, threads=1, timeout_s=10)
    assert time.monotonic() - began < 200
    assert {name: row.verdict for name, row in report.runtimes.items()} == {
        "crashes": "NOT_RUN",
        "hangs": "NOT_RUN",
        "eats": "NOT_RUN",
        "well": "PASS",
        "ort_cpu": "PASS",
    }
    reasons = {name: row.reason for name, row in report.runtimes.items()}
    assert "SIGSEGV: about to do it" in reasons["crashes"]
    assert "did not answer in time: about to do it" in reasons["hangs"]
    assert "GiB of memory" in reasons["eats"]
    assert report.verdict == "PASS"
    raise_for(report)
    with pytest.raises(UnavailableError, match="crashes was not run"):
        raise_for(report, ["crashes"])


def test_a_probe_that_crashes_or_hangs_is_not_available(planted: Path) -> None:
    found = probe(write(planted, "crashes", probe=CRASH))
    assert (found.runtime, found.available) == ("crashes", False)
    assert "its probe failed: it ended by SIGSEGV" in found.reason
    found = probe(write(planted, "hangs", probe=HANG), Limits(timeout_s=5))
    assert "did not answer in time" in found.reason
    found = probe(write(planted, "raises", probe="raise ValueError('library is damaged')"))
    assert "ValueError: library is damaged" in found.reason
    assert probe(write(planted, "well")).available


@pytest.mark.parametrize("timeout", ["0", "-1", "soon"])
def test_a_timeout_that_is_no_time_is_refused(timeout: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(tmp_path), "--timeout", timeout])
    assert result.exit_code == 2
    assert "--timeout" in result.output
