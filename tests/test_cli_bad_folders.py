"""Artifact folders, profiles and feeds that are not what they should be, through the real command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from refusing import call, contents, refused

from attnport.artifacts import MANIFEST
from attnport.console.arguments import ABOUT
from attnport.console.terminal import render
from attnport.folder.workspace import why_none
from attnport.jsonfile import digest_file
from attnport.reporting import document as doc
from attnport.runtimes.ort_cpu import RUNTIME as ORT

FEW = ("--runtime", "ort_cpu")  # Input is refused whatever the runtimes are; to probe all of them takes seconds.


@pytest.mark.parametrize("verb", ["fuse", "check", "bench", "report", "verify", "inspect"])
def test_a_folder_that_is_no_artifact(verb: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(call(verb, tmp_path), "attnport.json" if verb != "inspect" else str(tmp_path))
    refused(call(verb, tmp_path / "nowhere"), "nowhere")
    assert contents(tmp_path).keys() == {"notes.txt"}


def test_commands_in_hints_and_tables_can_be_given_as_they_are(tmp_path: Path) -> None:
    nowhere = tmp_path / "it's nowhere"
    refused(call("fuse", nowhere), f"attnport export MODEL -o {shlex.quote(str(nowhere))}")
    refused(call("fuse", tmp_path / "my out", "--precision", "int3"), f"attnport build '{tmp_path}/my out' --target")
    held = ABOUT.set(Path("my out"))
    try:
        printed = render([doc.notes({"ort_cpu": why_none(ORT)})])
        assert "make it with: attnport fuse 'my out' --target ort_cpu" in " ".join(printed.split())
    finally:
        ABOUT.reset(held)


@pytest.mark.parametrize("verb", ["fuse", "check", "bench", "report", "verify", "inspect"])
@pytest.mark.parametrize("damage", ["cut", "empty", "edited", "another version"])
def test_a_damaged_manifest(verb: str, damage: str, tiny_artifact: Path) -> None:
    path = tiny_artifact / MANIFEST
    text = path.read_text()
    if damage == "another version":
        text = text.replace('"format": 1', '"format": 99')
    path.write_text(
        {"cut": text[:300], "empty": "", "edited": text.replace('"opset": 23', '"opset": "many"')}.get(damage, text)
    )
    before = contents(tiny_artifact)
    refused(call(verb, tiny_artifact), MANIFEST)
    assert contents(tiny_artifact) == before


@pytest.mark.parametrize(
    ("verb", "file"),
    [
        ("fuse", "model.onnx"),
        ("check", "model.ort_cpu.onnx"),
        ("check", "tokenizer.json"),
        ("bundle", "model.ort_cpu.onnx"),
    ],
)
def test_a_file_that_was_cut_short(verb: str, file: str, tiny_artifact: Path, tmp_path: Path) -> None:
    path = tiny_artifact / file
    path.write_bytes(path.read_bytes()[:-20])
    before = contents(tiny_artifact)
    more = ["-o", tmp_path / "app", "--unverified"] if verb == "bundle" else []
    result = call(verb, tiny_artifact, *more)
    refused(result, file, "digest differs", code=6)
    assert contents(tiny_artifact) == before
    assert not (tmp_path / "app").exists()


def test_a_manifest_that_names_files_outside(tiny_artifact: Path) -> None:
    path = tiny_artifact / MANIFEST
    path.write_text(path.read_text().replace('"file": "model.ort_cpu.onnx"', '"file": "../../model.onnx"'))
    refused(call("check", tiny_artifact), "../../model.onnx", "outside", code=6)


def test_a_manifest_that_uses_a_file_without_a_digest(tiny_artifact: Path) -> None:
    manifest = json.loads((tiny_artifact / MANIFEST).read_text())
    del manifest["files"]["model.ort_cpu.onnx"]
    (tiny_artifact / MANIFEST).write_text(json.dumps(manifest))
    for verb in ("check", "bench", "fuse", "verify"):
        refused(call(verb, tiny_artifact), "model.ort_cpu.onnx", "no digest of it", code=6)


def test_external_data_outside_the_folder(tiny_artifact: Path) -> None:
    import onnx

    secret = tiny_artifact.parent / "secret.bin"
    secret.write_bytes(b"\0" * 65536)
    model = onnx.load(tiny_artifact / "model.onnx")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    onnx.save(model, tiny_artifact / "model.onnx")
    manifest = json.loads((tiny_artifact / MANIFEST).read_text())
    manifest["files"]["model.onnx"] = digest_file(tiny_artifact / "model.onnx")
    (tiny_artifact / MANIFEST).write_text(json.dumps(manifest))
    result = call("fuse", tiny_artifact, "--target", "onnx")
    assert result.exit_code in (2, 6), result.output
    refused(result, "secret.bin", code=result.exit_code)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("seq=8:4:16", "min=8, opt=4, max=16"),
        ("seq=1:2", "cannot read 'seq=1:2'"),
        ("seq=1:16:49", "takes seq from 1 to 48"),
    ],
)
def test_a_profile_that_does_not_fit(profile: str, told: str, tiny_artifact: Path) -> None:
    before = contents(tiny_artifact)
    refused(call("build", tiny_artifact, "--target", "tensorrt-rtx", "--profile", profile), told)
    assert contents(tiny_artifact) == before


def test_targets_and_plans_that_there_are_not(tiny_artifact: Path) -> None:
    refused(call("build", tiny_artifact, "--target", "tensorflow"), "tensorrt_rtx")
    refused(call("build", tiny_artifact, "--target", "tensorrt_rtx", "--precision", "int3"), "int3", "fp16")
    refused(call("build", tiny_artifact, "--target", "tensorrt_rtx", "--sm", "12"), "12")
    refused(call("fuse", tiny_artifact, "--target", "tensorrt_rtx", "--precision", "int3"), "int3", "fp16")
    refused(call("check", tiny_artifact, "--runtime", "ort"), "runtime 'ort'", "ort_cpu")
    refused(call("bench", tiny_artifact, *FEW, "--shape", "batch=0"), "batch")
    refused(call("bench", tiny_artifact, *FEW, "--shape", "batch=2,seq=49"), "1 to 48")
    refused(call("bench", tiny_artifact, *FEW, "--threads", "0"), "--threads")


# What the contract refuses reaches the user; tests/test_dims.py has all that it refuses.
FEEDS = {
    "one missing": ({"input_ids": np.ones((2, 3), np.int64)}, ("'attention_mask' is missing",)),
    "a wrong dtype": (
        {"input_ids": np.ones((2, 3), np.int32), "attention_mask": np.ones((2, 3), np.int64)},
        ("'input_ids'", "got dtype int32", "expected int64"),
    ),
    "ids beyond the vocabulary": (
        {"input_ids": np.full((2, 3), 40), "attention_mask": np.ones((2, 3), np.int64)},
        ("'input_ids'", "got values 40 to 40", "expected 0 to 39"),
    ),
    "objects": ({"input_ids": np.array([{}]), "attention_mask": np.array([{}])}, ("feeds.npz", "pickle")),
}


@pytest.mark.parametrize("name", FEEDS)
def test_feeds_that_do_not_fit(name: str, tiny_artifact: Path, tmp_path: Path) -> None:
    feeds, told = FEEDS[name]
    np.savez(tmp_path / "feeds.npz", **feeds)  # type: ignore[arg-type]
    before = contents(tiny_artifact)
    refused(call("check", tiny_artifact, *FEW, "--inputs", tmp_path / "feeds.npz"), *told)
    assert contents(tiny_artifact) == before


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "an .npy", "a folder"])
def test_a_file_of_feeds_that_is_none(damage: str, tiny_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "feeds.npz"
    if damage == "empty":
        path.touch()
    elif damage == "text":
        path.write_text("input_ids = 3")
    elif damage == "cut":
        np.savez(path, input_ids=np.ones((2, 3), np.int64))
        path.write_bytes(path.read_bytes()[:-30])
    elif damage == "an .npy":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif damage == "a folder":
        path.mkdir()
    refused(call("check", tiny_artifact, *FEW, "--inputs", path), "feeds.npz")


@pytest.mark.parametrize("damage", ["missing", "empty", "not text", "a folder"])
def test_a_file_of_sentences_that_is_none(damage: str, tiny_artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "sentences.txt"
    if damage == "empty":
        path.write_text("\n \n")
    elif damage == "not text":
        path.write_bytes(b"\xff\xfe\x00\xd8")
    elif damage == "a folder":
        path.mkdir()
    for verb in ("check", "bench", "report"):
        refused(call(verb, tiny_artifact, "--text", path), "sentences.txt")
