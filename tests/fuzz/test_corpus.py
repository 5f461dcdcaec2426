"""What the fuzzer once found interesting stays answered: every file of the corpora, without the fuzzer."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

import mutate
import pytest

from attnport_bundle.format import manifest

CORPUS = Path(__file__).parent / "corpus"
TARGETS = ("manifest", "external", "goldens")
SECONDS = 2


def one(target: str) -> Any:
    return importlib.import_module(f"fuzz_{target}").one


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_is_answered_without_a_crash_and_in_time(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert len(files) > 5
    for path in files:
        start = time.process_time()
        one(target)(path.read_bytes())
        assert time.process_time() - start < SECONDS, path


@pytest.mark.parametrize("target", TARGETS)
def test_the_fuzzer_starts_from_a_file_that_is_accepted(target: str) -> None:
    # Fails when the format changed and the seeds did not: run tests/fuzz/seeds.py.
    assert one(target)((CORPUS / target / "valid").read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_a_corpus_is_small(target: str) -> None:
    files = list((CORPUS / target).iterdir())
    assert len(files) <= 100
    assert sum(path.stat().st_size for path in files) < 1 << 20


def test_a_crash_of_the_reader_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(data: bytes, where: str) -> Any:
        raise KeyError(where)

    monkeypatch.setattr("fuzz_manifest.from_bytes", crash)
    with pytest.raises(KeyError):
        one("manifest")(b"{}")


def test_a_manifest_that_is_not_kept_as_it_was_read_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    seed, read = json.loads((CORPUS / "manifest" / "valid").read_bytes()), manifest.from_bytes
    other = json.dumps({**seed, "name": "other"}).encode()
    answers = iter((read(json.dumps(seed).encode(), ""), read(other, "")))
    monkeypatch.setattr("fuzz_manifest.from_bytes", lambda data, where: next(answers))
    with pytest.raises(AssertionError, match="as it was understood"):
        one("manifest")(b"{}")


def test_weights_that_onnx_sees_and_the_reader_does_not_are_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz_external.references", lambda path: [])
    with pytest.raises(AssertionError, match=r"onnx takes weights from \['weights.bin'\]"):
        one("external")((CORPUS / "external" / "valid").read_bytes())


@pytest.mark.parametrize("target", ["manifest", "goldens"])
def test_mutations_keep_the_form_and_change_something(target: str) -> None:
    data = (CORPUS / target / "valid").read_bytes()
    change = {"manifest": mutate.json_value, "goldens": mutate.safetensors_file}[target]
    changed = [change(data, 1 << 20, seed, lambda data, size: data[::-1]) for seed in range(40)]
    assert len(set(changed)) > 10
    assert sum(one(target)(each) for each in changed) < 20
    if target == "manifest":
        assert sum(json.loads(each) != json.loads(data) for each in changed if each[:1] == b"{") > 10


@pytest.mark.parametrize("data", [b"", bytes(7), bytes([200]) + bytes(20)], ids=["nothing", "short", "too long"])
def test_a_file_of_arrays_that_cannot_be_read_is_changed_as_bytes(data: bytes) -> None:
    """The fuzzer's own change must not end a run."""
    assert mutate.safetensors_file(data, 100, 0, lambda given, most: b"as bytes") == b"as bytes"
