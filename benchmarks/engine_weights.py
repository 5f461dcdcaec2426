"""What TensorRT-RTX builds of weights in few bits, on a machine without a GPU: an engine's bytes, and what is fused.

    python benchmarks/engine_weights.py [-o FILE.json] [--sm 120]

BERT of MiniLM's width and a Llama with grouped heads and a cache, in fp16, with random weights. Every weight of a
linear layer is written as `attnport build --precision int8_fp16` and the like do, without a metric that keeps some.
What is fused is read from the engine's own text. How fast an engine is, and its numbers, a GPU has to say.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from attnport.artifacts import PLANS
from attnport.errors import AttnportError
from attnport.exporter import storage
from attnport.exporter.engine.build import build_engine
from attnport.exporter.precision import integers
from attnport.folder.workspace import open_folder
from attnport.models import base as models
from attnport.verbs.build import check_sm
from attnport.verbs.export import export
from attnport.verbs.fuse import engine_table, fuse

TARGET, LAYERS = "tensorrt_rtx", 4
SIZES: dict[str, dict[str, int]] = {
    "bert_encoder": {"vocabulary": 1024, "width": 384, "heads": 12, "hidden": 1536},
    "llama_decoder": {"vocabulary": 1024, "width": 512, "heads": 8, "groups": 2, "hidden": 1408},
}


def bert() -> Any:
    """An encoder of MiniLM's width."""
    return models.get("bert_encoder", **SIZES["bert_encoder"], layers=LAYERS, positions=512)


def llama() -> Any:
    """A decoder with grouped heads and a cache."""
    return models.get("llama_decoder", **SIZES["llama_decoder"], layers=LAYERS)


def built(folder: Path, plan: str, sm: tuple[int, ...]) -> dict[str, Any]:
    """The engine of a folder's form with weights as a plan has them, and what is fused in it."""
    manifest = open_folder(folder)
    form = next(form for form in manifest.forms.values() if form.target == TARGET)
    found: dict[str, Any] = {}
    file = folder / f"model.weights.{plan}.onnx"
    model = storage.load(folder / form.file)
    if bits := PLANS[plan].bits:
        integers.write_weights(model, bits, floats=PLANS[plan].floats)
        found["weights"] = sum(node.op_type == "DequantizeLinear" for node in model.graph)
    storage.save_form(model, file, f"{file.stem}.bin", again=True)
    with tempfile.TemporaryDirectory() as scratch:
        engine, layers = Path(scratch, "one.engine"), Path(scratch, "layers.json")
        began = time.monotonic()
        try:
            record = build_engine(
                TARGET, file, manifest.io, engine, plan="fp16", sm=tuple(check_sm(plan, sm)), layers=layers
            )
        except AttnportError as err:
            return {**found, "problem": err.message}
        table = engine_table(manifest, form, record, engine, layers)
        return {
            **found,
            "bytes": record.size_bytes,
            "scratch_bytes": record.scratch_bytes,
            "attentions": len(table.items),
            "fused": sum(item.fused for item in table.items),
            "kernels": sorted({str(item.kernel) for item in table.items}),
            "s": round(time.monotonic() - began, 1),
        }


def main() -> None:
    """Builds, prints, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path)
    parser.add_argument("--sm", type=int, nargs="*", default=[120])
    given = parser.parse_args()
    found: dict[str, Any] = {"layers": LAYERS, "sm": given.sm}
    with tempfile.TemporaryDirectory() as scratch:
        for name, make in (("bert_encoder", bert), ("llama_decoder", llama)):
            folder = Path(scratch, name)
            export(f"{__file__}:{make.__name__}", folder)
            fuse(folder, targets=[TARGET], precision="fp16")
            for plan in ("fp16", "int8_fp16", "int4_fp16", "fp8_fp16", "fp4_fp16"):
                found[f"{name}, {plan}"] = built(folder, plan, tuple(given.sm))
                print(name, plan, found[f"{name}, {plan}"], flush=True)
    if given.o:
        given.o.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
