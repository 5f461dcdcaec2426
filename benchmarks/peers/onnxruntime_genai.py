"""onnxruntime-genai: its model builder for CPU, float32 or weights of 4 bits in blocks of 32, and its generator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT = "genai"
VARIANTS: dict[str, str] = {}
"""Of encoders: there are none."""
MORE_TOKENS = 64
"""Places for new tokens in its buffers."""


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Writes the model by its builder."""
    # Level 4 computes in int8, which is the quickest.
    options = ["int4_block_size=32", "int4_accuracy_level=4"] if variant == "int4" else []
    line = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        model["folder"],
        "-o",
        str(folder),
        "-p",
        variant,
    ]
    line += ["-e", "cpu", "-c", str(folder / "cache"), *(("--extra_options", *options) if options else ())]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])


def decoder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[int], Any]:
    """Its generator, which gives tokens: the token found has the only score above zero."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    config.overlay(f'{{"model": {{"decoder": {{"session_options": {{"intra_op_num_threads": {threads}}}}}}}}}')
    made = genai.Model(config)

    def begin(batch: int) -> Callable[[Any], Any]:
        state: dict[str, Any] = {}

        def step(ids: Any) -> Any:
            if not state:
                params = genai.GeneratorParams(made)
                length = ids.shape[1] + MORE_TOKENS
                params.set_search_options(batch_size=batch, max_length=length, min_length=length, do_sample=False)
                state["generator"] = genai.Generator(made, params)
                state["generator"].append_tokens(ids.astype(np.int32))
            state["generator"].generate_next_token()
            scores = np.zeros((batch, model["vocabulary"]), np.float32)
            scores[np.arange(batch), state["generator"].get_next_tokens()] = 1
            return scores

        return step

    return begin
