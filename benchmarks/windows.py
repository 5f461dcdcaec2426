"""Steps of a decoder whose layers have a sliding window: caches of what can be seen, beside caches of all tokens.

Both sides are one artifact, of Mistral's shape with 4 layers of 512 features and a window of 256 tokens, or of Gemma
3's, where every second layer has one. That its caches may let tokens go is in the contract; for the other side it is
taken out, so that `generate` keeps all. A round runs a few steps of each side behind each context, in random order.

    python benchmarks/windows.py [--kind mistral] [--rounds 9] [--threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from attnport.decoders import roles_in
from attnport.folder.machine import machine
from attnport.folder.workspace import open_folder, opened
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle.decoding.caches import Decoding, steps_of

RUNTIMES = ("ort_cpu", "openvino")
CONTEXTS = (512, 2048, 8192)
PART = 512
"""The tokens of a prompt that are run at once."""
STEPS = 16
"""In each round."""
LINE = "{kind} {runtime} behind {context}: {seen_ms:.2f} ms of {all_ms:.2f}, caches of {seen_mb:.2f} MB of {all_mb:.2f}"
_SHAPE = {
    "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "sliding_window": 256, "max_position_embeddings": 16384,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mistral": ("MistralForCausalLM", "MistralConfig", _SHAPE),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {
        **_SHAPE, "layer_types": ["sliding_attention", "full_attention"] * 2,
    }),
}  # fmt: skip


def made(kind: str, folder: Path) -> Path:
    """The artifact of a decoder with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    model, config, said = KINDS[kind]
    getattr(transformers, model)(getattr(transformers, config)(**said)).eval().save_pretrained(folder / "weights")
    export(f"hf:{folder / 'weights'}", folder / "out", part="with-past")
    fuse(folder / "out", targets=list(RUNTIMES))
    return folder / "out"


def begun(session: Any, io: Any, context: int) -> Decoding:
    """A text of so many random tokens."""
    decoding = Decoding(lambda **feeds: session.run(feeds), io, roles_in(io), steps_of(session))
    ids = np.random.default_rng(0).integers(0, _SHAPE["vocab_size"], (1, context))
    for start in range(0, context, PART):
        part = ids[:, start : start + PART]
        decoding.push(part, np.ones(part.shape, dtype=bool))
    return decoding


def step_ns(decoding: Decoding) -> list[int]:
    """The time of each of some steps."""
    token, real, times = np.array([[7]]), np.ones((1, 1), dtype=bool), []
    for _ in range(STEPS):
        begin = time.perf_counter_ns()
        decoding.push(token, real)
        times.append(time.perf_counter_ns() - begin)
    return times


def measured(folder: Path, runtime: str, rounds: int, threads: int) -> Iterator[dict[str, float]]:
    """For each context the milliseconds of a step and the MB of its caches: what can be seen, beside all tokens."""
    manifest = open_folder(folder)
    window = manifest.io.window
    assert window is not None
    endless = dataclasses.replace(window, places=_SHAPE["max_position_embeddings"])
    whole = dataclasses.replace(manifest.io, window=endless)
    session = opened(folder, manifest, runtime, threads)
    texts = {(side, context): begun(session, io, context)
             for context in CONTEXTS for side, io in (("seen", manifest.io), ("all", whole))}  # fmt: skip
    times: dict[tuple[str, int], list[float]] = {which: [] for which in texts}
    for decoding in texts.values():
        step_ns(decoding)
    for _ in range(rounds):
        for which in random.sample(list(texts), len(texts)):
            times[which].append(median(step_ns(texts[which])) / 1e6)
    for context in CONTEXTS:
        seen, every = (median(times[side, context]) for side in ("seen", "all"))
        seen_mb, every_mb = (sum(decoding.cache(spec.name).nbytes for spec, _, _ in decoding.roles.caches) / 1e6
                             for decoding in (texts["seen", context], texts["all", context]))  # fmt: skip
        yield {"context": context, "seen_ms": seen, "all_ms": every, "seen_mb": seen_mb, "all_mb": every_mb}


def main() -> None:
    """Prints a line for each model, runtime and context, and writes them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for kind in options.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            artifact = made(kind, Path(folder))
            for runtime in RUNTIMES:
                for row in measured(artifact, runtime, options.rounds, options.threads):
                    rows.append({"kind": kind, "runtime": runtime, **row})
                    print(LINE.format(**rows[-1]), flush=True)
    if options.json:
        found = {"rounds": options.rounds, "threads": options.threads, "machine": machine().cpu, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
