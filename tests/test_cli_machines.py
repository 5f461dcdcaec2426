"""`--ray`: what goes together, what a verb is told, and how it ends by what the machines answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from refusing import call, refused

from attnport.parities import ParityReport
from attnport.verbs import machines
from attnport.verbs.machines import MachineResult, MachinesReport

VERBS = ("check", "bench", "tune")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the verbs were told; one of two machines fails parity."""
    calls: list[Any] = []

    def answered(verb: str, folders: Any, address: str, **options: Any) -> MachinesReport:
        calls.append((verb, [str(folder) for folder in folders], address, options))
        report = ParityReport("FAIL", {}, {})
        fine = MachineResult("first", "a", "Processor", 2, 0, "", report)
        return MachinesReport(
            verb, 4, (fine, MachineResult("second", "a", "Other", 2, 4, "ort_cpu fails: why", report))
        )

    monkeypatch.setattr(machines, "on_machines", answered)
    return calls


@pytest.mark.parametrize("verb", VERBS)
def test_several_folders_need_a_cluster(verb: str) -> None:
    refused(call(verb, "a", "b"), "several folders go with --ray ADDRESS; got a, b")
    refused(call(verb, "--ray", "auto"), "Missing argument")


@pytest.mark.parametrize(
    "line",
    [
        "check a --junit x.xml",
        "check a --bisect",
        "check a --format github",
        "bench a --save x.json",
        "bench --compare a b",
        "bench a --fail-on-regression",
    ],
)
def test_what_is_about_a_result_of_this_machine_goes_without(line: str, told: list[Any]) -> None:
    option = next(word for word in line.split() if word.startswith("--"))
    refused(call(*line.split(), "--ray", "auto"), f"{option} goes without --ray")
    assert told == []


def test_each_machine_is_told_what_the_verb_would_be(told: list[Any]) -> None:
    call("check", "a", "b", "--ray", "here:1", "--runtime", "ort_cpu", "--timeout", "5", "--thorough", "--trust-source")
    ((verb, folders, address, options),) = told
    assert (verb, folders, address) == ("check", ["a", "b"], "here:1")
    assert options["runtimes"] == ("ort_cpu",)
    assert (options["timeout_s"], options["thorough"], options["trust_source"]) == (5.0, True, True)
    import inspect

    from attnport.verbs.check import check

    assert set(options) <= set(inspect.signature(check).parameters)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_an_argument_of_the_verb(verb: str, told: list[Any]) -> None:
    import importlib
    import inspect

    call(verb, "a", "--ray", "auto")
    function = getattr(importlib.import_module(f"attnport.verbs.{verb}"), verb)
    assert set(told[0][3]) <= set(inspect.signature(function).parameters)


def test_the_exit_code_is_that_of_the_worst_and_stderr_says_why(told: list[Any]) -> None:
    done = call("check", "a", "--ray", "auto", "--json")
    assert done.exit_code == 4
    assert "second, a: ort_cpu fails: why" in done.stderr
    assert [row["machine"] for row in json.loads(done.stdout)["results"]] == ["first", "second"]
    assert "second" in call("check", "a", "--ray", "auto").stdout
