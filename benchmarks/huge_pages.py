"""A step of decoding, and a short sentence, with weights in huge pages and without.

Where Linux gives huge pages (2 MB) only to programs that ask for them (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled), weights lie in pages of 4 kB, wherever there was room. A step reads all
of them once, and waits for their addresses. Each side is started several times, in turns with huge pages and without,
since every start finds other room; the ratio has a bootstrap interval over the starts.

    python benchmarks/huge_pages.py [--starts 6] [--json FILE] [--docs]

It needs what `make bench-env` sets up, and measures the Llama of benchmarks/decode.py, and BERT-base with one sentence
of 16 tokens, on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from beside.models import code_digest
from beside.page import replace_section
from beside.side import CACHE, HUGE_PAGES, ROOT, Named, Side
from decode import DECODERS, described

from attnport.folder.machine import machine, versions
from attnport.latency.statistics import ratio_interval

MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CONTEXT, STEPS, SENTENCES = 128, 24, 60
BERT, ENCODERS = "attnport.verbs.gpu.subjects:bert_base", ("ort_cpu", "openvino")
SIDES = (
    Named("attnport", "ort_cpu", "fp32"),
    Named("attnport", "ort_cpu.int4", "int4"),
    Named("attnport", "openvino", "fp32"),
    Named("attnport", "openvino.bf16", "half"),
    Named("attnport", "openvino.int4", "int4"),
    Named("onnxruntime_genai", "fp32", "fp32"),
    Named("llama_cpp", "f16", "half"),
)


def bert() -> Path:
    """A folder with BERT-base, random weights, and its forms."""
    folder = CACHE / "huge-bert" / code_digest()
    if not (folder / ".made").exists():
        targets = [word for name in ENCODERS for word in ("--target", name)]
        for command in (["export", BERT, "-o", str(folder)], ["fuse", str(folder), *targets]):
            subprocess.run([sys.executable, "-m", "attnport.cli", *command], check=True, cwd=ROOT)
        (folder / ".made").touch()
    return folder


def sentences(folder: Path, form: str) -> int:
    """Nanoseconds of a sentence of 16 tokens, the median in this process."""
    from attnport.folder.opened import opened
    from attnport.folder.workspace import open_folder

    manifest = open_folder(folder)
    session = opened(folder, manifest, form, 1)
    ids = np.random.default_rng(0).integers(5, 1000, (1, 16))
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feeds = {spec.name: given[spec.name] for spec in manifest.io.inputs}
    taken = []
    for _ in range(SENTENCES):
        began = time.perf_counter_ns()
        session.run(feeds)
        taken.append(time.perf_counter_ns() - began)
    return int(median(taken[SENTENCES // 3 :]))


def one_encoder(folder: Path, form: str, huge: bool) -> int:
    """The same, of a process of its own."""
    command = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), sys.executable, __file__]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(HUGE_PAGES if huge else {})}
    done = subprocess.run(
        [*command, "--sentences", str(folder), form], check=True, env=environment, capture_output=True, text=True
    )
    return int(done.stdout.split()[-1])


def one_start(side: Named, told: dict[str, Any], huge: bool) -> int:
    """Nanoseconds of a step, the median of one process."""
    process = Side(side, told, 1, huge_pages=huge)
    try:
        process.decode(CONTEXT, 1, 1)
        process.decode(0, 1, STEPS // 3)  # to warm up
        return int(median(process.decode(0, 1, STEPS)[0]))
    finally:
        process.close()


def measure(starts: int) -> dict[str, Any]:
    """By side: milliseconds of a step or a sentence with and without, and the ratio."""
    told, folder = described("llama", DECODERS["llama"]), bert()
    ways = {f"a step, {side}": partial(one_start, side, told) for side in SIDES}
    ways |= {f"a sentence, attnport {form}": partial(one_encoder, folder, form) for form in ENCODERS}
    taken: dict[str, dict[bool, list[int]]] = {name: {True: [], False: []} for name in ways}
    random = np.random.default_rng(0)
    for _ in range(starts):
        for name, way in ways.items():
            for huge in random.permutation([True, False]).tolist():
                taken[name][huge].append(way(huge))
    rows = {}
    for name, found in taken.items():
        low, middle, high = ratio_interval([[ns] for ns in found[True]], [[ns] for ns in found[False]])
        rows[name] = {
            "without_ms": [round(ns / 1e6, 2) for ns in found[False]],
            "with_ms": [round(ns / 1e6, 2) for ns in found[True]],
            "ratio": round(middle, 3),
            "interval": [round(low, 3), round(high, 3)],
        }
        print(name, json.dumps(rows[name]), flush=True)
    return rows


def section(result: dict[str, Any]) -> str:
    """The Markdown."""
    (name, value), *_ = HUGE_PAGES.items()
    lines = [
        f"Measured by `{result['command']}` on {result['machine']}, where Linux's mode is `{result['mode']}`, with "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + f"; with huge pages is with `{name}={value}` in the environment.",
        "",
        "| | ms, least to most of the starts | with huge pages | ratio |",
        "|-|-|-|-|",
    ]
    for side, row in result["sides"].items():
        spans = (f"{min(row[key]):.1f} to {max(row[key]):.1f}" for key in ("without_ms", "with_ms"))
        ratio = "{:.2f} ({:.2f} to {:.2f})".format(row["ratio"], *row["interval"])
        lines.append(f"| {side} | {' | '.join(spans)} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--sentences", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sentences:
        print(sentences(Path(given.sentences[0]), given.sentences[1]))
        return
    mode = MODE.read_text(encoding="utf-8").partition("[")[2].partition("]")[0] if MODE.exists() else "none"
    result = {
        "command": f"python benchmarks/huge_pages.py --starts {given.starts}",
        "machine": machine().cpu,
        "mode": mode,
        "versions": versions(("onnxruntime", "openvino")),
        "sides": measure(given.starts),
    }
    print(section(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.docs:
        replace_section("huge pages", section(result))


if __name__ == "__main__":
    main()
