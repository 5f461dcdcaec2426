"""Scratch memory of TensorRT-RTX engines: the project's own lowering against a form written by hand.

    python benchmarks/scratch.py [--batch 4] [--sequence 4096] [--variants] [--json FILE]

Both engines are built in one run, from an encoder of all-MiniLM-L6's shape with random weights. Scratch memory is what
an engine wants beside its weights, inputs and outputs at the profile's largest sizes; no GPU is needed to build or to
read it. `--variants` also builds every form that was tried for the hand-written one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden" / "leanest"))

from leanest_bert import Shape, Variant
from scratch_of import of_leanest, of_ours, profile

VARIANTS = (
    Variant(joined=True),
    Variant(sequence_major=True),
    Variant(chunks=2),
    Variant(chunks=4),
    Variant(attention="where"),
    Variant(attention="where", scale="q"),
    Variant(attention="where", joined=True, sequence_major=True),
    Variant(attention="bias"),
    Variant(attention="expanded"),
)


def main() -> None:
    """Builds, prints a line an engine, and writes the figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--batch", type=int, default=4)
    arguments.add_argument("--sequence", type=int, default=4096)
    arguments.add_argument("--variants", action="store_true")
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    shape, largest = Shape(positions=chosen.sequence), profile(chosen.batch, chosen.sequence)
    rows: list[dict[str, Any]] = []

    def add(name: str, scratch_bytes: int, fused: int, version: str) -> None:
        rows.append({"form": name, "scratch_bytes": scratch_bytes, "fused": fused, "version": version})
        ratio = scratch_bytes / rows[0]["scratch_bytes"]
        print(f"{scratch_bytes / 1e6:9.2f} MB  {ratio:6.3f}x  {fused}/{shape.layers} fused  {name}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        record, fused = of_leanest(Path(folder), shape, largest)
        add("leanest", record.scratch_bytes, fused, record.version)
        ours, table = of_ours(Path(folder), shape, largest)
        add("ours", ours.scratch_bytes, table.fused, ours.version)
        for variant in VARIANTS if chosen.variants else ():
            record, fused = of_leanest(Path(folder), shape, largest, variant)
            given = dataclasses.asdict(variant).items() - dataclasses.asdict(Variant()).items()
            add(
                ", ".join(f"{key}={value}" for key, value in sorted(given)), record.scratch_bytes, fused, record.version
            )
    result = {"profile": str(largest), "shape": dataclasses.asdict(shape), "rows": rows}
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
