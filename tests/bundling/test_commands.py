"""Commands in a bundle's provenance tell how it was made, and nothing of where."""

from __future__ import annotations

import pytest
import tiny_attention as tiny

from attnport.artifacts import Source
from attnport.bundling.write import commands


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("bert_encoder", "bert_encoder"),
        ("package.module:factory", "package.module:factory"),
        ("hf:sentence-transformers/all-MiniLM-L6-v2", "hf:sentence-transformers/all-MiniLM-L6-v2"),
        ("hf:/" + "home/alice/models/mini", "hf:mini"),
        ("/" + "home/alice/model.py:make", "model.py:make"),
        ("~/private/model.py:make", "model.py:make"),
        ("~alice/private/model.py:make", "model.py:make"),
        ("../alice/model.py:make", "model.py:make"),
        ("./model.py:make", "model.py:make"),
        ("private/alice/model.py:make", "model.py:make"),
        ("C:\\Users\\alice\\model.py:make", "model.py:make"),
        ("hf:../alice/mini", "hf:mini"),
        ("hf:clients/acme/secret/model", "hf:model"),
        ("hf:models/acme/", "hf:acme"),
        ("hf:~alice/mini", "hf:mini"),
        ("hf:C:/mini", "hf:mini"),
        ("onnx:clients/acme/m.onnx", "onnx:m.onnx"),
        ("onnx:acme/m.onnx", "onnx:m.onnx"),
        ("models/acme/m.onnx", "m.onnx"),
        ("hf:acme/m.onnx", "hf:m.onnx"),
        ("secret client/x.py:f", "x.py:f"),
        ("clients\\secret client\\x.py:f", "x.py:f"),
    ],
)
def test_folders_are_cut_and_names_stay(source: str, told: str) -> None:
    assert Source(source).without_folders == told


def test_a_command_is_its_arguments_however_many_there_are() -> None:
    inputs = tuple(f"past_{index}=float32[batch,heads,past,64]" for index in range(30))
    source = Source("private/x.py:make", inputs=inputs, code_digest="c" * 64, weights_digest="d" * 64)
    (made,) = commands(tiny.manifest(source=source), [])
    assert made[:3] == ("attnport", "export", "x.py:make")
    assert made[3:-2] == tuple(part for one in inputs for part in ("--input", one))
    assert made[-2:] == ("-o", "out/")


def test_a_command_says_that_a_models_own_code_was_run() -> None:
    manifest = tiny.manifest(source=Source("hf:owner/name", trust_remote_code=True))
    assert commands(manifest, ())[0] == ("attnport", "export", "hf:owner/name", "--trust-remote-code", "-o", "out/")


def test_a_command_says_which_head_and_which_part_were_taken() -> None:
    manifest = tiny.manifest(source=Source("hf:owner/name", task="translation", part="decoder"))
    assert commands(manifest, ())[0][3:-2] == ("--task", "translation", "--part", "decoder")
