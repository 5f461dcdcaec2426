"""The command line as a user meets it: exit codes, messages on stderr, data on stdout."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from refusing import call, refused

from attnport.cli import cli, main
from attnport.console.command import BY_HAND

VERBS = sorted(cli.commands)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Python's own handler of SIGINT: a shell starts what runs in its background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_terminal(verb: str) -> None:
    result = CliRunner().invoke(cli, [verb, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    for option in ("--json", "--verbose", "--traceback"):
        assert option in result.stdout


def test_the_list_of_verbs_cuts_no_description_short() -> None:
    result = CliRunner().invoke(cli, ["--help"], terminal_width=80)
    listed = result.stdout.partition("Make:")[2]
    assert "..." not in listed
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert all(re.search(rf"^  {verb} ", listed, re.MULTILINE) for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_a_verbs_help_is_one_that_it_takes(verb: str) -> None:
    result = CliRunner().invoke(cli, [verb, "--help"], terminal_width=80)
    program, name, *arguments = shlex.split(result.stdout.partition("Example:\n")[2])
    assert (program, name) == ("attnport", verb)
    assert cli.commands[verb].make_context(verb, arguments)


def test_a_project_sets_defaults_of_options_but_none_that_lets_code_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def given(settings: str, *arguments: str) -> dict[str, Any]:
        (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'theirs'\n{settings}")
        return cli.commands["check"].make_context("check", ["out", *arguments]).params

    table = "[tool.attnport.check]\nruntime = ['ort_cpu', 'openvino']\ntimeout = 30\nthorough = true\n"
    found = given(table)
    assert (found["runtimes"], found["timeout_s"], found["thorough"]) == (("ort_cpu", "openvino"), 30, True)
    assert given(table, "--runtime", "ort_cpu")["runtimes"] == ("ort_cpu",)
    assert given("[tool.attnport.bench]\nbudget = 5\n")["thorough"] is False
    assert given("[tool.attnport.check]\nruntime = 'ort_cpu'\n")["runtimes"] == ("ort_cpu",)
    for wrong, said in (
        ("timout = 3", "'timout'"),
        ("timeout = [3]", "takes one value for 'timeout'"),
        ("timeout = 'long'", r"'--timeout'.*pyproject\.toml sets"),
        *((f"{flag} = true", "by hand") for flag in ("trust-source", "junit", "ray", "bundle")),
        ("=", "cannot be read"),
    ):
        with pytest.raises(click.UsageError, match=said):
            given(f"[tool.attnport.check]\n{wrong}\n")
    for wrong in ("[tool.attnport]\ncheck = 3\n", "[[tool.attnport]]\n"):
        with pytest.raises(click.UsageError, match="expected a table"):
            given(wrong)
    (tmp_path / "pyproject.toml").write_text("[tool.attnport.chekc]\n")
    refused(call("check", "out"), "there is no verb 'chekc'")


def test_a_dry_run_prints_the_command_with_what_the_project_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("[tool.attnport.check]\nruntime = ['ort_cpu', 'openvino']\ntimeout = 30\n")
    result = call("check", "no folder", "--text", "s.txt", "--bisect", "--dry-run")
    assert result.exit_code == 0, result.stderr
    written = "check 'no folder' --runtime=ort_cpu --runtime=openvino --text=s.txt --timeout=30 --bisect"
    assert result.stdout == f"attnport {written}\n"
    assert call(*shlex.split(written), "--dry-run").stdout == result.stdout
    assert call("list", "models", "--dry-run").stdout == "attnport list models\n"
    compared = call("bench", "--compare", "a", "b", "--compare", "c", "d", "--dry-run").stdout
    assert compared == "attnport bench --compare a b --compare c d\n"


def test_what_no_project_may_set_are_options_that_there_are() -> None:
    there = {flag[2:] for verb in cli.commands.values() for one in verb.params for flag in one.opts}
    assert there >= BY_HAND


def test_an_unknown_verb_gets_the_closest_one() -> None:
    refused(call("exprot", "x"), "Did you mean 'export'?")
    refused(call("zzz"), "There are audit, bench, build")


@pytest.mark.parametrize(
    ("verb", "tried", "name"),
    [
        *((verb, ["--dtype", "fp16"], "precision") for verb in ("check", "bench", "fuse", "build")),
        ("gpu-check", ["--dtype", "fp16"], "precisions"),
        ("check", ["--reference", "torch_eager"], "eager"),
        ("bench", ["--repeats", "2"], "starts"),
        ("fuse", ["--fail-on-unfused"], "require"),
    ],
)
def test_a_name_that_people_try_is_taken_for_the_one_of_an_option(verb: str, tried: list[str], name: str) -> None:
    needed = {"fuse": ["out", "--target", "ort_cpu"], "build": ["out", "--target", "tensorrt_rtx"], "gpu-check": []}
    context = cli.commands[verb].make_context(verb, [*needed.get(verb, ["out"]), *tried])
    assert context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def test_a_missing_output_folder_is_named() -> None:
    refused(call("export", "bert_encoder"), "'-o' / '--output'")


def test_names_take_hyphens_as_underscores(tiny_artifact: Path) -> None:
    refused(call("fuse", tiny_artifact, "--target", "no-such-target"), "tensorrt_rtx")
    result = call("fuse", tiny_artifact, "--target", "ort-cpu", "--json")
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)["targets"]) == ["ort_cpu"]
    assert call("check", tiny_artifact, "--runtime", "tensorrt-rtx-2").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [["doctor"], ["list", "models"], ["list", "runtimes"], ["list", "targets"], ["list", "rules"]],
    ids=" ".join,
)
def test_json_is_all_that_stands_on_stdout(arguments: list[str]) -> None:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["schema"].startswith(f"attnport/{arguments[0]}/")


@pytest.mark.parametrize(("verb", "schema"), [("verify", "verify"), ("inspect", "inspect"), ("report", "path")])
def test_json_of_verbs_about_a_folder(verb: str, schema: str, tiny_artifact: Path) -> None:
    result = call(verb, tiny_artifact, "--json", "-v")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["schema"] == f"attnport/{schema}/1"


def test_an_error_with_json_leaves_stdout_empty(tmp_path: Path) -> None:
    refused(call("check", tmp_path, "--json"), "is no artifact")


def test_what_a_model_prints_does_not_reach_stdout(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('hello')\ndef factory():\n    print('again')\n    return 3\n")
    spec = f"{tmp_path / 'loud.py'}:factory"
    refused(call("export", spec, "-o", tmp_path / "out", "--json"), "hello", "again")


def test_traceback_is_shown_on_demand_and_keeps_the_exit_code(tmp_path: Path) -> None:
    result = call("check", tmp_path, "--traceback")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "is no artifact" in result.stderr


def test_a_bug_of_ours_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnport.verbs import listing

    def broken(path: Path) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(listing, "_first_line", broken)
    result = call("list", "targets")
    assert result.exit_code == 1
    assert "RuntimeError: oops" in result.stderr
    assert "bug in attnport" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in call("list", "targets", "--traceback").stderr


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "/tmp/x"), 2, "/tmp/x: No space left on device"),
        (OSError(30, "Read-only file system", "/x"), 2, "/x: Read-only file system"),
        (ModuleNotFoundError("No module named 'openvino'", name="openvino"), 3, "openvino is not installed"),
        (OSError(5, "Input/output error"), 1, "bug in attnport"),
    ],
)
def test_what_ends_a_verb_has_its_exit_code(
    raised: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnport.verbs import listing

    def broken(path: Path) -> None:
        raise raised

    monkeypatch.setattr(listing, "_first_line", broken)
    result = call("list", "targets")
    assert result.exit_code == code
    assert told in result.stderr
    assert result.stdout == ""


def unread(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line with a stdout that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", "from attnport.cli import main; main()", *arguments],
        stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    return done


@pytest.mark.parametrize("arguments", [["list", "targets"], ["list", "targets", "--json"]], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    done = unread(*arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_verdict_outlives_a_reader_that_goes_away(tiny_artifact: Path) -> None:
    (tiny_artifact / "model.ort_cpu.onnx").write_bytes(b"cut")
    assert unread("verify", str(tiny_artifact)).returncode == 6


def test_the_console_script_ends_with_the_codes_of_click(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for arguments, code in ((["--version"], 0), (["nonsense"], 2), (["export"], 2), (["list", "nonsense"], 2)):
        monkeypatch.setattr(sys, "argv", ["attnport", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == code


def test_an_interrupt_that_python_swallows_in_a_callback_ends_the_verb_at_its_next_step(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from attnport.verbs import export

    class Dies:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    after = []

    def run(given: Any, output: Path, how: Any, *, progress: Any, **options: Any) -> Any:
        Dies()
        progress("the next step")
        after.append(given)

    monkeypatch.setattr(export, "exported", run)
    result = call("export", "bert_encoder", "-o", "out")
    assert result.exit_code == 130
    assert after == []
    assert "no file is half written" in result.stderr
    assert "Traceback" not in result.stderr + capfd.readouterr().err


def test_an_interrupt_after_the_last_step_does_not_say_that_nothing_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnport.verbs import export

    class Dies:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    monkeypatch.setattr(export, "exported", lambda *arguments, **options: (Dies() and None, None))
    result = call("export", "bert_encoder", "-o", "out")
    assert result.exit_code == 130
    assert "already done; it is kept" in result.stderr


def test_python_runs_the_package_as_the_command() -> None:
    command = [sys.executable, "-m", "attnport", "--version"]
    assert "attnport" in subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
