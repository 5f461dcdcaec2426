"""The child process of a side: opens a peer in its own environment, keeps batches, and times itself.

    PYTHON _serve.py ADAPTER.py

One JSON object a line, in and out. `make` converts a model, once; `open` opens it; `work` reads batches from an .npz
file; `run` runs one and says the nanoseconds; `outputs` writes an .npz file with the rows in the order of the batch;
`memory` says the kilobytes. What fails is answered with `error`, and the process goes on. NumPy and the peer's own
packages are all that this needs. `embed` takes texts, where the adapter has an `embedder`; `decode` runs a prompt and
steps behind it, where it has a `decoder`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

# Adapters are named as what they import: this folder must not be on the path, that of their common parts must.
sys.path[0] = str(Path(__file__).resolve().parent / "common")
Array = np.ndarray[Any, Any]
Calls = list[tuple[Array, dict[str, Array]]]


def read_calls(path: Path) -> dict[str, Calls]:
    """Calls by schedule, of keys `SCHEDULE/NUMBER/INPUT`; the input `@places` says where the rows belong."""
    found: dict[str, dict[int, dict[str, Array]]] = {}
    with np.load(path, allow_pickle=False) as stored:
        for key in stored.files:
            schedule, number, name = key.split("/")
            found.setdefault(schedule, {}).setdefault(int(number), {})[name] = stored[key]
    return {
        schedule: [(feeds.pop("@places"), feeds) for _, feeds in sorted(calls.items())]
        for schedule, calls in found.items()
    }


def in_order(run: Callable[[dict[str, Array]], Array], calls: Calls) -> Array:
    """The rows of all calls, each at its place."""
    parts = [(places, run(feeds)) for places, feeds in calls]
    if len(parts) == 1 and (np.diff(parts[0][0]) == 1).all():
        return parts[0][1]
    first = parts[0][1]
    whole = np.empty((sum(len(places) for places, _ in parts), *first.shape[1:]), first.dtype)
    for places, part in parts:
        whole[places] = part
    return whole


def kilobytes(name: str) -> int:
    """`VmRSS` or `VmHWM` of this process."""
    found = re.search(rf"^{name}:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def limit_memory() -> None:
    """Who wants more than most of what is free now gets an error of its own, and nobody's process is killed."""
    free = re.search(r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if free:
        size = int(free[1]) * 1024 * 8 // 10
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


class Peer:
    """An adapter, and what it has opened."""

    def __init__(self, path: Path) -> None:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None  # noqa: PT018
        self.adapter = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.adapter)
        self.works: dict[str, dict[str, Calls]] = {}
        self.repeats: dict[str, int] = {}
        self.base_kb = 0
        self.run_texts: Callable[[list[Any], int], Any] | None = None
        self.begin: Callable[[int], Callable[[Array], Array]] | None = None

    def make(self, model: Mapping[str, Any], folder: str, variant: str) -> dict[str, Any]:
        """Converts the model, where the peer needs that."""
        self.adapter.make(model, Path(folder), variant)
        return {}

    def open(self, model: Mapping[str, Any], folder: str, variant: str, threads: int) -> dict[str, Any]:
        """Opens it; memory counts from here, after what it imports."""
        getattr(self.adapter, "imports", lambda: None)()
        limit_memory()
        self.base_kb = kilobytes("VmRSS")
        self.run_feeds = self.adapter.opened(model, Path(folder), variant, threads)
        return {}

    def work(self, work: str, file: str, repeats: int) -> dict[str, Any]:
        """Reads a work's batches."""
        self.works[work], self.repeats[work] = read_calls(Path(file)), repeats
        return {}

    def run(self, work: str, schedule: str) -> dict[str, Any]:
        """Nanoseconds from inputs to outputs in order. Of several runs the first is left out."""
        calls, taken = self.works[work][schedule], []
        for _ in range(self.repeats[work]):
            began = time.perf_counter_ns()
            in_order(self.run_feeds, calls)
            taken.append(time.perf_counter_ns() - began)
        return {"ns": int(median(taken[1:] or taken))}

    def outputs(self, work: str, schedule: str, file: str) -> dict[str, Any]:
        """Writes the outputs of a work, and says how long that run took."""
        began = time.perf_counter_ns()
        found = in_order(self.run_feeds, self.works[work][schedule])
        taken = time.perf_counter_ns() - began
        np.savez(file, output=np.asarray(found, np.float32))
        return {"ns": taken}

    def embed(self, model: Mapping[str, Any], folder: str, variant: str, threads: int, texts: str, batch: int,
              file: str) -> dict[str, Any]:  # fmt: skip
        """Nanoseconds from texts or pairs, of a JSON file, to vectors or scores; written, if a file is named."""
        if self.run_texts is None:
            self.run_texts = self.adapter.embedder(model, Path(folder), variant, threads)
        read = json.loads(Path(texts).read_text(encoding="utf-8"))
        began = time.perf_counter_ns()
        vectors = self.run_texts(read, batch)
        taken = time.perf_counter_ns() - began
        if file:
            from peer_search import rows

            np.savez(file, output=np.asarray(rows(vectors), np.float32))
        return {"ns": taken}

    def decode(self, model: Mapping[str, Any], folder: str, variant: str, threads: int, context: int, batch: int,
               steps: int) -> dict[str, Any]:  # fmt: skip
        """Nanoseconds of each step of a text, and the likeliest tokens found.

        The text begins with a prompt of `context` random ids, which is its first step; with 0 it is the last one's,
        which goes on.
        """
        if self.begin is None:
            self.begin = self.adapter.decoder(model, Path(folder), variant, threads)
        if context:
            self.step = self.begin(batch)
            self.ids = np.random.default_rng(0).integers(0, model["vocabulary"], (batch, context))
        taken, found = [], []
        for _ in range(steps):
            began = time.perf_counter_ns()
            self.ids = self.step(self.ids).argmax(-1)[:, None]
            taken.append(time.perf_counter_ns() - began)
            found.append(self.ids[:, 0].tolist())
        return {"ns": taken, "tokens": found}

    def memory(self) -> dict[str, Any]:
        """The peak since the process began, and the level before opening."""
        return {"peak_kb": kilobytes("VmHWM"), "base_kb": self.base_kb}


def main() -> None:
    """Answers until the input ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer: Peer | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            peer = peer or Peer(Path(sys.argv[1]))
            told = getattr(peer, asked.pop("do"))(**asked)
        except Exception as err:
            traceback.print_exc()
            told = {"error": f"{type(err).__name__}: {err}"}
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
