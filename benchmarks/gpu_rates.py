"""The rates that runtimes reach on a GPU, beside what it reaches at most.

    python benchmarks/gpu_rates.py PEAKS.json             measures the peaks, if the file is not there
    python benchmarks/gpu_rates.py PEAKS.json GPU.json    prints rates of what `attnport gpu-check --json` printed, too

The data sheet says what a chip could do; a runtime is compared with what this one does, at its clock and temperature:
the best square matrix product in each type, and a copy within the device's memory, in turns. TFLOP/s are of the matrix
products alone: projections, Q K^T, P V, feed-forward, the head. Of causal attention only what the mask allows is
counted, so a kernel that skips hidden tiles gains nothing by it. GB/s are of the least that a call can move: every
weight once, of embedding tables the rows that are looked up, inputs, outputs. What stays between layers is left out,
since how much of it leaves the chip is the runtime's doing.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from attnport.latency.gpu_state import gpu_state
from attnport.verbs._gpu_models import BERT, LLAMA

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
INT64_BYTES = 8
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SIZES, COPY_BYTES, ROUNDS = (2048, 4096, 8192), 1 << 30, 10
WARM_S = 1.0
"""Seconds of products before the first one that counts: an idle GPU takes about that long to raise its clocks."""
TOO_FAST = "TFLOP/s: more than the measured peak, so that was measured too low, or the clocks changed"
FROM_CACHE = "GB/s: more than a copy in the device's memory, so some of it may have come from the cache"


@dataclass(frozen=True)
class Work:
    """What one call has to do: operations of its matrix products, and the least that it reads and writes."""

    flops: int
    moved_bytes: int


def linear_flops(rows: int, inner: int, outer: int) -> int:
    """[rows, inner] times [inner, outer]."""
    return 2 * rows * inner * outer


def attention_flops(B: int, S: int, T: int, width: int, *, causal: bool = False) -> int:
    """Q K^T and P V of all heads, whose dims together are `width`; causal: the last query stands at the last key."""
    pairs = S * (T - S) + S * (S + 1) // 2 if causal else S * T
    return 4 * B * pairs * width


def bert(model: Mapping[str, int], sizes: Mapping[str, int], element_bytes: int) -> Work:
    """A BERT encoder on `batch` sequences of `seq` tokens; see `models.bert_encoder`."""
    B, S, E, F = sizes["batch"], sizes["seq"], model["width"], model["hidden"]
    tokens = B * S
    layer = 4 * linear_flops(tokens, E, E) + attention_flops(B, S, S, E) + 2 * linear_flops(tokens, E, F)
    weights = model["layers"] * (4 * E * (E + 1) + 2 * E * F + F + E + 4 * E) + 2 * E
    looked_up = 2 * tokens * E + S * E  # words and segments; positions are shared by the batch
    moved = element_bytes * (weights + looked_up + tokens * E) + 3 * INT64_BYTES * tokens
    return Work(model["layers"] * layer, moved)


def llama(model: Mapping[str, int], sizes: Mapping[str, int], element_bytes: int) -> Work:
    """A LLaMA decoder that reads `seq` new tokens behind `past` cached ones; see `models.llama_decoder`."""
    B, S, P, E, F = sizes["batch"], sizes["seq"], sizes["past"], model["width"], model["hidden"]
    tokens, grouped = B * S, model["groups"] * (E // model["heads"])
    projections = 2 * linear_flops(tokens, E, E) + 2 * linear_flops(tokens, E, grouped)
    layer = projections + attention_flops(B, S, P + S, E, causal=True) + 3 * linear_flops(tokens, E, F)
    weights = model["layers"] * (2 * E * E + 2 * E * grouped + 3 * E * F + 2 * E) + E + E * model["vocabulary"]
    cache = 2 * B * model["layers"] * grouped
    out = tokens * model["vocabulary"] + cache * S
    moved = element_bytes * (weights + tokens * E + cache * P + out) + INT64_BYTES * (tokens + B * P)
    return Work(model["layers"] * layer + linear_flops(tokens, E, model["vocabulary"]), moved)


WORK: Mapping[str, Callable[[Mapping[str, int], int], Work]] = {
    "bert_encoder": functools.partial(bert, BERT),
    "llama_decoder": functools.partial(llama, LLAMA),
}


def peaks(
    device: Any,
    plans: Sequence[str],
    sizes: Sequence[int] = SIZES,
    copy_bytes: int = COPY_BYTES,
    rounds: int = ROUNDS,
    warm_s: float = WARM_S,
) -> dict[str, Any]:
    """Measures the peaks: products of square matrices in each plan's type, and a copy, in turns; the best medians.

    Args:
        device: As `runtimes._torch_device.TorchDevice`.
        warm_s: Seconds of products before that.

    Returns:
        `per_s` by plan, and of the "copy", whose bytes read and bytes written both count; the `samples_ns` that they
        stand on; and the state of the warm GPU before the first round and after the last one, or why it is not known.
    """
    import torch

    with torch.inference_mode():
        works: dict[tuple[str, int], Callable[[], object]] = {}
        for plan, size in itertools.product(plans, sizes):
            dtype = getattr(torch, DTYPES[plan])
            a, b = (torch.randn(size, size, device=device.kind).to(dtype) for _ in range(2))
            works[plan, size] = functools.partial(torch.matmul, a, b, out=torch.empty_like(a))
        source = torch.ones(copy_bytes, device=device.kind, dtype=torch.uint8)
        works["copy", copy_bytes] = functools.partial(torch.empty_like(source).copy_, source)
        until_s = time.monotonic() + warm_s
        while time.monotonic() < until_s:
            for (plan, _), work in works.items():
                if plan != "copy":
                    work()
            device.wait()
        times: dict[tuple[str, int], list[int]] = {key: [] for key in works}
        before = gpu_state()
        for number in range(rounds + 1):
            for key, work in works.items():
                began = device.mark()
                work()
                ended = device.mark()
                device.wait()
                if number:  # the first round loads kernels
                    times[key].append(max(1, device.ns_between(began, ended)))
        after = gpu_state()
    amounts = {key: 2 * key[1] if key[0] == "copy" else 2 * key[1] ** 3 for key in works}
    best: dict[str, tuple[float, str]] = {}
    for key, amount in amounts.items():
        rate = amount / (median(times[key]) * 1e-9)
        best[key[0]] = max(best.get(key[0], (0.0, "")), (rate, str(key[1])))
    return {
        "per_s": {plan: rate for plan, (rate, _) in best.items()},
        "samples_ns": {f"{plan} {size}": samples for (plan, size), samples in times.items()},
        "gpu": [state or unknown for state, unknown in (before, after)],
    }


def rates(
    row: Mapping[str, Any], work: Work, plan: str, per_s: Mapping[str, float]
) -> tuple[str, str, list[str]] | None:
    """TFLOP/s and GB/s of a row in words, with their share of the peaks, and why a share above 1 cannot be right.

    The time is that of computing alone where events tell it, otherwise (`*`) that of the whole call with its copies.
    None for a row without a time.
    """
    device_ns = row.get("parts_ns", {}).get("device")
    ns = device_ns or row.get("median_ns")
    if not ns:
        return None
    cells, notes = [], []
    for amount, unit, peak, note in (
        (work.flops, 1e12, per_s.get(plan), TOO_FAST),
        (work.moved_bytes, 1e9, per_s.get("copy"), FROM_CACHE),
    ):
        rate = amount / (ns * 1e-9)
        share = f" {rate / peak:.0%}" if peak else ""
        wrong = bool(peak) and rate > peak
        cells.append(f"{rate / unit:.3g}{'' if device_ns else '*'}{share}{' (!)' if wrong else ''}")
        notes += [note] if wrong else []
    return cells[0], cells[1], notes


def clocks(states: Iterable[str]) -> set[int]:
    """The clocks in states of the GPU, in MHz; empty where they are not known."""
    return {int(found[1]) for state in states if (found := re.match(r"(\d+) MHz", state))}


def table(report: Mapping[str, Any], per_s: Mapping[str, float], states: Sequence[str] = ()) -> list[str]:
    """A line for each call and runtime of the report, and notes.

    Args:
        per_s, states: Of `peaks`: its `per_s`, and its states of the GPU.
    """
    lines, notes, other_clocks = [], dict[str, None](), []
    of_peaks = clocks(states)
    for key, piece in report["pieces"].items():
        model, _, plan = key.partition(" ")
        latency = piece["latency"] or {"shapes": {}}
        for call, rows in latency["shapes"].items():
            settings = latency.get("settings", {})
            of_call = clocks(str(settings.get(f"gpu {when} {call}", "")) for when in ("before", "after"))
            if of_peaks and of_call and of_call != of_peaks:
                own, others = (" and ".join(map(str, sorted(each))) for each in (of_call, of_peaks))
                other_clocks.append(f"{key} {call}: at {own} MHz, the peaks at {others} MHz: shares are of two clocks")
            sizes = {dim: int(size) for dim, size in (part.split("=") for part in call.split(","))}
            work = WORK[model](sizes, ELEMENT_BYTES[plan])
            for name, row in rows.items():
                if found := rates(row, work, plan, per_s):
                    lines.append(f"{key:20} {call:24} {name:32} {found[0]:>18} {found[1]:>18}")
                    notes |= dict.fromkeys(found[2])
    head = f"{'':20} {'':24} {'':32} {'TFLOP/s':>18} {'GB/s':>18}"
    return [head, *lines, *(f"(!): {note}" for note in notes), *other_clocks, "*: of the whole call with its copies"]


def main() -> None:
    """Measures peaks where there are none, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peaks", type=Path, help="measured and written where it is not there")
    parser.add_argument("report", type=Path, nargs="?", help="what gpu-check --json printed")
    given = parser.parse_args()
    if not given.peaks.exists():
        from attnport.runtimes._torch_device import TorchDevice

        device = TorchDevice()
        plans = ("fp16", "bf16") if device.bf16 else ("fp16",)
        given.peaks.write_text(json.dumps({"device": device.name, **peaks(device, plans)}, indent=1) + "\n")
    found = json.loads(given.peaks.read_text())
    print(f"{found['device']}: {'; '.join(found['gpu'])}")
    for plan, rate in found["per_s"].items():
        print(f"measured peak: {rate / 1e9:.4g} GB/s (a copy)" if plan == "copy" else
              f"measured peak: {plan} {rate / 1e12:.3g} TFLOP/s")  # fmt: skip
    if given.report:
        print("\n".join(table(json.loads(given.report.read_text()), found["per_s"], found["gpu"])))


if __name__ == "__main__":
    main()
