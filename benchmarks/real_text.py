"""Sentences of different lengths: attnport's forms beside PyTorch and plain exports, each in its best schedule.

One process, one thread, calls of all sides in a random order. A side may run a batch padded to its longest sentence,
one sentence at a time, or in groups of 2 to 16 of like length with the results put back in order; its best median
counts. Tokenising is not timed. Peers run the module itself, or `model.onnx`, the graph as torch exported it.

    python benchmarks/real_text.py --artifact out/minilm [--seconds 170] --json benchmarks/real_text.json --docs
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from attnport.artifacts import Manifest
from attnport.cases.text import read_sentences
from attnport.folder.loading import load
from attnport.folder.machine import machine
from attnport.folder.workspace import open_folder
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport_bundle.text import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
GROUPS = (2, 4, 8, 16)
Feeds = Mapping[str, np.ndarray[Any, Any]]
Run = Callable[[Feeds], Mapping[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class Work:
    """Sentences as their token ids, or items of one length."""

    name: str
    rows: tuple[tuple[int, ...], ...]

    @property
    def share(self) -> float:
        """Real tokens of all places of a padded batch."""
        return sum(map(len, self.rows)) / (len(self.rows) * max(map(len, self.rows)))


def works(manifest: Manifest, folder: Path) -> list[Work]:
    """Ragged batches of real sentences, and dense ones."""
    tokenizer = Tokenizer(folder / str(manifest.tokenizer), manifest.io)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(map(int, tokenizer.encode([text])["input_ids"][0]))

    sentences = read_sentences(ROOT / "examples" / "sentences.txt")
    single = [ids(text) for text in sentences]
    joined = [ids(" ".join(sentences[at : at + 3])) for at in range(0, 96, 3)]
    random = np.random.default_rng(0)
    short = [single[at] for at in random.permutation(len(single)) if len(single[at]) <= 60]
    long = sorted(joined, key=len)
    words = [token for row in single for token in row[1:-1]]

    def dense(batch: int, length: int) -> Work:
        rows = tuple(tuple(words[at * length : (at + 1) * length]) for at in range(batch))
        return Work(f"dense {batch}x{length}", rows)

    ragged = [Work("32 sentences", (*short[:31], long[-1])), Work("32 passages", (*joined[:31], long[-1]))]
    return [*ragged, dense(1, 16), dense(1, 128), dense(8, 128), dense(1, 512)]


def padded(rows: Sequence[tuple[int, ...]], names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs of a batch, padded at the right."""
    shape = len(rows), max(map(len, rows))
    feeds = {name: np.zeros(shape, np.int64) for name in names}
    for at, row in enumerate(rows):
        feeds["input_ids"][at, : len(row)] = row
        feeds["attention_mask"][at, : len(row)] = 1
    return feeds


def schedules(work: Work, names: Sequence[str]) -> dict[str, list[tuple[list[int], Feeds]]]:
    """Each way to cut a batch into calls: the places of a call's rows, and its inputs."""
    order = sorted(range(len(work.rows)), key=lambda at: len(work.rows[at]))
    found = {"padded": [list(range(len(order)))]}
    if work.share < 1:
        found["one at a time"] = [[at] for at in order]
        found |= {f"groups of {size}": [order[at : at + size] for at in range(0, len(order), size)] for size in GROUPS}
    return {
        name: [(places, padded([work.rows[at] for at in places], names)) for places in calls]
        for name, calls in found.items()
    }


def embed(run: Run, calls: Sequence[tuple[list[int], Feeds]], output: str) -> np.ndarray[Any, Any]:
    """The rows of an output in the order of the batch."""
    parts = [(places, run(feeds)[output]) for places, feeds in calls]
    first = parts[0][1]
    whole = np.empty((sum(len(places) for places, _ in parts), *first.shape[1:]), first.dtype)
    for places, part in parts:
        whole[places] = part
    return whole


def sides(folder: Path, manifest: Manifest) -> dict[str, Run]:
    """What is compared, ours first: name to a function from inputs to outputs."""
    found: dict[str, Run] = {}

    def add(name: str, runtime: str, model: Path, plan: str = "fp32") -> None:
        opening = Opening(manifest.io, plan=plan, model=model, threads=1)
        found[name] = base.get(runtime).open(opening).run

    plans = base.get("openvino").probe().plans
    add("attnport, ort_cpu", "ort_cpu", folder / manifest.forms["ort_cpu"].file)
    add("attnport, openvino", "openvino", folder / manifest.forms["openvino"].file)
    add("torch.onnx in ONNX Runtime", "ort_cpu", folder / "model.onnx")
    add("torch.onnx in OpenVINO", "openvino", folder / "model.onnx")
    spec = load(manifest.source.text)
    found["torch eager"] = base.get("torch_eager").open(Opening(manifest.io, spec=spec, threads=1)).run
    if "bf16" in plans:
        add("attnport, openvino bf16", "openvino", folder / manifest.forms["openvino"].file, "bf16")
        add("torch.onnx in OpenVINO, bf16", "openvino", folder / "model.onnx", "bf16")
        half = Opening(manifest.io, spec=spec, plan="bf16", threads=1)
        found["torch eager, bf16"] = base.get("torch_eager").open(half).run
    return found


