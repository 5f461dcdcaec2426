"""Streams that are closed, full or narrow, and folders that are gone or badly named: the right exit code, in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusing import call, contents, refused
from representatives import representatives

from attnport.console.streams import Foreign, no_command_in_json, prepare_streams
from attnport_bundle.errors import is_printable

ROOT = Path(__file__).parent.parent
GOOD, BAD, WRONG = ("list", "targets"), ("verify", "/nowhere"), ("vrify", "/nowhere")
MORE_HELP = (("--version",), ("verify", "--help"))
CLOSED = ("<&- >&- 2>&-", ">&-", "2>&-", ">&- 2>&-")
ODD = os.fsdecode(b"odd\xff")


def shell(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash, in which `$ATTNPORT` with "$@" is the command line."""
    program = f"{sys.executable} -c 'from attnport.cli import main; main()' \"$@\""
    return subprocess.run(
        ["bash", "-c", script.replace("$ATTNPORT", program), "bash", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=120,
        check=False,
    )  # fmt: skip


def told(done: subprocess.CompletedProcess[str], code: int) -> str:
    """What a run said on stderr; fails on another exit code, a traceback, or talk of a bug."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "bug in attnport" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [
        pytest.param(closed, *given, marks=[] if closed == CLOSED[0] or given == (BAD, 2) else pytest.mark.slow)
        for closed in CLOSED
        for given in ((GOOD, 0), (("--help",), 0), (BAD, 2), (WRONG, 2))
    ],
)
def test_closed_streams_change_no_exit_code(closed: str, arguments: tuple[str, ...], code: int) -> None:
    told(shell(f"$ATTNPORT {closed}", *arguments), code)


def test_what_is_still_open_gets_all_that_it_would() -> None:
    assert "/nowhere is not a folder" in told(shell("$ATTNPORT >&-", *BAD), 2)
    assert "tensorrt_rtx" in shell("$ATTNPORT 2>&-", *GOOD).stdout


def test_the_number_of_a_closed_stream_is_given_to_no_file() -> None:
    code = (
        "import os; from attnport.console.streams import prepare_streams as p; p(); "
        "assert os.open('/dev/zero', os.O_RDONLY) > 2; assert [os.get_inheritable(n) for n in range(3)] == [True] * 3"
    )
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{code}" <&- >&- 2>&-'],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [GOOD, (*GOOD, "--json"), ("--help",), *(pytest.param(one, marks=pytest.mark.slow) for one in MORE_HELP)],
)
def test_output_that_cannot_be_written_is_a_failure(arguments: tuple[str, ...]) -> None:
    done = shell("$ATTNPORT >/dev/full", *arguments)
    assert "the output on stdout was cut short: No space left on device" in told(done, 2)
    assert "untouched" not in done.stderr


def test_a_full_stdout_takes_no_verdict(tiny_artifact: Path) -> None:
    (tiny_artifact / "model.ort_cpu.onnx").write_bytes(b"cut")
    assert "cut short" in told(shell("$ATTNPORT >/dev/full", "verify", str(tiny_artifact)), 6)


@pytest.mark.parametrize(
    ("arguments", "code"), representatives([(GOOD, 0), ((*GOOD, "-v"), 0), (BAD, 2), (WRONG, 2)], [(GOOD, 0), (BAD, 2)])
)
def test_messages_that_cannot_be_written_change_no_exit_code(arguments: tuple[str, ...], code: int) -> None:
    for stderr in ("2>/dev/full", "2> >(true)", "2>/dev/null"):
        done = shell(f"sleep 0.1; $ATTNPORT {stderr}", *arguments)
        assert done.returncode == code
        assert code or "tensorrt_rtx" in done.stdout


def test_a_model_that_prints_to_a_full_stderr_is_exported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('x' * 100000, flush=True)\ndef factory():\n    return 3\n")
    done = shell("$ATTNPORT 2>/dev/full", "export", f"{tmp_path / 'loud.py'}:factory", "-o", str(tmp_path / "out"))
    assert done.returncode == 2  # for the 3, and not 1 for the print


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_json_is_json_and_tables_are_text_whatever_the_encoding(more: tuple[str, ...], tiny_artifact: Path) -> None:
    there = tiny_artifact.rename(tiny_artifact.parent / "größe 日本")
    done = shell("$ATTNPORT", "audit", str(there), *more, PYTHONIOENCODING="latin-1")
    assert done.returncode in (0, 6)
    assert "bug in attnport" not in done.stderr
    if more:
        assert json.loads(done.stdout)["path"] == str(there)
    else:
        assert os.fsdecode(b"gr\xf6\xdfe ??") in " ".join(done.stdout.split())  # a long path is wrapped


def test_streams_of_somebody_else_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    mine = io.StringIO()
    monkeypatch.setattr(sys, "stdout", mine)
    monkeypatch.setattr(sys, "stderr", mine)
    prepare_streams()
    assert sys.stdout is mine
    assert sys.stderr is mine


@pytest.mark.parametrize(
    "arguments", [("inspect", "."), ("doctor",), ("list", "targets"), ("export", "bert_encoder", "-o", "/nowhere")]
)
def test_a_current_folder_that_was_deleted_is_told(arguments: tuple[str, ...], tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    done = shell(f"cd {place} && rmdir {place} && $ATTNPORT", *arguments)
    assert "The current folder was deleted." in told(done, 2)
    assert "cd to a folder" in done.stderr
    assert done.stdout == ""
    assert shell(f"mkdir {place} && cd {place} && rmdir {place} && $ATTNPORT", "--help").returncode == 0


def test_a_current_folder_that_is_deleted_meanwhile_is_told(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    (tmp_path / "run.py").write_text(
        "from functools import wraps\nfrom pathlib import Path\nfrom attnport.verbs import listing\n"
        "@wraps(listing.listing)\n"
        f"def deleting(what):\n    Path({str(place)!r}).rmdir()\n    return Path('here').resolve()\n"
        "listing.listing = deleting\nfrom attnport.cli import main\nmain()\n"
    )
    done = shell(f"cd {place} && {sys.executable} {tmp_path / 'run.py'} list targets")
    assert "The current folder was deleted." in told(done, 2)


PLACES = {
    "a folder": ("inspect", "{odd}"),
    "below a folder": ("verify", "{odd}/app"),
    "a link to one": ("report", "{link}"),
    "an output": ("export", "bert_encoder", "-o", "{odd}"),
    "a SPEC": ("export", "hf:{odd}", "-o", "{new}"),
    "a name": ("fuse", "{tiny}", "--target", ODD),
    "sentences": ("check", "{tiny}", "--text", "{odd}"),
    "two of an option": ("bench", "--compare", "{tiny}", "{odd}"),
}


@pytest.mark.parametrize("where", PLACES)
def test_an_argument_that_is_not_utf8_is_refused_at_once(where: str, tiny_artifact: Path, tmp_path: Path) -> None:
    odd, link = tmp_path / ODD, tmp_path / "link"
    odd.mkdir()
    link.symlink_to(odd)
    before = contents(tiny_artifact)
    words = {"odd": odd, "link": link, "new": tmp_path / "new", "tiny": tiny_artifact}
    result = call(*(part.format(**words) for part in PLACES[where]))
    refused(result, r"odd\xff", "is not UTF-8")
    assert contents(tiny_artifact) == before
    assert list(odd.iterdir()) == []


def test_a_tmpdir_that_is_not_utf8_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / ODD))
    refused(call("list", "targets"), r"odd\xff", "is not UTF-8")


def test_a_path_with_letters_of_every_script_is_fine(tiny_artifact: Path) -> None:
    there = tiny_artifact.rename(tiny_artifact.parent / "größe 日本 🙂")
    assert call("inspect", there).exit_code == 0


@pytest.mark.parametrize(
    "arguments", [("verify", ""), ("export", "bert_encoder", "-o", ""), ("check", ".", "--text", "")]
)
def test_an_empty_path_is_not_the_current_folder(arguments: tuple[str, ...]) -> None:
    refused(call(*arguments), "the path is empty")


def test_control_characters_of_a_name_do_not_reach_the_terminal(tiny_artifact: Path, tmp_path: Path) -> None:
    refused(call("verify", tmp_path / "a\x1b]0;mine\x07b"), r"a\x1b]0;mine\x07b is not a folder")
    there = tiny_artifact.rename(tmp_path / "e\x1b[2Jx")
    (there / "f\x1b[31m.txt").write_text("mine")
    for verb in ("audit", "verify", "inspect"):
        result = call(verb, there)
        assert result.exit_code in (0, 6), result.output
        assert "\x1b" not in result.output


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    for arguments in (("verify", tmp_path / ("x" * 300)), ("export", "bert_encoder", "-o", tmp_path / ("x" * 300))):
        refused(call(*arguments), "File name too long")


NOISY = r"""
import logging, sys, types, warnings
from attnport.console.command import Verbs
from attnport.console.run import start
from attnport.errors import SpecError

NAME = "a\x1b[31mb\x1b]0;mine\x07\n::error::mine\r##[error]mine\u202e"

cli = Verbs()
sys.modules["attnport.verbs.noisy"] = types.SimpleNamespace(noisy=lambda: None)

@cli.verb("Make", "attnport noisy")
def noisy(out, run):
    logging.basicConfig()
    logging.getLogger("library").warning("logged %s", NAME)
    warnings.warn(f"warned {NAME}")
    print("printed", NAME)
    print("begun", NAME, end="", file=sys.stderr)
    out.tell(f"told {NAME}")
    out.progress(f"step {NAME}")
    raise SpecError(f"raised {NAME}", hint=f"hint {NAME}")

start(cli)
"""


@pytest.mark.parametrize("options", [(), ("-v",), ("--json",), ("--traceback",)])
def test_what_libraries_print_of_a_name_is_escaped_and_no_command(options: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOISY, "noisy", *options], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, check=False,
    )  # fmt: skip
    said = done.stderr.decode()
    assert done.returncode == 2, said
    assert not done.stdout
    for kind in ("logged", "warned", "printed", "begun", "told", "raised", "hint"):
        assert f"{kind} a\\x1b[31mb\\x1b]0;mine\\x07" in said
    assert all(is_printable(line) for line in said.splitlines()), said
    assert not [line for line in said.splitlines() if line.strip().startswith("::") or "##[" in line]
    for kind in ("logged", "warned", "told", "raised"):
        whole = [line for line in said.splitlines() if f"{kind} a" in line and " ::error::mine" in line]
        assert whole, f"what was {kind} is not one line: {said}"


def test_json_holds_no_command_and_says_the_same() -> None:
    text = no_command_in_json(json.dumps({"a": "##[error]x", "b": "# [1] ##vso[x] ## #"}))
    assert "##[" not in text
    assert "##vso[" not in text
    assert json.loads(text) == {"a": "##[error]x", "b": "# [1] ##vso[x] ## #"}


def test_lines_of_others_keep_their_indentation_and_of_a_bar_its_last_state() -> None:
    lines = list[str]()
    foreign = Foreign(lines.append, sys.stderr)
    foreign.write("one\n  two\tthree\n 10%\r 20%\r 100%\n\x1b[1m")
    assert lines == ["one", "  two   three", " 100%"]
    foreign.end()
    assert lines[3:] == ["\\x1b[1m"]
    foreign.write("x" * 200_000)
    assert len(lines[4]) == 200_000
