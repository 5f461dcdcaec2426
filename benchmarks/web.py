"""MiniLM as WebAssembly, one thread: the forms of this project beside the file that transformers.js' own tools make.

The tokens of 32 sentences run in onnxruntime-web, in node. Each file runs in every schedule: sentences sorted by length
in batches of 1, 4, 8 and 32, and in those of our readers. The best of a side counts. Sides take turns in every round,
and ratios are of the same round.

The first result is measured in Chromium, in a new process each time: from the request for the file, which the page gets
from this machine, to the numbers of one sentence. Here the sides are the files of layout `web` and transformers.js', in
`fp32` and, where OUT has it, `q8`.

    python benchmarks/web.py OUT --peer FOLDER [--rounds 15] [--first] [--json FILE]

OUT is an artifact of MiniLM with its forms, FOLDER what `benchmarks/beside/converted.py` made of the file that
sentence-transformers' `save_pretrained` writes with `backend="onnx"`. Packages of node are in a folder of NODE_PATH, as
for `attnport check --runtime ort_web`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from attnport.folder.machine import machine
from attnport.onnx_walk import references
from attnport.runtimes._javascript import package
from attnport.runtimes.ort_web import RUNTIME
from attnport.verbs.bundle import bundle
from attnport_bundle.batches import TOKENS, groups
from attnport_bundle.format.contract import Dim

ROOT = Path(__file__).resolve().parent.parent
FORMS = ("onnx", "onnx_18", "ort_cpu", "ort_cpu.int8")
PEER, OURS = "transformers.js", "layout web"
FILES = {"fp32": "model.onnx", "q8": "model_quantized.onnx"}


def schedules(lengths: Sequence[int]) -> dict[str, list[list[int]]]:
    """The batches of each schedule, as places in the list."""
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    found = {f"sorted, {size}": [order[at : at + size] for at in range(0, len(order), size)] for size in (1, 4, 8, 32)}
    return found | {"like length": list(groups(lengths, TOKENS, Dim("batch", 1, 8, 64)))}


def best(runs: Sequence[dict[str, Any]], side: str) -> dict[str, Any]:
    """The schedule of a side with the smallest median."""
    own = [run for run in runs if run["side"] == side]
    return min(own, key=lambda run: statistics.median(run["ms"]))


def first_ms(path: Path, ids: Sequence[int]) -> float:
    """From the request for a file to its first result, in a new process of Chromium."""
    process = RUNTIME.started({path.name: path})
    try:
        opened = RUNTIME.opened(process, path, (), 1)
        row = np.array([ids])
        feeds = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
        ran, _ = process.ask("run", feeds, outputs=["last_hidden_state"])
    finally:
        process.close()
    return float(opened["ms"]) + float(ran["ms"])


def firsts(folders: dict[str, Path], ids: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """What a page has to load of each side, and how long it takes to its first result."""
    dtypes = [dtype for dtype, name in FILES.items() if all((folder / name).is_file() for folder in folders.values())]
    runs = [{"side": side, "dtype": dtype, "ms": []} for dtype in dtypes for side in folders]
    for at in range(rounds + 1):  # the first is not counted
        for run in runs if at % 2 else runs[::-1]:
            ms = first_ms(folders[run["side"]] / FILES[run["dtype"]], ids)
            if at:
                run["ms"].append(ms)
    table = []
    for run in runs:
        other = next(each for each in runs if each["side"] == PEER and each["dtype"] == run["dtype"])
        median, between = ratio(run, other)
        size = (folders[run["side"]] / FILES[run["dtype"]]).stat().st_size
        table.append(
            {
                "side": run["side"],
                "dtype": run["dtype"],
                "bytes": size,
                "median_ms": round(statistics.median(run["ms"]), 1),
                "ratio": median,
                "nine_tenths": between,
            }
        )
        print(table[-1], flush=True)
    return table


def ratio(own: dict[str, Any], other: dict[str, Any]) -> tuple[float, list[float]]:
    """The median of the ratios of the rounds, and between which two nine tenths of them lie."""
    ratios = sorted(one / of for one, of in zip(own["ms"], other["ms"], strict=True))
    tail = len(ratios) // 20
    return round(statistics.median(ratios), 3), [round(ratios[tail], 3), round(ratios[-1 - tail], 3)]


def calls(out: Path, peer: Path, rows: Sequence[Sequence[int]], rounds: int) -> dict[str, Any]:
    """The time of all sentences, of each side in its best schedule."""
    lengths = list(map(len, rows))
    sides: list[dict[str, Any]] = [{"name": PEER, "model": str(peer / "onnx" / "model.onnx"), "external": []}]
    for name in FORMS:
        if (model := out / f"model.{name}.onnx").is_file():
            external = sorted({str(model.with_name(each.location)) for each in references(model)})
            sides.append({"name": name, "model": str(model), "external": external})
    command = ["node", str(ROOT / "benchmarks" / "beside" / "web.mjs"), str(package("onnxruntime-web")[0]), str(rounds)]
    asked = json.dumps({"rows": rows, "sides": [{**side, "schedules": schedules(lengths)} for side in sides]})
    runs = json.loads(subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout)
    other = best(runs, PEER)
    table = []
    for side in sides:
        own = best(runs, side["name"])
        median, between = ratio(own, other)
        table.append(
            {
                "side": side["name"],
                "schedule": own["schedule"],
                "median_ms": round(statistics.median(own["ms"]), 1),
                "ratio": median,
                "nine_tenths": between,
            }
        )
        print(table[-1], flush=True)
    return {"rounds": rounds, "real_tokens": round(sum(lengths) / (len(lengths) * max(lengths)), 3), "sides": table}


def main(arguments: Sequence[str]) -> None:
    """Measures, prints and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first", action="store_true", help="the first result alone; the rest of the JSON stays")
    given = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(given.out / "tokenizer.json"))
    tokenizer.no_padding()
    sentences = (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()[:192:6]
    rows = [row.ids for row in tokenizer.encode_batch(sentences)]
    found = {"machine": machine().cpu, "onnxruntime_web": package("onnxruntime-web")[1]}
    if given.first:
        found = json.loads(given.json.read_text("utf-8")) if given.json else {}
    else:
        found |= calls(given.out, given.peer, rows, given.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        forms = [name for name in ("ort_cpu", "ort_cpu.int8") if (given.out / f"model.{name}.onnx").is_file()]
        laid = bundle(given.out, Path(scratch, "laid"), layout="web", forms=forms)
        first = firsts({PEER: given.peer / "onnx", OURS: laid / "onnx"}, rows[0], given.rounds)
    found["first_result"] = {"rounds": given.rounds, "sides": first}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