def measure(work: Work, runs: Mapping[str, Run], names: Sequence[str], output: str, seconds: float) -> dict[str, Any]:
    """By side: the median of each schedule in ms, the best schedule, and the least cosine to PyTorch's float32."""
    ways = schedules(work, names)
    expected = embed(runs["torch eager"], ways["padded"], output)
    jobs = {
        (side, way): partial(embed, run, calls, output) for side, run in runs.items() for way, calls in ways.items()
    }
    cosines: dict[str, float] = {}
    once: dict[tuple[str, str], float] = {}
    for (side, way), job in jobs.items():
        began = time.perf_counter()
        got = job().astype(np.float64)
        once[side, way] = time.perf_counter() - began
        norms = np.linalg.norm(got, axis=-1) * np.linalg.norm(expected, axis=-1)
        cosines[side] = min(cosines.get(side, 1.0), float(((got * expected).sum(-1) / norms).min()))
    # A schedule that takes twice as long as the side's best is not measured further.
    best = {side: min(once[each] for each in jobs if each[0] == side) for side in runs}
    left = [each for each in jobs if once[each] < 2 * best[each[0]]]
    taken: dict[tuple[str, str], list[float]] = {each: [] for each in left}
    random, end = np.random.default_rng(0), time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, taken.values())) < 3:
        for at in random.permutation(len(left)):
            began = time.perf_counter()
            jobs[left[at]]()
            taken[left[at]].append(time.perf_counter() - began)
    found: dict[str, Any] = {}
    for side in runs:
        medians = {way: round(median(samples) * 1e3, 3) for (one, way), samples in taken.items() if one == side}
        way = min(medians, key=lambda each: medians[each])
        found[side] = {"ms": medians, "best": way, "samples": len(taken[side, way]), "cosine": round(cosines[side], 7)}
    return found


def ratio(found: Mapping[str, Any], half: bool) -> tuple[float, str, str]:
    """Our best against the fastest peer's, in float32 or in any precision."""
    times = {side: row["ms"][row["best"]] for side, row in found.items() if half or "bf16" not in side}
    ours = min((side for side in times if side.startswith("attnport")), key=lambda side: times[side])
    peer = min((side for side in times if not side.startswith("attnport")), key=lambda side: times[side])
    return times[ours] / times[peer], ours, peer


def table(result: Mapping[str, Any]) -> str:
    """The Markdown for docs/performance.md."""
    lines = [
        f"Measured by `{result['command']}` on {result['machine']}, one thread:",
        "MiniLM, real sentences, ms of a batch in each side's best schedule; last, the time of attnport's best in",
        "float32, and in any precision, divided by that of the fastest peer.",
        "",
    ]
    named = list(next(iter(result["works"].values()))["sides"])
    lines += [f"| | real tokens | {' | '.join(named)} | float32 | any |", "|-|-|" + "-|" * (len(named) + 2)]
    for name, row in result["works"].items():
        cells = [_cell(row["sides"][side]) for side in named]
        ratios = [f"{row[key]['ratio']:.2f}" for key in ("float32", "any")]
        lines.append(f"| {name} | {row['share']:.0%} | {' | '.join([*cells, *ratios])} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any]) -> str:
    taken = row["ms"][row["best"]]
    return f"{taken:.0f}" + ("" if row["best"] == "padded" else f" ({row['best']})") if taken >= 10 else f"{taken:.1f}"


def main() -> None:
    """Measures, prints a line for each comparison, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, required=True, help="a folder of MiniLM with ort_cpu and openvino")
    parser.add_argument("--seconds", type=float, default=170.0, help="of all measuring together")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    manifest = open_folder(given.artifact)
    names = [each.name for each in manifest.io.inputs]
    output = "sentence_embedding"
    runs = sides(given.artifact, manifest)
    command = f"python benchmarks/real_text.py --artifact FOLDER --seconds {given.seconds:.0f}"
    result: dict[str, Any] = {"command": command, "machine": machine().cpu, "works": {}}
    every = works(manifest, given.artifact)
    for work in every:
        found = measure(work, runs, names, output, given.seconds / len(every))
        row: dict[str, Any] = {"share": round(work.share, 3), "sides": found}
        for key, half in (("float32", False), ("any", True)):
            value, ours, peer = ratio(found, half)
            row[key] = {"ratio": round(value, 4), "ours": ours, "peer": peer}
            print(f"{work.name}, {work.share:.0%} real, {key}: {value:.2f} ({ours}: {found[ours]['best']}; "
                  f"{peer}: {found[peer]['best']})", flush=True)  # fmt: skip
        result["works"][work.name] = row
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.docs:
        begin, end = "<!-- real text: begin -->", "<!-- real text: end -->"
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
        PAGE.write_text(f"{head}{begin}\n{table(result)}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
