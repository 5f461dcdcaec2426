"""10,000 texts through `embed` of a bundle, beside other tools that take texts.

The texts are those of examples/sentences.txt cut at random places, and every fortieth is many words long. Each side has
a process of its own and one core, and does what its users do: sentence-transformers' `encode`, fastembed's `embed`,
each with the batch size that is its quickest on the first 400 texts. The quickest peer there and attnport's quickest
form are given all texts. Tokenising counts. Vectors have to be those of sentence-transformers, in the order of the
texts.

    python benchmarks/embed_many.py [--texts 10000] [--json FILE] [--docs]

It needs what `make bench-env` sets up.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from beside.models import MODELS, described, sentences
from beside.page import replace_section
from beside.sampling import least_cosine
from beside.side import CACHE, ROOT, Named, Side

from attnport.folder.machine import machine

FORMS = ("ort_cpu", "openvino")
PEERS = (Named("sentence_transformers", "openvino", "fp32"), Named("sentence_transformers", "onnx", "fp32"),
         Named("fastembed", "", "fp32"))  # fmt: skip
BATCHES = (4, 16, 64)
TRIED = 400
SAME = 0.9999
"""The least cosine of two float32 vectors of a text."""


def texts_of(count: int) -> list[str]:
    """Made-up texts of real words, most of a sentence's length."""
    draw, words = random.Random(0), [line.split() for line in sentences()]
    made = [" ".join(line[: draw.randint(min(3, len(line)), len(line))]) for line in words * (count // len(words) + 1)]
    for at in range(0, count, 40):
        made[at] = " ".join(draw.choice(words)[0] for _ in range(draw.randint(40, 120)))
    kept = made[:count]
    draw.shuffle(kept)
    return kept


def measured(side: Named, told: dict[str, Any], texts: Sequence[Path], batches: Sequence[int]) -> dict[str, Any]:
    """Runs one side on the last of the texts, in the batch size that was its quickest on the first.

    Args:
        texts: The first texts, by which the batch size is chosen; then all, or nothing more.

    Returns:
        Its texts a second, its memory and its vectors.
    """
    process, vectors = Side(side, told, 1), texts[0].with_suffix(".npz")
    try:
        tried = {batch: process.embed(texts[0], batch, vectors) for batch in batches}
        best = min(tried, key=lambda batch: tried[batch])
        nanoseconds = process.embed(texts[1], best, vectors) if texts[1:] else tried[best]
        output = np.load(vectors)["output"]
        return {
            "texts": len(output),
            "texts_per_s": round(len(output) / nanoseconds * 1e9, 1),
            "batch": best,
            "peak_mb": round(process.resident_mb()),
            "vectors": output,
        }
    finally:
        process.close()


def bundle(told: dict[str, Any]) -> Path:
    """A bundle of attnport's forms."""
    app = CACHE / "minilm" / "app"
    shutil.rmtree(app, ignore_errors=True)
    forms = [word for form in FORMS for word in ("--form", form)]
    done = subprocess.run(
        [sys.executable, "-m", "attnport.cli", "bundle", told["ours"], "-o", str(app), *forms],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"attnport bundle: exit {done.returncode}\n{done.stderr}")
    return app


def main() -> None:
    """Measures, prints a line for each side, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    told = described(MODELS["minilm"])
    told["bundle"] = str(bundle(told))
    ours = tuple(Named("attnport", form, "fp32") for form in FORMS)
    rows: dict[Named, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        first, every = Path(folder) / "first.json", Path(folder) / "texts.json"
        every.write_text(json.dumps(texts_of(given.texts)))
        first.write_text(json.dumps(texts_of(given.texts)[:TRIED]))
        for side in (*PEERS, *ours):
            # attnport chooses its batches itself; the second time counts, as its first opens the session.
            rows[side] = measured(side, told, [first], BATCHES if side in PEERS else BATCHES[:1] * 2)
        for group in (PEERS, ours):
            side = max(group, key=lambda one: rows[one]["texts_per_s"])
            rows[side] = measured(side, told, [first, every], [rows[side]["batch"]])
    expected = max((rows[side]["vectors"] for side in PEERS), key=len)
    for side, row in rows.items():
        vectors = row.pop("vectors")
        row["cosine"] = round(least_cosine(vectors, expected[: len(vectors)]), 6)
        print(f"{side}: {row}", flush=True)
        assert row["cosine"] > SAME, f"{side}: least cosine {row['cosine']}"
    result = {
        "command": f"python benchmarks/embed_many.py --texts {given.texts}",
        "machine": machine().cpu,
        "texts": given.texts,
        "rows": {str(side): row for side, row in rows.items()},
    }
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.docs:
        replace_section("embed", section(result))


def section(result: dict[str, Any]) -> str:
    """The Markdown."""
    rows = result["rows"]
    lines = [
        f"Measured by `{result['command']}` on {result['machine']}: {result['texts']:,} texts to vectors, one thread;",
        "attnport in batches of its own, the others in the batch size that suits them best.",
        "",
        "| side | texts a second | peak of the process, MB |",
        "|-|-|-|",
    ]
    for name, row in rows.items():
        how = "" if name.startswith("attnport") else f", batches of {row['batch']}"
        how += f", the first {row['texts']} alone" if row["texts"] < result["texts"] else ""
        lines.append(f"| {name}{how} | {row['texts_per_s']:.0f} | {row['peak_mb']} |")
    ours, peer = (
        max(row["texts_per_s"] for name, row in rows.items()
            if name.startswith("attnport") == side and row["texts"] == result["texts"])
        for side in (True, False)
    )  # fmt: skip
    lines += ["", f"attnport's best is {ours / peer:.2f} times as fast as the fastest other (1.10 asked)."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
