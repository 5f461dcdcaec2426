"""Ctrl-C, SIGTERM and SIGHUP end a verb alike: the exit code of a shell, no child left behind, folders whole."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusing import call, contents
from representatives import representatives
from test_kill_ship import ENVIRONMENT, SHIP, whole

from attnport.verbs import export as exporting
from attnport.verbs import listing

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
MAIN = (sys.executable, "-c", "from attnport.cli import main; main()")


def take_signals() -> None:
    """A shell starts what runs in its background with signals ignored, and children inherit that."""
    for number in CODES:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def signalled() -> Iterator[None]:
    """Handlers as Python starts with."""
    before = {number: signal.getsignal(number) for number in CODES}
    take_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def kill(number: int) -> None:
    """The signal reaches this process now."""
    os.kill(os.getpid(), number)
    time.sleep(0.01)


def listed(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> Any:
    """Runs a short verb of the command line that does `act`."""

    real = listing.listing

    @functools.wraps(real)
    def work(what: str) -> Any:
        act()
        return real(what)

    monkeypatch.setattr(listing, "listing", work)
    return call("list", "targets")


def family(parent: int) -> set[int]:
    """A process's children, and theirs; found while it lives."""
    found: set[int] = set()
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found |= {child} | family(child)
    return found


def alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def ended(
    arguments: tuple[str, ...], at: str, number: int, *, again: bool = False, after_s: float = 0.3
) -> tuple[int, str, set[int]]:
    """Runs a verb with -v, sends the signal when it says `at`: its exit code, its messages, children that live on.

    The signal is sent `after_s` later. With `again`, the signal is sent every 10 ms until the process has ended.
    """
    process = subprocess.Popen(
        [*MAIN, *arguments, "-v"], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=take_signals,
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if at in line:
            break
    time.sleep(after_s)
    children = family(process.pid)
    process.send_signal(number)
    while again and process.poll() is None:
        process.send_signal(number)
        time.sleep(0.01)
    said += process.stderr.read()
    process.stderr.close()
    code = process.wait()
    until = time.monotonic() + 10
    while (left := {child for child in children if alive(child)}) and time.monotonic() < until:
        time.sleep(0.05)
    return code, said, left


@pytest.mark.parametrize("number", CODES)
def test_a_signal_ends_a_verb_with_its_code(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    result = listed(monkeypatch, lambda: kill(number))
    assert result.exit_code == CODES[signal.Signals(number)]
    assert "interrupted; no file is half written" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("number", CODES)
def test_a_signal_that_a_library_swallows_ends_the_verb(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def swallow() -> None:
        try:
            kill(number)
        except KeyboardInterrupt:
            raise RuntimeError("initialisation failed") from None

    assert listed(monkeypatch, swallow).exit_code == CODES[signal.Signals(number)]

    def work(given: Any, output: Path, how: Any, *, progress: Any, **options: Any) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            kill(number)
        progress("the next step")
        pytest.fail("it went on")

    monkeypatch.setattr(exporting, "exported", work)
    assert call("export", "bert_encoder", "-o", "out").exit_code == CODES[signal.Signals(number)]


@pytest.mark.parametrize("number", CODES)
def test_a_signal_waits_while_torch_is_imported(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def act() -> None:
        body = "kill(number); steps.append('imported')"
        exec(
            compile(body, "torch/__init__.py", "exec"),
            {**globals(), "__name__": "torch", "number": number, "steps": steps},
        )
        time.sleep(30)
        steps.append("it went on")

    assert listed(monkeypatch, act).exit_code == CODES[signal.Signals(number)]
    assert steps == ["imported"]


@pytest.mark.parametrize("number", CODES)
def test_a_second_signal_does_not_stop_the_clean_up(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    @contextlib.contextmanager
    def held() -> Iterator[None]:
        try:
            yield
        finally:
            kill(signal.SIGTERM)
            cleaned.append("inner")

    def act() -> None:
        try:
            with held():
                kill(number)
        finally:
            kill(number)
            cleaned.append("outer")

    assert listed(monkeypatch, act).exit_code == CODES[signal.Signals(number)]
    assert cleaned == ["inner", "outer"]


def test_a_second_signal_counts_when_the_first_was_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    after = []

    def act() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            kill(signal.SIGTERM)
        kill(signal.SIGTERM)
        after.append("it went on")

    assert listed(monkeypatch, act).exit_code == 143
    assert after == []


@pytest.mark.parametrize("number", CODES)
def test_a_signal_that_is_ignored_on_purpose_stays_ignored(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(number, signal.SIG_IGN)
    assert listed(monkeypatch, lambda: kill(number)).exit_code == 0
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_verb_leaves_the_handlers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(number: int, frame: Any) -> None:
        raise AssertionError

    signal.signal(signal.SIGHUP, mine)
    before = {number: signal.getsignal(number) for number in CODES}
    during: dict[Any, Any] = {}
    listed(monkeypatch, lambda: during.update({number: signal.getsignal(number) for number in CODES}))
    assert {number: signal.getsignal(number) for number in CODES} == before
    assert [number for number in CODES if during[number] != before[number]] == [signal.SIGINT, signal.SIGTERM]


def test_the_functions_of_python_leave_signals_alone(tiny_artifact: Path) -> None:
    import attnport

    before = [signal.getsignal(number) for number in CODES]
    seen: list[list[Any]] = []
    attnport.fuse(
        tiny_artifact, targets=["onnx_18"], progress=lambda _: seen.append([signal.getsignal(one) for one in CODES])
    )
    assert seen
    assert all(one == before for one in seen)


@pytest.mark.parametrize("number", representatives([signal.SIGTERM, signal.SIGHUP], [signal.SIGTERM]))
def test_a_signal_ends_the_children_of_a_verb_and_changes_no_folder(number: int, tiny_artifact: Path) -> None:
    before = contents(tiny_artifact)
    arguments = ("bench", str(tiny_artifact), "--runtime", "ort_cpu", "--runtime", "openvino", "--budget", "60")
    code, said, left = ended(arguments, "opening", number, again=True)
    assert code == CODES[number], said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert left == set()
    assert contents(tiny_artifact) == before


@pytest.mark.parametrize(
    ("at", "number"),
    representatives(
        [("loading", signal.SIGINT), *(("in it", number) for number in CODES)], [("in it", signal.SIGTERM)]
    ),
)
def test_a_signal_in_a_users_code_leaves_nothing(at: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import sys, time\ndef factory():\n    print('in it', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
    )
    spec, out = f"{tmp_path / 'slow.py'}:factory", tmp_path / "out"
    code, said, _ = ended(("ship", spec, "-o", str(out), "--input", "x=float32[batch,4]"), at, number)
    assert code == CODES[signal.Signals(number)], said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ship_ended_by_sigterm_in_every_stage_is_whole_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    stages: list[frozenset[str]] = []
    steps = ("tracing", "ort_cpu: proving", "building engines", "ort_cpu: opening", "round 2/", "running the golden")
    for step in steps:
        code, said, left = ended((*SHIP[1:], "-o", str(folder)), step, signal.SIGTERM, after_s=0.02)
        assert step in said, said
        assert code == 143, said
        assert "interrupted" in said
        assert left == set(), f"{step}: children were left behind"
        stages.append(whole(folder) or frozenset())
        assert not [path for path in tmp_path.iterdir() if path != folder]
    assert all(earlier <= later for earlier, later in itertools.pairwise(stages))
    assert len(stages[-1]) > 5
