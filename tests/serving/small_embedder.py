"""A small embedder with random weights and MiniLM's tokenizer, as an artifact and as a bundle."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import pytest
from hf_folders import add_pooling, save_reader


def saved(folder: Path) -> Path:
    """Writes the model as sentence-transformers does."""
    return add_pooling(save_reader(folder), "mean", normalise=True)


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
