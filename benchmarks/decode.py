"""Token by token beside other tools: milliseconds of a step behind contexts of several lengths.

Each side is a process of its own on one core. In each round every side, in random order, runs a prompt of random ids
and a few steps behind it; a step's time is the median of those. The ratio of attnport's quickest form to the quickest
peer has a bootstrap interval over the rounds. All sides must find the same tokens as PyTorch.

    python benchmarks/decode.py [--only gpt2] [--rounds 6] [--threads 1] [--json FILE] [--docs]

It needs what `make bench-env` sets up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from beside.models import code_digest
from beside.page import replace_section
from beside.side import CACHE, ROOT, Named, Side, SideFailed, folder_of

from attnport.folder.machine import machine, versions
from attnport.latency.statistics import ratio_interval

STEPS = 16
SIDES = (
    Named("torch_eager", "fp32", "fp32"),
    Named("optimum_onnx", "", "fp32"),
    Named("optimum_onnx", "binding", "fp32"),
    Named("attnport", "ort_cpu", "fp32"),
    Named("attnport", "openvino", "fp32"),
)
AGREEING = 0.9
"""The least share of tokens that are those of PyTorch: rounding may turn a tie, after which a text goes another way."""


@dataclass(frozen=True)
class Decoder:
    """A model: what transformers calls it, its config, and the context and batch of each work."""

    said: str
    kind: str
    config: dict[str, Any]
    works: tuple[tuple[int, int], ...]


DECODERS = {
    "gpt2": Decoder("GPT-2, 124 million, random weights", "GPT2", {}, ((128, 1), (128, 8), (960, 1))),
    "llama": Decoder(
        "Llama's shape, 0.5 billion, random weights", "Llama",
        {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
         "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 2304}, ((128, 1), (2048, 1)),
    ),
}  # fmt: skip


def described(name: str, decoder: Decoder) -> dict[str, Any]:
    """What a side is told of a model; its weights, and attnport's artifact, are made if they are not there."""
    import torch
    import transformers

    base = CACHE / f"decode-{name}"
    weights, ours = base / "weights", base / f"attnport-{code_digest()}"
    config = getattr(transformers, f"{decoder.kind}Config")(bos_token_id=None, eos_token_id=None, **decoder.config)
    if not (weights / "config.json").exists():
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(weights)
    if not (ours / ".made").exists():
        for old in base.glob("attnport-*"):
            shutil.rmtree(old)
        targets = [word for side in SIDES if side.ours for word in ("--target", side.variant)]
        for command in (["export", f"hf:{weights}", "-o", str(ours), "--with-past"], ["fuse", str(ours), *targets]):
            subprocess.run([sys.executable, "-m", "attnport.cli", *command], check=True, cwd=ROOT)
        (ours / ".made").touch()
    return {"name": f"decode-{name}", "folder": str(weights), "ours": str(ours), "vocabulary": config.vocab_size}


def opened(side: Named, told: dict[str, Any], threads: int) -> Side:
    """A side's process, after its conversion."""
    if side.peer == "optimum_onnx" and not (folder_of(side, told) / ".made").exists():
        maker = Side(side, told, threads)
        try:
            maker.make()
        finally:
            maker.close()
    return Side(side, told, threads)


def measure(decoder: Decoder, told: dict[str, Any], rounds: int, threads: int) -> dict[str, Any]:
    """By context and batch: each side's milliseconds, and the ratio."""
    found: dict[str, Any] = {}
    open_sides = {side: opened(side, told, threads) for side in SIDES}
    try:
        for context, batch in decoder.works:
            key = f"context {context}, batch {batch}"
            found[key] = _work(open_sides, context, batch, rounds)
            print(key, json.dumps(found[key]), flush=True)
    finally:
        for side in open_sides.values():
            side.close()
    return found


def _work(sides: dict[Named, Side], context: int, batch: int, rounds: int) -> dict[str, Any]:
    steps: dict[Named, list[int]] = {}
    prompts: dict[Named, list[int]] = {}
    tokens: dict[Named, Any] = {}
    failed: dict[str, str] = {}
    random = np.random.default_rng(0)
    for turn in range(rounds + 1):  # the first warms up
        for at in random.permutation(len(SIDES)):
            named = SIDES[at]
            if str(named) in failed:
                continue
            try:
                taken, tokens[named] = sides[named].decode(context, batch, STEPS)
            except SideFailed as err:
                failed[str(named)] = str(err)
                continue
            if turn:
                steps.setdefault(named, []).append(int(median(taken[2:])))
                prompts.setdefault(named, []).append(taken[0])
    for named in list(steps):
        share = float((np.array(tokens[named]) == np.array(tokens[SIDES[0]])).mean())
        if share < AGREEING:
            failed[str(named)] = f"{1 - share:.0%} of its tokens are others than PyTorch's"
            del steps[named]
    ours, peer = (
        min((one for one in steps if one.ours == side), key=lambda one: median(steps[one])) for side in (True, False)
    )
    low, middle, high = ratio_interval([[ns] for ns in steps[ours]], [[ns] for ns in steps[peer]])
    return {
        "step_ms": {str(one): round(median(taken) / 1e6, 2) for one, taken in steps.items()},
        "prompt_ms": {str(one): round(median(prompts[one]) / 1e6, 1) for one in steps},
        "ours": str(ours), "peer": str(peer), "ratio": round(middle, 3), "interval": [round(low, 3), round(high, 3)],
        "failed": failed,
    }  # fmt: skip


def section(result: dict[str, Any]) -> str:
    """The Markdown."""
    lines = [f"Measured by `{result['command']}` on {result['machine']}, with "
             + ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "."]  # fmt: skip
    names = [str(side) for side in SIDES]
    for name, works in result["models"].items():
        lines += ["", f"{DECODERS[name].said}, float32, ms a step:", "",
                  "| | " + " | ".join(names) + " | attnport to the fastest peer |",
                  "|-|" + "-|" * (len(names) + 1)]  # fmt: skip
        for key, row in works.items():
            low, high = row["interval"]
            times = [str(row["step_ms"].get(one, "-")) for one in names]
            lines.append(f"| {key} | " + " | ".join(times) + f" | {row['ratio']:.2f} ({low:.2f} to {high:.2f}) |")
    return "\n".join(lines)


def main() -> None:
    """Measures, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(DECODERS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/decode.py", *(f"--only {name}" for name in given.only or ()),
                             f"--rounds {given.rounds} --threads {given.threads}"]),
        "machine": machine().cpu, "versions": versions(("torch", "onnxruntime", "openvino", "transformers")),
        "models": {},
    }  # fmt: skip
    for name in given.only or list(DECODERS):
        told = described(name, DECODERS[name])
        result["models"][name] = measure(DECODERS[name], told, given.rounds, given.threads)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.docs:
        replace_section("decode", section(result))


if __name__ == "__main__":
    main()
