"""Many sentences through `embed` of a bundle, beside batches of 32 in the order they come: speed and memory.

Each run is a process of its own, one thread; the sides take turns. Then 10,000 texts, every fortieth of many words,
under a limit of memory: the peak of the process has to be within it, and vectors those of one text alone.

    python benchmarks/embed_many.py --bundle app [--texts 2400] [--runs 3] --json benchmarks/embed_many.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from attnport.folder.machine import machine
from attnport_bundle.memory import limit_bytes

ROOT = Path(__file__).resolve().parent.parent
IN_ORDER = 0
"""Stands for batches of 32 in order, among budgets of places."""
PROGRAM = """
import json, random, resource, sys, time
sys.path.append(sys.argv[1] + "/python")
import numpy as np
from attnport_bundle import Tokenizer, load

bundle, sentences, form, limit = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[6]
tokens, count = int(sys.argv[4]), int(sys.argv[5])
random.seed(0)
words = [line.split() for line in open(sentences, encoding="utf-8")]
texts = [" ".join(random.sample(line, random.randint(min(3, len(line)), len(line)))) for line in words * 99][:count]
if limit:
    for at in range(0, count, 40):
        texts[at] = " ".join(random.choice(words)[0] for _ in range(random.randint(50, 450)))
random.shuffle(texts)
with load(bundle, form=form, threads=1) as model:
    tokenizer = Tokenizer(bundle + "/tokenizer.json", model.io)
    model.run(**tokenizer.encode(texts[:2]))
    began = time.perf_counter()
    if tokens:
        vectors = model.embed(texts, tokens=tokens, **({"max_memory": limit} if limit else {}))
    else:
        parts = [model.run(**tokenizer.encode(texts[at : at + 32])) for at in range(0, count, 32)]
        vectors = np.concatenate([part["sentence_embedding"] for part in parts])
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    off = 0.0
    for at in range(0, count, count // 50) if limit else ():
        (vector,) = model.run(**tokenizer.encode([texts[at]]))["sentence_embedding"]
        off = max(off, float(np.abs(vector - vectors[at]).max()))
assert vectors.shape[0] == count
found = {"texts_per_s": round(count / seconds, 1), "peak_mb": peak >> 20, "sum": float(vectors.sum())}
print(json.dumps({**found, "peak_bytes": peak, "largest_difference": off} if limit else found))
"""
LIMIT, LIMITED_TEXTS = "512MB", 10_000


def measured(bundle: Path, form: str, tokens: int, texts: int, limit: str = "") -> dict[str, float]:
    """What one process of its own found."""
    given = [str(bundle), str(ROOT / "examples" / "sentences.txt"), form, str(tokens), str(texts), limit]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *given], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measures, prints a line for each side, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, help="of MiniLM, with the forms ort_cpu and openvino")
    parser.add_argument("--texts", type=int, default=2400)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sides = [(form, tokens) for form in ("ort_cpu", "openvino") for tokens in (IN_ORDER, 256, 1024, 4096)]
    found: dict[tuple[str, int], list[dict[str, float]]] = {side: [] for side in sides}
    for run in range(given.runs):
        for form, tokens in sides[:: 1 if run % 2 == 0 else -1]:
            found[form, tokens].append(measured(given.bundle, form, tokens, given.texts))
    rows = []
    for (form, tokens), runs in found.items():
        speed, peak = (median(one[key] for one in runs) for key in ("texts_per_s", "peak_mb"))
        rows.append({"form": form, "tokens": tokens, "texts_per_s": speed, "peak_mb": peak, "runs": runs})
        name = f"embed, {tokens} places" if tokens else "batches of 32 in order"
        print(f"{form}, {name}: {speed:.0f} texts/s, peak {peak:.0f} MB")
    limited = []
    for form in ("ort_cpu", "openvino"):
        one = measured(given.bundle, form, 4096, LIMITED_TEXTS, LIMIT)
        within = limit_bytes(LIMIT) or 0
        assert one["peak_bytes"] <= within, f"{form}: {one['peak_bytes']} bytes of {within}"
        assert one["largest_difference"] < 1e-4, f"{form}: {one['largest_difference']}"
        limited.append({"form": form, "max_memory": LIMIT, "texts": LIMITED_TEXTS, **one})
        said = f"{one['texts_per_s']:.0f} texts/s, peak {one['peak_bytes'] / 1e6:.0f} MB"
        print(f"{form}, {LIMITED_TEXTS} texts within {LIMIT}: {said}")
    command = f"python benchmarks/embed_many.py --bundle FOLDER --texts {given.texts} --runs {given.runs}"
    result = {"command": command, "machine": machine().cpu, "rows": rows, "limited": limited}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
