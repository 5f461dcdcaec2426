"""MiniLM as WebAssembly, one thread: the forms of this project beside the file that transformers.js' own tools make.

The tokens of 32 sentences run in onnxruntime-web, in node. Each file runs in every schedule: sentences sorted by length
in batches of 1, 4, 8 and 32, and in those of our readers. The best of a side counts. Sides take turns in every round,
and ratios are of the same round. The time from a file to its first result, of one sentence, is measured beside. The
other file is optimum's export, of which transformers.js' converter makes its own.

    python benchmarks/web.py OUT --peer FOLDER [--rounds 15] [--json FILE]

OUT is an artifact of MiniLM with its forms, FOLDER what sentence-transformers' `save_pretrained` wrote with
`backend="onnx"`. It needs `make layouts-test`'s node packages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from attnport.folder.machine import machine
from attnport.onnx_walk import references
from attnport_bundle.batches import TOKENS, groups
from attnport_bundle.format.contract import Dim

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / ".cache" / "layouts" / "node" / "node_modules" / "onnxruntime-web"
FORMS = ("onnx", "onnx_18", "ort_cpu", "ort_cpu.int8")
PEER = "transformers.js"


def schedules(lengths: Sequence[int]) -> dict[str, list[list[int]]]:
    """The batches of each schedule, as places in the list."""
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    found = {f"sorted, {size}": [order[at : at + size] for at in range(0, len(order), size)] for size in (1, 4, 8, 32)}
    return found | {"like length": list(groups(lengths, TOKENS, Dim("batch", 1, 8, 64)))}


def best(runs: Sequence[dict[str, Any]], side: str) -> dict[str, Any]:
    """The schedule of a side with the smallest median."""
    own = [run for run in runs if run["side"] == side and run["schedule"]]
    return min(own, key=lambda run: statistics.median(run["ms"]))


def first(runs: Sequence[dict[str, Any]], side: str) -> dict[str, Any]:
    """From a side's file to its first result."""
    return next(run for run in runs if run["side"] == side and not run["schedule"])


def ratio(own: dict[str, Any], other: dict[str, Any]) -> tuple[float, list[float]]:
    """The median of the ratios of the rounds, and between which two nine tenths of them lie."""
    ratios = sorted(one / of for one, of in zip(own["ms"], other["ms"], strict=True))
    tail = len(ratios) // 20
    return round(statistics.median(ratios), 3), [round(ratios[tail], 3), round(ratios[-1 - tail], 3)]


def main(arguments: Sequence[str]) -> None:
    """Measures, prints and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(given.out / "tokenizer.json"))
    tokenizer.no_padding()
    sentences = (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()[:192:6]
    rows = [row.ids for row in tokenizer.encode_batch(sentences)]
    lengths = list(map(len, rows))
    sides: list[dict[str, Any]] = [{"name": PEER, "model": str(given.peer / "onnx" / "model.onnx"), "external": []}]
    for name in FORMS:
        if (model := given.out / f"model.{name}.onnx").is_file():
            external = sorted({str(model.with_name(each.location)) for each in references(model)})
            sides.append({"name": name, "model": str(model), "external": external})
    command = ["node", str(ROOT / "benchmarks" / "beside" / "web.mjs"), str(PACKAGE), str(given.rounds)]
    asked = json.dumps({"rows": rows, "sides": [{**side, "schedules": schedules(lengths)} for side in sides]})
    runs = json.loads(subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout)
    other = best(runs, PEER)
    table = []
    for side in sides:
        own, early = best(runs, side["name"]), first(runs, side["name"])
        of_calls, of_first = ratio(own, other), ratio(early, first(runs, PEER))
        table.append(
            {
                "side": side["name"],
                "schedule": own["schedule"],
                "median_ms": round(statistics.median(own["ms"]), 1),
                "ratio": of_calls[0],
                "nine_tenths": of_calls[1],
                "first_ms": round(statistics.median(early["ms"]), 1),
                "first_ratio": of_first[0],
                "first_nine_tenths": of_first[1],
            }
        )
        print(table[-1], flush=True)
    if given.json:
        real = round(sum(lengths) / (len(lengths) * max(lengths)), 3)
        version = json.loads((PACKAGE / "package.json").read_text("utf-8"))["version"]
        found = {"machine": machine().cpu, "onnxruntime_web": version, "rounds": given.rounds, "real_tokens": real}
        given.json.write_text(json.dumps({**found, "sides": table}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
