"""Objects of the C++ reader that were moved from, and a machine without memory: each is one of its own errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cpp_builds import Build
from cpp_texts import changed


@pytest.fixture
def small_tokenizer(minilm_tokenizer: Path, tmp_path: Path) -> Path:
    """MiniLM's, with a vocabulary of its special tokens and one word."""

    def change(value: Any) -> None:
        vocabulary = value["model"]["vocab"]
        value["model"]["vocab"] = {
            word: vocabulary[word] for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the")
        }

    return changed(minilm_tokenizer, tmp_path, change)


def test_a_model_says_that_it_is_closed(made_bundle: Path, cpp_build: Build) -> None:
    done = cpp_build.run("moved_from", "model", made_bundle)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 the model is closed."] * 11 + ["ort_cpu ort_cpu"]


def test_a_tokenizer_says_that_it_was_moved_from(small_tokenizer: Path, cpp_build: Build) -> None:
    done = cpp_build.run("moved_from", "tokenizer", small_tokenizer)
    assert (done.returncode, done.stdout) == (0, "2 the tokenizer was moved from.\n1\n"), done.stderr


def test_without_memory_encoding_fails_with_an_error_of_the_library(small_tokenizer: Path, cpp_build: Build) -> None:
    done = cpp_build.run("moved_from", "memory", small_tokenizer)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr
