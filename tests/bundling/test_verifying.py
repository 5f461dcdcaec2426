"""What `attnport verify` alone refuses in a manifest; what it refuses in a model is in `test_onnx_walk`."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from bundle_forms import UNRUN

from attnport.bundling.verifying import bounds, check, contradictions
from attnport_bundle.format.manifest import Bound, Goldens, from_bytes, read

MEASURED = {"case": "c", "output": "hidden", "rms_error": 1.0, "rms_bound": 2.0, "max_error": 1.0, "max_bound": 2.0}


def _form(found: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = found["forms"]["ort_cpu"]
    return made


def _unverified(found: dict[str, Any], **changes: Any) -> None:
    found["unverified"] = True
    _form(found)["proof"] = "graph-only"
    _form(found)["parity"] = UNRUN | {"verdict": "NOT_RUN", "graph": "NOT_RUN"} | changes


def _device(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda found: found["files"].update({name: found["files"]["weights.bin"]})


CLAIMS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "results of nothing": (lambda m: _unverified(m, results=[MEASURED]), "and yet has results"),
    "over its bound": (
        lambda m: _form(m)["parity"].update(results=[MEASURED | {"max_error": 2.1}]),
        "below zero or over its bound",
    ),
    "error below zero": (
        lambda m: _form(m)["parity"].update(results=[MEASURED | {"rms_error": -1}]),
        "below zero or over its bound",
    ),
    "more fused than there are": (lambda m: _form(m)["fusion"].update(fused=2), "got 2 of 1 fused"),
    "fewer items": (lambda m: _form(m)["fusion"].update(items=[]), "got 1 of 1 fused"),
    "fused and unproved": (lambda m: _form(m)["fusion"].update(proved_by=None), "nothing proved it"),
    "digest of code": (lambda m: m["provenance"].update(code_sha256="zz"), "digest of code or weights"),
    "opset of the source": (lambda m: m["provenance"].update(opset=0), "got opset 0"),
    "bound twice": (lambda m: m["goldens"]["bounds"].append(m["goldens"]["bounds"][0]), "a bound is there twice"),
    "bound of another plan": (lambda m: m["goldens"]["bounds"][0].update(plan="fp16"), "on one side only"),
    "bound of no output": (lambda m: m["goldens"]["bounds"][0].update(output="x"), "on one side only"),
    "plan without bounds": (lambda m: _form(m).update(plan="bf16"), "on one side only"),
}
FINE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "as it was made": lambda m: None,
    "an error at its bound": lambda m: _form(m)["parity"].update(results=[MEASURED | {"rms_error": 2.0}]),
    "unverified": lambda m: _unverified(m),
    **{name: _device(name) for name in ("console", "null.txt", "com", "com10", "auxiliary/x", "a.nul", "lptx")},
}


def _told(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> list[str]:
    found = json.loads((folder / "bundle.json").read_text())
    edit(found)
    return list(contradictions(from_bytes(json.dumps(found).encode(), "here")))


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_that_cannot_be_is_found(made_bundle: Path, name: str) -> None:
    edit, words = CLAIMS[name]
    (said,) = _told(made_bundle, edit)
    assert words in said


@pytest.mark.parametrize("name", FINE)
def test_what_may_be_is_no_contradiction(made_bundle: Path, name: str) -> None:
    assert _told(made_bundle, FINE[name]) == []


@pytest.mark.parametrize("name", ["CON", "nul.txt", "a/Aux", "com1.bin", "LPT9", "CONIN$", "nul .txt"])
def test_names_of_windows_devices_are_found(made_bundle: Path, name: str) -> None:
    (said,) = _told(made_bundle, _device(name))
    assert "Windows has a device" in said


def test_a_bundle_as_it_was_made_has_no_problem(made_bundle: Path) -> None:
    assert check(made_bundle, read(made_bundle)) == []


def test_a_tokenizer_that_cannot_be_read_is_found(made_bundle: Path, tmp_path: Path) -> None:
    app = Path(shutil.copytree(made_bundle, tmp_path / "app"))
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).to_str().encode()
    for data, problems in ((whole, []), (whole[:-9], ["tokenizer.json"])):
        (app / "tokenizer.json").write_bytes(data)
        found = json.loads((made_bundle / "bundle.json").read_text())
        found["tokenizer"] = {"file": "tokenizer.json", "chars": None}
        found["files"]["tokenizer.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = from_bytes(json.dumps(found).encode(), "here")
        assert [problem.name for problem in check(app, manifest)] == problems


@pytest.mark.parametrize("seed", range(40))
def test_bounds_are_compared_with_every_plan_case_and_output(seed: int) -> None:
    chance = random.Random(seed)
    names = [str(number) for number in range(3)]
    every = set(itertools.product(names, names, names))
    plans, outputs = set(chance.sample(names, 2)), chance.sample(names, 2)
    found = {place for place in every if place[0] in plans and place[2] in outputs}
    for place in chance.sample(sorted(every), chance.randrange(4)):
        found ^= {place}
    places = chance.sample(sorted(found), len(found))
    cases = {case for _, case, _ in found}
    wanted = {place for place in every if place[0] in plans and place[1] in cases and place[2] in outputs}
    goldens = Goldens("g.safetensors", tuple(Bound(case, output, plan, 0.0, 0.0) for plan, case, output in places))
    said = list(bounds(goldens, set(outputs), plans))
    if wanted == found:
        assert said == []
        return
    plan, case, output = min(wanted ^ found)
    assert len(said) == 1
    assert f"the bound of case '{case}', output '{output}', plan {plan} is on one side" in said[0]


def test_many_plans_and_cases_are_refused_without_making_every_pair() -> None:
    goldens = Goldens("g.safetensors", tuple(Bound(f"{number:05}", "y", "0000", 0.0, 0.0) for number in range(10_000)))
    start = time.process_time()
    (said,) = bounds(goldens, {"y"}, {f"{number:04}" for number in range(1000)})
    assert "case '00000', output 'y', plan 0001 is on one side" in said
    assert time.process_time() - start < 1  # every pair: a minute and 2 GB
