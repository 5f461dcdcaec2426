"""Perplexity of a decoder, token by token with its cache, is that of PyTorch over whole texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoders import VOCABULARY, exported

from attnport.cases.inputs import Case
from attnport.errors import UsageError
from attnport.folder.workspace import open_folder, opened
from attnport.parity.scoring import Perplexity

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported("gpt2", tmp_path_factory.mktemp("gpt2"))


def texts(lengths: list[int]) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return [random.integers(0, VOCABULARY, length) for length in lengths]


def items(given: list[np.ndarray[Any, Any]]) -> list[Case]:
    feeds = [{"input_ids": text[None], "attention_mask": np.ones((1, len(text)))} for text in given]
    return [Case(f"text {at}", each, {}, "text") for at, each in enumerate(feeds)]


def test_it_is_that_of_pytorch(folder: Path) -> None:
    given = texts([*range(2, 40), 64])
    manifest = open_folder(folder)
    score = Perplexity(manifest.io, items(given))(opened(folder, manifest, "ort_cpu"))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder.parent / "weights", trust_remote_code=False)
    missed = 0.0
    for text in given:
        ids = torch.tensor(text[None])
        with torch.no_grad():
            missed += float(model(ids, labels=ids).loss) * (len(text) - 1)
    wanted = np.exp(missed / sum(len(text) - 1 for text in given))
    assert score.parts["perplexity"] == pytest.approx(wanted, rel=1e-4)
    assert score.value == -score.parts["perplexity"]


def test_padding_is_no_text(folder: Path) -> None:
    given, manifest = texts([30] * 10), open_folder(folder)
    session = opened(folder, manifest, "ort_cpu")
    padded = []
    for at, text in enumerate(given):
        ids, mask = np.zeros((1, 40), np.int64), np.zeros((1, 40), np.int64)
        ids[0, 10:], mask[0, 10:] = text, 1
        padded.append(Case(f"text {at}", {"input_ids": ids, "attention_mask": mask}, {}, "text"))
    assert Perplexity(manifest.io, padded)(session) == Perplexity(manifest.io, items(given))(session)


def test_too_few_tokens_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="got 30 tokens behind others"):
        Perplexity(open_folder(folder).io, items(texts([31])))
