"""Token by token beside other tools: milliseconds of a step behind contexts of several lengths.

Each side is a process of its own on as many cores as threads, and is started several times. In each start every side
runs a prompt of random ids, and then in each round, in random order, a few steps behind it; a step's time is the median
of a round's. Sides are compared within a class of accuracy: float32, half precision, weights of 4 bits. The interval of
the ratio of attnport's quickest form to the quickest peer is Student's over the starts. All sides in float32 must find
the same tokens as PyTorch; of the others the share is told.

    python benchmarks/decode.py [--only gpt2] [--starts 5] [--rounds 2] [--threads 1 --threads 2] [--json FILE] [--docs]

It needs what `make bench-env` sets up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from beside.models import code_digest
from beside.page import PICTURES, replace_section
from beside.side import CACHE, PEERS, ROOT, Named, Side, SideFailed, adapter, folder_of

from attnport.artifacts import IntegerPlan, Score
from attnport.exporter.precision import integers
from attnport.exporter.targets import base as lowerings
from attnport.folder.machine import machine, versions
from attnport.latency.statistics import ratio_interval
from attnport.verbs.fuse import fuse_form

TARGETS = ("ort_cpu", "openvino")
STEPS = 8
"""In each round."""
SIDES = (
    Named("torch_eager", "fp32", "fp32"),
    Named("optimum_onnx", "", "fp32"),
    Named("optimum_onnx", "binding", "fp32"),
    Named("onnxruntime_genai", "fp32", "fp32"),
    Named("openvino_genai", "fp32", "fp32"),
    Named("attnport", "ort_cpu", "fp32"),
    Named("attnport", "openvino", "fp32"),
    Named("llama_cpp", "f16", "half"),
    Named("torch_eager", "bf16", "half"),
    Named("openvino_genai", "bf16", "half"),
    Named("attnport", "openvino.bf16", "half"),
    Named("llama_cpp", "q4_0", "int4"),
    Named("onnxruntime_genai", "int4", "int4"),
    Named("openvino_genai", "int4", "int4"),
    Named("attnport", "ort_cpu.int4", "int4"),
    Named("attnport", "openvino.int4", "int4"),
)
WORDS = {"fp32": "float32", "half": "half precision", "int4": "weights of 4 bits"}
"""The classes of accuracy. On processors without bf16 attnport has no form in half precision."""
_PICTURE, _TITLE = "decode.svg", "A step of attnport, divided by that of the fastest peer"
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
         "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 2304},
        ((128, 1), (128, 8), (2048, 1)),
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
        targets = [word for name in TARGETS for word in ("--target", name)]
        halves = ["fuse", str(ours), "--target", "openvino", "--precision", "bf16"]
        export = ["export", f"hf:{weights}", "-o", str(ours), "--with-past"]
        for command in (export, ["fuse", str(ours), *targets], halves):
            subprocess.run([sys.executable, "-m", "attnport.cli", *command], check=True, cwd=ROOT)
        for target in TARGETS:
            _write_int4(ours, target)
        (ours / ".made").touch()
    return {"name": f"decode-{name}", "folder": str(weights), "ours": str(ours), "vocabulary": config.vocab_size}


def _write_int4(folder: Path, target: str) -> None:
    """The form that `tune` writes, with every layer in 4 bits; of random weights there is no metric."""
    nothing = Score(0.0)
    found = IntegerPlan(4, "none", nothing, nothing, 1.0, 0, (), 0.0, (0, 0), 0, "")

    def rewrite(model: Any, kept: Collection[str]) -> None:
        integers.write_int4(model, integers.pack_all(model), kept)

    fuse_form(folder, lowerings.get(target), "int4", found, rewrite, force=True, progress=lambda message: None)


def opened(side: Named, told: dict[str, Any], threads: int) -> Side:
    """A side's process, after its conversion."""
    if hasattr(adapter(side.peer), "make") and not (folder_of(side, told) / ".made").exists():
        maker = Side(side, told, threads)
        try:
            maker.make()
        finally:
            maker.close()
    return Side(side, told, threads)


