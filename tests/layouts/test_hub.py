"""`--layout hub`, read by those that it is for: vectors and scores are those of sentence-transformers in PyTorch.

text-embeddings-inference is NOT_RUN: it is a program that no package registry of Python or Node has. What it reads, by
its source, is `onnx/model.onnx`, `config.json`, `tokenizer.json`, and of the outputs `sentence_embedding` as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import text_artifact
from programs import HERE, ran

from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Vectors = np.ndarray[Any, Any]
ROUNDING = 1e-6
"""Of float32 in a vector of length 1; two texts differ by a hundred thousand times as much."""


def differs(got: Vectors, wanted: Vectors) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got - wanted).max())


def test_another_text_is_noticed(wanted: Vectors) -> None:
    assert differs(np.roll(wanted, 1, 0), wanted) > 1e5 * ROUNDING


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_sentence_transformers_gives_its_own_vectors(
    backend: str, sentence_transformers: Path, hub: Path, texts: list[str], wanted: Vectors, tmp_path: Path
) -> None:
    ran([sentence_transformers, HERE / "embed.py", hub, backend, tmp_path / "got.npy"], texts)
    assert differs(np.load(tmp_path / "got.npy"), wanted) < ROUNDING


def test_transformers_js_gives_the_vectors_of_sentence_transformers(
    node_modules: Path, hub: Path, texts: list[str], wanted: Vectors
) -> None:
    got = json.loads(ran(["node", HERE / "embed.mjs", node_modules, hub], texts))
    assert differs(np.asarray(got), wanted) < ROUNDING


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_cross_encoder_gives_its_own_scores(
    backend: str, sentence_transformers: Path, cross: tuple[Path, Path], tmp_path: Path
) -> None:
    source, laid_out = cross
    pairs = [["w1 w2", "w3"], ["w4", "w5 w6 w7"], ["w8", "w9"]]
    scores = []
    for folder, with_backend in ((source, "torch"), (laid_out, backend)):
        ran([sentence_transformers, HERE / "embed.py", folder, with_backend, tmp_path / "scores.npy"], pairs)
        scores.append(np.load(tmp_path / "scores.npy"))
    assert differs(scores[1], scores[0]) < ROUNDING
    assert len(set(scores[0].reshape(-1).tolist())) == 3


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small cross-encoder with random weights, and its layout."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("cross")
    source = folder / "source"
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=60, max_position_embeddings=40, num_labels=1, **sizes)
    torch.manual_seed(0)
    BertForSequenceClassification(config).eval().save_pretrained(source)
    text_artifact.write_tokenizer(source / "tokenizer.json")
    kind = {"tokenizer_class": "BertTokenizerFast", "model_max_length": 40, "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (source / "tokenizer_config.json").write_text(json.dumps(kind))
    (source / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder"}))
    export(f"hf:{source}", folder / "out")
    fuse(folder / "out", targets=["ort_cpu", "openvino"])
    check(folder / "out", ["ort_cpu", "openvino"])
    return source, bundle(folder / "out", folder / "hub", layout="hub", forms=["ort_cpu", "openvino"])
