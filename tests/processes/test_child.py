from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from attnport.errors import FeedError, SpecError, UnavailableError
from attnport.processes import isolated as child_module
from attnport.processes import worker
from attnport.processes.isolated import Child, ChildError, reason_of
from attnport.processes.worker import load_feeds, read_frame, save_feeds, write_frame


def script(code: str) -> Child:
    """A child that runs `code` in place of the worker, with the worker's own frames at hand."""
    start = "import sys, os, time; from attnport.processes.worker import read_frame, write_frame\n"
    return Child(1, ("-c", start + "read_frame(sys.stdin.buffer)\n" + code))


def test_frames_come_back_as_they_went() -> None:
    stream = io.BytesIO()
    for message in ({"op": "run", "n": 1}, {"text": "é" * 5000}):
        write_frame(stream, message)
    stream.seek(0)
    assert read_frame(stream) == {"op": "run", "n": 1}
    assert read_frame(stream) == {"text": "é" * 5000}
    assert read_frame(stream) is None


@pytest.mark.parametrize(
    "data",
    [b"\0\0", struct.pack(">I", 9) + b"{}", struct.pack(">I", 1 << 31), struct.pack(">I", 2) + b"[]", b"\0\0\0\2no"],
)
def test_frames_that_are_cut_short_or_no_object_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_frame(io.BytesIO(data))


def test_feeds_survive_the_way_to_the_child(tmp_path: Path) -> None:
    feeds = {"a": np.arange(6).reshape(2, 3), "b": np.array([0.5, -2], dtype=ml_dtypes.bfloat16)}
    save_feeds(tmp_path / "x.npz", feeds)
    back = load_feeds(tmp_path / "x.npz", {"a": "int64", "b": "bfloat16"})
    for name, array in feeds.items():
        assert back[name].dtype == array.dtype
        assert (back[name] == array).all()


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([2, 3], "by SIGKILL, as memory ran out"),
        ([2, 2], "by SIGKILL, which others sent: the kernel ended nothing for lack of memory"),
        ([None, None], "by SIGKILL, probably as memory ran out"),
    ],
)
def test_of_a_child_that_was_killed_it_is_said_what_is_known(
    counts: list[int | None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(counts)
    monkeypatch.setattr(child_module, "_killed_for_memory", lambda: next(answers))
    child = script("os.kill(os.getpid(), 9)")
    with pytest.raises(ChildError, match=f"{told}$"):
        child.ask("open")


def test_the_system_tells_how_many_it_killed_for_memory() -> None:
    told = child_module._killed_for_memory()
    assert told is None or told >= 0


def test_a_dead_child_leaves_its_last_words() -> None:
    child = script("print('out of luck', file=sys.stderr); sys.exit(3)")
    with pytest.raises(ChildError, match=r"exit status 3.*out of luck"):
        child.ask("open")
    assert not child.alive
    with pytest.raises(ChildError, match="out of luck"):
        child.ask("open")


def test_a_child_that_is_killed_by_a_signal_says_which() -> None:
    child = script("os.kill(os.getpid(), 11)")
    with pytest.raises(ChildError, match="SIGSEGV"):
        child.ask("open")


def test_a_child_that_dies_in_the_middle_of_an_answer_is_dead() -> None:
    child = script("os.write(1, bytes([0, 0, 0, 99]) + b'{'); sys.exit(0)")
    with pytest.raises(ChildError, match="ended"):
        child.ask("open")


def test_a_child_that_does_not_answer_is_killed() -> None:
    child = script("time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(ChildError, match="in time"):
        child.ask("open", timeout_s=0.5)
    assert time.monotonic() - began < 20
    assert not child.alive


def test_errors_of_the_folder_are_the_parents_too_and_others_the_childs_own() -> None:
    for kind, expected in (("SpecError", SpecError), ("FeedError", FeedError), ("Exception", ChildError)):
        child = script(f"write_frame(os.fdopen(1, 'wb'), {{'error': 'no', 'hint': 'do', 'kind': {kind!r}}})")
        with pytest.raises(expected, match="no") as caught:
            child.ask("open")
        assert caught.value.hint == "do"
        child.kill()


def test_the_worker_answers_what_it_cannot_do_and_keeps_what_libraries_print_to_itself() -> None:
    child = Child(1)
    with pytest.raises(ChildError, match="do_sing"):
        child.ask("sing")
    with pytest.raises(ChildError):
        child.ask("run", name="never loaded", calls=1, warm=0)
    level = child.ask("level", modules=["this", "no_such_module_anywhere"])["level_bytes"]
    assert level > 1 << 20
    assert child.ask("peak")["peak_bytes"] >= 0
    child.kill()


MEMORY = """
import numpy as np
from attnport.budget import memory_bytes
before = memory_bytes("VmHWM")
block = np.ones(64 << 20, dtype=np.uint8)
print(memory_bytes("VmHWM") - before)
"""


def test_memory_figures_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a process of its own: the peak of this one lies wherever an earlier test took it.
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert 60 << 20 < int(run.stdout) < 90 << 20
    # Where the system tells none, no peak of 0 is measured.
    monkeypatch.setattr(worker, "memory_bytes", lambda field: 0)
    with pytest.raises(OSError, match="does not tell"):
        worker.Worker().do_level({"modules": []})


def test_the_reason_of_something_missing_says_how_to_get_it() -> None:
    assert reason_of(UnavailableError("it is not there.", hint="pip install it")) == "it is not there; pip install it"
    assert reason_of(FeedError("bad feeds.", hint="x")) == "bad feeds."


@pytest.mark.parametrize("end", ["time.sleep(60)", "pass"], ids=["alive", "ended"])
def test_what_a_child_started_ends_with_it_even_if_it_ended_first(end: str) -> None:
    code = (
        "import subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(other.pid, file=sys.stderr, flush=True)\n" + end
    )
    child = Child(1, ("-c", code))
    until = time.monotonic() + 20
    while not (text := _said(child)) and time.monotonic() < until:
        time.sleep(0.05)
    if end == "pass":
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    child.kill()
    while _runs(int(text)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(int(text))


def _said(child: Child) -> str:
    size = os.fstat(child._stderr.fileno()).st_size
    return os.pread(child._stderr.fileno(), size, 0).decode().strip()


def _runs(pid: int) -> bool:
    """Whether a process runs; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
