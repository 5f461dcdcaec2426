"""The line that says what is being done: it fits the terminal, and says how long the rest takes where that is known."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable

import pytest
from rich.cells import cell_len

import attnport.artifact
from attnport.console.progress import TimeLeft, duration, shortened
from attnport.console.run import Reporter
from attnport.verbs._arguments import verb


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("message", ["a" * 200, "model/" * 40 + "x.onnx: 3/15", "注意力" * 50, "a\nb " * 60])
@pytest.mark.parametrize("columns", [20, 77])
def test_a_long_message_is_one_line_with_its_beginning_and_its_end(message: str, columns: int) -> None:
    line = shortened(message, columns)
    assert columns - 4 <= cell_len(line) <= columns
    assert "\n" not in line
    assert "…" in line
    assert line.startswith(message[:4].replace("\n", " "))
    assert line.endswith(message.rstrip()[-3:].replace("\n", " "))


def test_a_short_message_stays_as_it_is() -> None:
    assert shortened("ort_cpu: 3/15 primes", 77) == "ort_cpu: 3/15 primes"


def test_the_time_left_is_measured_from_the_steps_before_but_the_first() -> None:
    now = [0.0]
    left = TimeLeft(lambda: now[0])

    def told(message: str, at: float) -> str:
        now[0] = at
        return left.with_time_left(message)

    assert told("ort_cpu: 1/11 a", 0) == "ort_cpu: 1/11 a"
    assert told("ort_cpu: 2/11 b", 100) == "ort_cpu: 2/11 b"  # the first loaded things
    assert told("ort_cpu: 3/11 c", 190) == "ort_cpu: 3/11 c"  # one step alone says little
    assert told("ort_cpu: 4/11 c", 104) == "ort_cpu: 4/11 c, about 16 s left"
    assert told("ort_cpu: 4/11 c, another line", 104) == "ort_cpu: 4/11 c, another line, about 16 s left"
    assert told("ort_cpu: 7/11 d", 150) == "ort_cpu: 7/11 d, about 50 s left"
    assert told("ort_cpu: 11/11 e", 150.1) == "ort_cpu: 11/11 e, about 6 s left"
    assert told("ort_cpu: 11/11 e", 110) == "ort_cpu: 11/11 e"  # too little to say
    assert told("openvino: 4/11 a", 200) == "openvino: 4/11 a"  # others begin anew
    assert told("openvino: 6/11 a", 300) == "openvino: 6/11 a"
    assert told("openvino: 1/11 a", 400) == "openvino: 1/11 a"
    assert told("loading hf:models/1/2/3", 500) == "loading hf:models/1/2/3"
    assert (duration(89), duration(91), duration(3600)) == ("89 s", "2 min", "60 min")


def test_a_stage_is_one_line_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = Reporter(as_json=False, verbose=False, traceback=False)
    with out.working("title"):
        out.stage("fuse", "writing attention", 2, 7)
        out.progress("target 1/7, onnx: lowering")
    assert capsys.readouterr() == ("", "fuse: writing attention\n")


def test_where_stderr_is_no_terminal_a_long_step_is_told_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("attnport.console.run.time.monotonic", lambda: now[0])
    out = Reporter()
    for at in (1.0, 20.0, 31.0, 40.0, 62.0):
        now[0] = at
        out.progress(f"checking at {at:.0f}")
    assert capsys.readouterr().err.splitlines() == ["checking at 31", "checking at 62"]


def test_on_a_terminal_the_stage_begins_the_line_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    out = Reporter(as_json=False, verbose=False, traceback=False)
    with out.working("title"):
        out.stage("fuse", "writing attention", 2, 7)
        out.progress("x" * 300 + " [red]3/7[/]")
        shown = out._status.status.plain
        assert len(shown) == 57
        assert shown.startswith("2 of 7, fuse: xxx")
        assert shown.endswith(" [red]3/7[/]")
    assert out._status is None


def work(
    progress: Callable[[str], None] = lambda message: None,
    begin: Callable[[str, str, int, int], None] = lambda name, what, number, count: None,
) -> None:
    """As a verb that Python calls."""
    begin("fuse", "writing attention", 2, 7)
    progress("lowering 3/7")
    logging.getLogger("attnport").warning("a dim is fixed")
    progress("proving")


def test_in_python_a_line_says_what_is_done_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.getLogger("attnport"), "handlers", [handler])
    assert callable(attnport.inspect)  # the package shows a line once one of its verbs was taken from it
    verb(work)()
    shown = terminal.getvalue()
    assert "2 of 7, fuse: writing attention" in shown
    assert "2 of 7, fuse: lowering 3/7" in shown
    assert "\ra dim is fixed\n" in shown
    assert shown.endswith("\r")
    terminal.truncate(0)
    told: list[str] = []
    verb(work)(progress=None)
    verb(work)(progress=told.append)
    assert told == ["lowering 3/7", "proving"]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", pipe := io.StringIO())
        verb(work)()
        assert pipe.getvalue() == ""
    monkeypatch.setattr(attnport, "quiet", True)
    verb(work)()
    assert "fuse" not in terminal.getvalue()
