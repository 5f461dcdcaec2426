"""What TensorRT-RTX builds of weights in few bits, on a machine without a GPU: an engine's bytes, and what is fused.

    python benchmarks/engine_weights.py [-o FILE.json] [--sm 89]

BERT of MiniLM's width and a Llama with grouped heads and a cache, in fp16, with random weights. Every weight of a
matrix product is written as integers and a `DequantizeLinear`: int8 with a scale for each output, int4 with one for
each 128 weights of an output. Activations stay in fp16. What is fused is read from the engine's own text, as
`attnport build` does. How fast an engine is, and its numbers, a GPU has to say.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from attnport.errors import AttnportError
from attnport.exporter import storage
from attnport.exporter.builder import Builder, clean_up
from attnport.exporter.engine.build import build_engine
from attnport.folder.workspace import open_folder
from attnport.models import base as models
from attnport.verbs.export import export
from attnport.verbs.fuse import engine_table, fuse

TARGET, BLOCK, LAYERS = "tensorrt_rtx", 128, 4
LARGEST = {8: 127, 4: 7}
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


def in_bits(model: ir.Model, bits: int) -> int:
    """Writes the weights of matrix products in so many bits, in place; returns how many."""
    build, written = Builder(model), 0
    for node in list(model.graph):
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
            continue
        array_KN = weight.const_value.numpy().astype(np.float32)
        width = array_KN.shape[0]
        if bits == 4 and width % BLOCK:
            continue
        block = BLOCK if bits == 4 else width
        apart = array_KN.reshape(width // block, block, -1)
        scale = (np.abs(apart).max(1) / LARGEST[bits]).clip(1e-8).astype(np.float16)
        whole = np.rint(apart / scale.astype(np.float32)[:, None]).clip(-LARGEST[bits], LARGEST[bits])
        whole = whole.reshape(array_KN.shape).astype(np.int8)
        build.before, build.scope = node, f"{node.name}/int{bits}"
        if bits == 8:
            stored, options = build.stored(f"{node.name}/int8", whole), {"axis": 1}
            scales = build.const(scale[0], np.float16)
        else:
            stored = build.stored(f"{node.name}/int4", whole.astype(ir.DataType.INT4.numpy()))
            scales, options = build.const(scale, np.float16), {"axis": 0, "block_size": BLOCK}
        node.replace_input_with(1, build.op("DequantizeLinear", stored, scales, dtype=ir.DataType.FLOAT16, **options))
        written += 1
    clean_up(model)
    return written


def built(folder: Path, bits: int, sm: tuple[int, ...]) -> dict[str, Any]:
    """The engine of a folder's form with weights in so many bits (16 = as they are), and what is fused in it."""
    manifest = open_folder(folder)
    form = next(form for form in manifest.forms.values() if form.target == TARGET)
    found: dict[str, Any] = {}
    file = folder / f"model.weights{bits}.onnx"
    model = storage.load(folder / form.file)
    if bits < 16:
        found["weights"] = in_bits(model, bits)
    storage.save_form(model, file, f"{file.stem}.bin", again=True)
    with tempfile.TemporaryDirectory() as scratch:
        engine, layers = Path(scratch, "one.engine"), Path(scratch, "layers.json")
        began = time.monotonic()
        try:
            record = build_engine(TARGET, file, manifest.io, engine, plan="fp16", sm=sm, layers=layers)
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
    parser.add_argument("--sm", type=int, nargs="*", default=[89])
    given = parser.parse_args()
    found: dict[str, Any] = {"layers": LAYERS, "sm": given.sm}
    with tempfile.TemporaryDirectory() as scratch:
        for name, make in (("bert_encoder", bert), ("llama_decoder", llama)):
            folder = Path(scratch, name)
            export(f"{__file__}:{make.__name__}", folder)
            fuse(folder, targets=[TARGET], precision="fp16")
            for bits in (16, 8, 4):
                found[f"{name}, {bits} bits"] = built(folder, bits, tuple(given.sm))
                print(name, bits, found[f"{name}, {bits} bits"], flush=True)
    if given.o:
        given.o.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
