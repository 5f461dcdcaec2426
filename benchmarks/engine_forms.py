"""Which spelling of an attention TensorRT-RTX fuses, with how much scratch memory, and which hidden tiles it skips.

    python benchmarks/engine_forms.py [--only TEXT] [--json FILE]

One block (`tests/golden/leanest/attention_block.py`, float16, B=4, T=4096) is built for every kind of mask in its
leanest form and in the others that were tried, all in one run. No GPU is needed to build or to read the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden" / "leanest"))

import leanest_masks as lean
from attention_block import BOOL, HALF, INT64, Block, Sizes, Write, engine

from attnport.artifacts import Evidence
from attnport.errors import EngineBuildError

GROUPED, ONE_HEAD = Sizes(groups=2), Sizes(1, 1, 64, 64)


def _guarded_within(b: Block, scores: ir.Value) -> ir.Value:
    """The guard of empty rows on the probabilities in place of the output."""
    b.anchors = ("qk", "softmax", "pv")
    weights = b.op("Softmax", scores, name="softmax", axis=-1)
    return b.op("MatMul", b.op("Where", b.op("IsNaN", weights), b.const(0.0), weights), b.v, name="pv")


def _within(keep: Write) -> Write:
    return lambda b: _guarded_within(b, b.hidden(keep(b), b.scores()))


def _where(keep: Write) -> Write:
    return lambda b: b.products(b.hidden(keep(b), b.scores()))


def _mapped(keep: Write) -> Write:
    return lambda b: b.products(b.hidden(b.mapped(keep(b)), b.scores()))


def _operator(keep: Write) -> Write:
    return lambda b: b.operator(keep(b))


def _added(keep: Write) -> Write:
    def write(b: Block) -> ir.Value:
        return b.products(b.op("Add", b.scores(), b.op("Where", keep(b), b.const(0.0), b.const(-np.inf))))

    return write


def _both(b: Block) -> ir.Value:
    return b.op("And", lean._causal(b), b.padding())


def _padding(b: Block) -> ir.Value:
    return b.padding()


def _wide_documents(b: Block) -> ir.Value:
    """Documents compared in int64."""
    documents = b.input("documents", INT64, "batch", "seq")
    return b.op("Equal", b.op("Unsqueeze", documents, b.ints(1, 3)), b.op("Unsqueeze", documents, b.ints(1, 2)))


def _cap_by_tanh(b: Block) -> ir.Value:
    capped = b.op("Tanh", b.op("Mul", b.scores(), b.const(1 / lean.CAP)))
    return b.products(b.hidden(b.padding(), b.op("Mul", capped, b.const(lean.CAP))))


def _alibi_around(b: Block) -> ir.Value:
    return b.products(b.hidden(lean._causal(b), b.op("Add", b.scores(), lean._slopes(b))))


def _gathered_guarded_outside(b: Block) -> ir.Value:
    distance = b.op("Sub", b.index("i"), b.index("j"))
    bucket = b.op("Min", b.op("Max", distance, b.const(0, np.int32)), b.const(lean.BUCKETS - 1, np.int32))
    bias = b.op("Gather", b.weight(b.sizes.heads, lean.BUCKETS), b.op("Squeeze", bucket, b.ints(0, 1)), axis=1)
    return b.products(b.hidden(lean._causal(b), b.op("Add", b.scores(), b.op("Unsqueeze", bias, b.ints(0)))))


def _repeated(keep: Write) -> Write:
    """Grouped heads with keys and values repeated."""

    def write(b: Block) -> ir.Value:
        times = b.sizes.heads // b.sizes.groups
        b.k, b.v = (
            b.op(
                "Reshape",
                b.op("Expand", b.op("Unsqueeze", value, b.ints(2)), b.ints(1, 1, times, 1, 1)),
                b.ints(0, b.sizes.heads, -1, b.sizes.depth),
            )
            for value in (b.k, b.v)
        )
        return _where(keep)(b)

    return write


def _of_one_query(write: Write) -> Write:
    """The first query alone, as in decoding; its output for all of them."""

    def write_first(b: Block) -> ir.Value:
        every = b.op("Shape", b.q)
        b.q = b.op("Slice", b.q, b.ints(0), b.ints(1), b.ints(2))
        return b.op("Expand", write(b), every)

    return write_first


def _allowed(b: Block) -> ir.Value:
    return b.input("allowed", BOOL, "batch", 1, "seq", "seq")


def _as_they_are(b: Block) -> ir.Value:
    return _where(_padding)(b)


TRIED: dict[str, dict[str, tuple[Write, Sizes]]] = {
    "none": {"products": (lambda b: b.products(b.scores()), Sizes())},
    "padding": {
        "products": (_where(_padding), Sizes()),
        "guard within": (_within(_padding), Sizes()),
        "added": (_added(_padding), Sizes()),
    },
    "causal": {
        "products": (_where(lean._causal), Sizes()),
        "guard within": (_within(lean._causal), Sizes()),
        "operator with a mask": (_operator(lean._causal), Sizes()),
    },
    "causal_padding": {
        "not mapped": (_where(_both), Sizes()),
        "guard within": (_within(_both), Sizes()),
        "operator with a mask": (_operator(_both), Sizes()),
        "added": (_added(_both), Sizes()),
    },
    "window_causal": {"mapped": (_mapped(lean._causal_window), Sizes())},
    "documents": {
        "int64": (_mapped(_wide_documents), Sizes()),
        "operator with a mask": (_operator(lean._same_document), Sizes()),
    },
    "explicit": {"mapped": (_mapped(_allowed), Sizes()), "operator": (_operator(_allowed), Sizes())},
    "bias": {"operator": (lambda b: b.operator(b.input("bias", HALF, "batch", 1, "seq", "seq")), Sizes())},
    "alibi_causal": {"mask around the bias": (_alibi_around, Sizes())},
    "gathered": {"guard outside": (_gathered_guarded_outside, Sizes(4, 4, 64, 64))},
    "softcap": {"Tanh": (_cap_by_tanh, Sizes())},
    "grouped_padding": {"repeated": (_repeated(_padding), GROUPED)},
    "grouped_causal_padding": {
        "repeated": (_repeated(_both), GROUPED),
        "operator with a mask": (_operator(_both), GROUPED),
    },
    "one_head": {"guard within": (_within(_padding), ONE_HEAD), "operator": (_operator(_padding), ONE_HEAD)},
    "narrow_values": {"as they are": (_as_they_are, Sizes(4, 4, 64, 32))},
    "one_query": {
        f"{heads} heads, {name}": (write, Sizes(heads, heads, 64, 64))
        for heads in (1, 2, 4)
        for name, write in (
            ("products", _of_one_query(_where(_padding))),
            ("operator", _of_one_query(_operator(_padding))),
        )
    },
    "head_dim": {
        f"{depth}, {name}": (write, Sizes(2, 2, depth, depth))
        for depth in (8, 12, 16, 20, 24, 256, 257, 320, 512)
        for name, write in (("products", _where(_padding)), ("operator", _operator(_padding)))
    },
}
"""By kind of mask: the other spellings; what cannot be built is a row too."""


def measure(write: Write, sizes: Sizes) -> dict[str, Any]:
    """Scratch memory, whether one kernel is the attention, and the tiles it skips; or why it cannot be built."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            record, proof, tiles = engine(write, Path(folder), sizes)
        except EngineBuildError as err:
            return {"error": str(err).split(": ", 1)[-1][:300]}
    fused = isinstance(proof, Evidence)
    return {"scratch_bytes": record.scratch_bytes, "fused": fused, "tiles": tiles, "version": record.version}


def main() -> None:
    """Builds, prints a line an engine, and writes the figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="kinds whose name holds this text")
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys([*lean.LEANEST, *TRIED]):
        forms = {"leanest": lean.LEANEST[kind]} if kind in lean.LEANEST else {}
        for form, (write, sizes) in {**forms, **TRIED.get(kind, {})}.items() if chosen.only in kind else ():
            row = {"kind": kind, "form": form, **measure(write, sizes)}
            rows.append(row)
            said = f"{row['scratch_bytes'] / 1e6:8.1f} MB" if "scratch_bytes" in row else "no engine  "
            state = "fused    " if row.get("fused") else "not fused"
            print(f"{said}  {state}  {kind}: {form}  {row.get('tiles') or row.get('error', '')[:80]}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"batch": 4, "sequence": 4096, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