@dataclass
class Taken:
    """What the sides of a class took for one work: nanoseconds of each round, of every start's prompt, and tokens."""

    steps: dict[Named, list[int]] = field(default_factory=dict)
    prompts: dict[Named, list[int]] = field(default_factory=dict)
    shares: dict[Named, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def measure(decoder: Decoder, told: dict[str, Any], starts: int, rounds: int, threads: int) -> dict[str, Any]:
    """Returns each side's milliseconds and the ratios, by context and batch. What fails in a start is listed as failed.

    The sides of one class are open together, those of another after them: all at once would not fit into memory.
    """
    found: dict[str, Any] = {}
    truth: dict[tuple[int, int], Any] = {}
    for precision in WORDS:
        taken = {work: Taken() for work in decoder.works}
        for start in range(starts):
            _start([one for one in SIDES if one.precision == precision], told, threads, taken, rounds, truth, start)
        for work, of_work in taken.items():
            row = _row(of_work, [rounds] * starts, precision)
            of_all = found.setdefault("context {}, batch {}".format(*work), {})
            for key, value in row.items():
                of_all[key] = of_all.get(key, {}) | value
            print(work, precision, json.dumps(row), flush=True)
    return found


def _start(
    sides: list[Named], told: dict[str, Any], threads: int, taken: dict[tuple[int, int], Taken], rounds: int,
    truth: dict[Any, Any], start: int,
) -> None:  # fmt: skip
    """Opens the sides of a class, and runs every work."""
    open_sides: dict[Named, Side] = {}
    try:
        for named in sides:
            try:
                open_sides[named] = opened(named, told, threads)
            except SideFailed as err:
                for of_work in taken.values():
                    of_work.failed[str(named)] = str(err).replace(f"{ROOT}/", "")
        for work, of_work in taken.items():
            _work(open_sides, work, of_work, rounds, truth, start)
    finally:
        for side in open_sides.values():
            side.close()


def _work(
    sides: dict[Named, Side], work: tuple[int, int], taken: Taken, rounds: int, truth: dict[Any, Any], start: int
) -> None:
    """One work of the sides of a class; the tokens of PyTorch in float32 are kept in `truth`, by work."""
    tokens: dict[Named, list[Any]] = {one: [] for one in sides}
    failed = taken.failed
    random = np.random.default_rng(start)
    for turn in range(-2, rounds):  # a prompt, steps to warm up, and rounds
        for named in random.permutation(np.array(list(sides), dtype=object)):
            if str(named) in failed:
                continue
            context, count = (work[0], 1) if turn == -2 else (0, STEPS)
            try:
                step_ns, new = sides[named].decode(context, work[1], count)
            except SideFailed as err:
                failed[str(named)] = str(err)
                continue
            tokens[named] += new
            if turn == -2:
                taken.prompts.setdefault(named, []).append(step_ns[0])
            elif turn >= 0:
                taken.steps.setdefault(named, []).append(int(median(step_ns)))
    if SIDES[0] in sides:
        truth[work] = tokens[SIDES[0]]
    if not truth.get(work):
        raise SystemExit(f"PyTorch, whose tokens are those to find, did not run: {failed}")
    for named in (one for one in sides if str(one) not in failed):
        share = float((np.array(tokens[named]) == np.array(truth[work])).mean())
        taken.shares[named] = min(share, taken.shares.get(named, 1.0))
        if share < AGREEING and named.precision == "fp32":
            failed[str(named)] = f"{1 - share:.0%} of its tokens are others than PyTorch's"


def _row(taken: Taken, starts: list[int], precision: str) -> dict[str, Any]:
    """What is told of one work of a class."""
    steps = {one: ns for one, ns in taken.steps.items() if str(one) not in taken.failed}
    ratio = _ratio(steps, starts)
    return {
        "step_ms": {str(one): round(median(ns) / 1e6, 2) for one, ns in steps.items()},
        "prompt_ms": {str(one): round(median(taken.prompts[one]) / 1e6, 1) for one in steps},
        "tokens_of_pytorch": {str(one): round(share, 3) for one, share in taken.shares.items()},
        "ratios": {precision: ratio} if ratio else {},
        "failed": taken.failed,
    }


def _ratio(steps: dict[Named, list[int]], starts: list[int]) -> dict[str, Any] | None:
    """attnport's quickest form to the quickest peer; None where one of them is not there."""
    if {one.ours for one in steps} != {True, False}:
        return None
    ours, peer = (
        min((one for one in steps if one.ours == side), key=lambda one: median(steps[one])) for side in (True, False)
    )
    taken = ([[ns] for ns in steps[one]] for one in (ours, peer))
    low, middle, high = (round(bound, 3) for bound in ratio_interval(*taken, starts=starts))
    return {"ours": str(ours), "peer": str(peer), "ratio": middle, "interval": [low, high]}


def section(result: dict[str, Any]) -> str:
    """The Markdown."""
    lines = [f"Measured by `{result['command']}` on {result['machine']}, with "
             + ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "."]  # fmt: skip
    for name, works in result["models"].items():
        for precision, words in WORDS.items():
            sides = [one for one in SIDES if one.precision == precision
                     and any(str(one) in row["step_ms"] for row in works.values())]  # fmt: skip
            if not sides:
                continue
            heading = "| | " + " | ".join(map(str, sides)) + " | attnport to the fastest peer |"
            lines += ["", f"{DECODERS[name].said}, {words}, ms a step:", "", heading, "|-|" + "-|" * (len(sides) + 1)]
            for key, row in works.items():
                times = " | ".join(str(row["step_ms"].get(str(one), "-")) for one in sides)
                lines.append(f"| {key} | {times} | {_told(row['ratios'].get(precision))} |")
    reasons = {f"- {DECODERS[name].said}, {side}: {why}": None for name, works in result["models"].items()
               for row in works.values() for side, why in row["failed"].items()}  # fmt: skip
    if reasons:
        lines += ["", "Not measured:", *reasons]
    return "\n".join([*lines, "", f"![{_TITLE}](images/{_PICTURE})"])


def _told(ratio: dict[str, Any] | None) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(ratio["ratio"], *ratio["interval"]) if ratio else "-"


def picture(result: dict[str, Any]) -> str:
    """The ratios as an SVG file."""
    sys.path.append(str(ROOT / "docs"))
    from claims._ratios import ratios

    rows = {
        f"{name}, {key}, {WORDS[precision]}": (ratio["interval"][0], ratio["ratio"], ratio["interval"][1])
        for name, works in result["models"].items()
        for key, row in works.items()
        for precision, ratio in row["ratios"].items()
    }
    return ratios(rows, _TITLE)


def pinned() -> dict[str, str]:
    """The releases of the peers, which have environments of their own."""
    lines = [line for path in sorted(PEERS.glob("*.txt")) for line in path.read_text(encoding="utf-8").split()]
    found = dict(line.split("==") for line in lines)
    return {name: found[name] for name in ("optimum-onnx", "llama_cpp_python", "onnxruntime-genai", "openvino-genai")}


def main() -> None:
    """Measures, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(DECODERS))
    parser.add_argument("--starts", type=int, default=5, help="with three, intervals were as wide as a factor of four")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    threads = given.threads or [1]
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/decode.py", *(f"--only {name}" for name in given.only or ()),
                             f"--starts {given.starts} --rounds {given.rounds}",
                             *(f"--threads {count}" for count in threads)]),
        "machine": machine().cpu,
        "versions": {**versions(("torch", "onnxruntime", "openvino", "transformers")), **pinned()},
        "models": {},
    }  # fmt: skip
    for name in given.only or list(DECODERS):
        told = described(name, DECODERS[name])
        for count in threads:
            works = measure(DECODERS[name], told, given.starts, given.rounds, count)
            result["models"].setdefault(name, {}).update(
                {f"{work}, threads {count}": row for work, row in works.items()}
            )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.docs:
        (PICTURES / _PICTURE).write_text(picture(result), encoding="utf-8")
        replace_section("decode", section(result))


if __name__ == "__main__":
    main()
