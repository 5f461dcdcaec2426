"""Scratch memory of TensorRT-RTX engines: attnport's lowering against every export of the same module that torch has.

    python benchmarks/scratch_exports.py [--only TEXT] [--side TEXT] [--json FILE] [--docs]

Scratch memory is what an engine wants beside its weights, inputs and outputs at the largest sizes of its profile. All
engines are built in one run, with the same profile; no GPU is needed to build or to read the figures. `--docs` rewrites
the section of docs/performance.md from `scratch_exports.json`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beside.page import replace_section

from attnport.artifacts import IOContract
from attnport.dims import Dim, Profile, TensorSpec
from attnport.errors import AttnportError
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import ATTENTION_KERNEL, read_engine_text

HERE = Path(__file__).resolve().parent
RESULT = HERE / "scratch_exports.json"
PACKAGES = ("tensorrt_rtx", "torch", "onnxscript", "transformers")
TARGET, SEQUENCE, VOCABULARY, BATCHES = "tensorrt_rtx", 4096, 1000, (1, 4)
LAYERS, DEEPER = 2, 4
"""How many layers each shape has, and how many GPT-2 has once more, which shows that the number does not matter."""
INPUTS = ("input_ids", "attention_mask")
OURS = "attnport"


@dataclass(frozen=True)
class Export:
    """One of torch's exports: which exporter, which opset (None = its default), which attention of transformers."""

    exporter: str
    opset: int | None
    attention: str

    def __str__(self) -> str:
        return f"{self.exporter}, {f'opset {self.opset}' if self.opset else 'default opset'}, {self.attention}"


EXPORTS = tuple(
    Export(exporter, opset, attention)
    for exporter, opsets in (("dynamo", (None, 23, 24)), ("TorchScript", (None,)))
    for opset in opsets
    for attention in ("sdpa", "eager")
)


def _bert(layers: int, attention: str) -> Any:
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=layers, vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE, attn_implementation=attention
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def _gpt2(layers: int, attention: str) -> Any:
    import transformers

    config = transformers.GPT2Config(
        n_layer=layers, vocab_size=VOCABULARY, n_positions=SEQUENCE, use_cache=False, attn_implementation=attention
    )
    return transformers.GPT2Model(config)


def _llama(layers: int, attention: str) -> Any:
    """The widths and heads of the usual model of half a billion weights: 14 heads of 64 on 2 of keys and values."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=SEQUENCE,
        use_cache=False,
        attn_implementation=attention,
    )
    return transformers.LlamaModel(config)


SHAPES: dict[str, Callable[[int, str], Any]] = {"BERT-base": _bert, "GPT-2": _gpt2, "Llama, 0.5 billion": _llama}


def module(shape: str, layers: int, attention: str) -> Any:
    """The base model with random weights, from two tensors to `last_hidden_state`."""
    import torch

    class LastHiddenState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = SHAPES[shape](layers, attention)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    return LastHiddenState().eval()


def profile(batch: int) -> Profile:
    """All sizes up to the batch and the sequence."""
    return Profile((Dim("batch", 1, batch, batch), Dim("seq", 1, SEQUENCE, SEQUENCE)))


Found = Iterator[tuple[int, dict[str, Any]]]


def of_attnport(model: Any, precision: str, folder: Path) -> Found:
    """A row a batch, exported, lowered and built as a user does it."""
    from attnport.verbs.build import build
    from attnport.verbs.export import export

    declared = [f"{INPUTS[0]}=int64[batch,seq]:high={VOCABULARY}", f"{INPUTS[1]}=int64[batch,seq]:padding"]
    export(model, folder / "out", inputs=declared, dims=[str(dim) for dim in profile(max(BATCHES)).dims])
    for batch in BATCHES:
        record, table = build(folder / "out", TARGET, precision, profiles=(profile(batch),))
        forms = sorted({item.form for item in table.items})
        yield batch, {"scratch_bytes": record.scratch_bytes, "fused": table.fused, "forms": forms}


def of_torch(model: Any, precision: str, folder: Path, side: Export) -> Found:
    """A row a batch, of what `torch.onnx.export` writes, as it is."""
    file = folder / "model.onnx"
    _torch_export(model.half() if precision == "fp16" else model, file, side)
    inputs = tuple(TensorSpec(name, "int64", ("batch", "seq")) for name in INPUTS)
    for batch in BATCHES:
        engine, largest = folder / f"{batch}.engine", profile(batch)
        record = build_engine(TARGET, file, IOContract(inputs, (), largest.dims), engine, plan=precision)
        kernels = [kernel.name for graph in read_engine_text(engine).graphs for kernel in graph]
        fused = sum(bool(ATTENTION_KERNEL.fullmatch(name)) for name in kernels)
        yield batch, {"scratch_bytes": record.scratch_bytes, "fused": fused}


def _torch_export(model: Any, file: Path, side: Export) -> None:
    import torch

    ids = torch.randint(0, VOCABULARY, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    axes = {0: "batch", 1: "seq"}
    if side.exporter == "dynamo":
        torch.onnx.export(
            model, (), file, kwargs={INPUTS[0]: ids, INPUTS[1]: mask}, dynamo=True, opset_version=side.opset,
            verbose=False, dynamic_shapes=dict.fromkeys(INPUTS, axes), external_data=True,
            output_names=["last_hidden_state"],
        )  # fmt: skip
    else:
        torch.onnx.export(
            model, (ids, mask), file, dynamo=False, opset_version=side.opset, input_names=list(INPUTS),
            output_names=["last_hidden_state"], dynamic_axes=dict.fromkeys((*INPUTS, "last_hidden_state"), axes),
        )  # fmt: skip


def measure(shape: str, side: Export | str, precision: str, layers: int) -> list[dict[str, Any]]:
    """A row a batch: scratch memory and how many attentions are fused; or the reason why there is no engine."""
    found: dict[int, dict[str, Any]] = {}
    failed: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="attnport-scratch-") as name:
        folder = Path(name)
        try:
            if isinstance(side, Export):
                found.update(of_torch(module(shape, layers, side.attention), precision, folder, side))
            else:
                found.update(of_attnport(module(shape, layers, "sdpa"), precision, folder))
        except AttnportError as err:
            failed = {"failed": f"no engine: {_reason(err.message, folder)}"}
        except Exception as err:  # the exporters raise what they like
            failed = {"failed": f"no export: {type(err).__name__}: {_reason(str(err), folder)}"}
    named = {"shape": shape, "layers": layers, "precision": precision, "side": str(side)}
    return [{**named, "batch": batch, **found.get(batch, failed)} for batch in BATCHES]


def _reason(message: str, folder: Path) -> str:
    """The first words of a message, without the temporary folder."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", message).replace(f"{folder}/", "")
    return re.sub(r"\s+", " ", text).strip()[:300]


def main() -> None:
    """Builds, prints a line an engine, and writes the figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="shapes whose name holds this text")
    arguments.add_argument("--side", default="", help="sides whose name holds this text")
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--docs", action="store_true", help=f"the section of the page, from {RESULT.name}")
    chosen = arguments.parse_args()
    if chosen.docs:
        replace_section("scratch", "\n".join(section(json.loads(RESULT.read_text(encoding="utf-8")))))
        return
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    works = [(shape, precision, LAYERS) for shape in SHAPES for precision in ("fp16", "fp32")]
    rows: list[dict[str, Any]] = []
    for shape, precision, layers in (*works, ("GPT-2", "fp16", DEEPER)):
        for side in (one for one in (OURS, *EXPORTS) if chosen.only in shape and chosen.side in str(one)):
            for row in measure(shape, side, precision, layers):
                rows.append(row)
                said = row.get("failed") or f"{_mb(row)} MB, {row['fused']} of {layers} fused"
                print(f"{shape}, {precision}, {layers} layers, batch {row['batch']}, {side}: {said}", flush=True)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    if chosen.json:
        result = {"sequence": SEQUENCE, "versions": versions, "rows": rows}
        chosen.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _mb(row: Mapping[str, Any]) -> str:
    return f"{row['scratch_bytes'] / 1e6:.1f}"


def section(result: Mapping[str, Any]) -> list[str]:
    """The Markdown: what is compared, the leanest export of each work, all sides, and what gave no engine."""
    packages = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    rows = [row for row in result["rows"] if row["layers"] == LAYERS]
    deeper = [row for row in result["rows"] if row["layers"] == DEEPER]
    return [
        "Built by `python benchmarks/scratch_exports.py`, which needs no GPU, with",
        f"{packages}.",
        "Scratch memory is what an engine wants beside weights, inputs and outputs, here at the largest sizes of its",
        f"only profile: {SEQUENCE} tokens, and the batch of the row. Each shape is made from the configuration of",
        "transformers with random weights, takes token ids and a padding mask, and returns the last hidden state.",
        "attnport's engine is made by `export` and `build`. The others are what `torch.onnx.export` writes of the same",
        "module in the same precision, built as it is: by the dynamo exporter in its default opset, 23 and 24, and by",
        "the TorchScript exporter, each with transformers' attention `sdpa` and with `eager`. In float32 TensorRT-RTX",
        "has no fused kernel for these attentions, so every side writes the scores to memory.",
        "",
        f"Widths and numbers of heads are those of the real models; each has {LAYERS} layers and {VOCABULARY} words.",
        "Layers run one after another and reuse the same memory, so their number does not count:",
        *_deeper(rows, deeper),
        "",
        "| shape | | batch | attnport, MB | fused | leanest export of torch, MB | ratio |",
        "|-|-|-|-|-|-|-|",
        *_leanest(rows),
        "",
        "All sides, MB; *unfused* where no kernel is an attention:",
        "",
        *_all(rows),
        "",
        "No engine:",
        *_failures(rows),
    ]


def _leanest(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line a work: attnport's engine, and the leanest of torch's exports with the sides that are as lean."""
    for ours in (row for row in rows if row["side"] == OURS):
        work = {key: ours[key] for key in ("shape", "precision", "batch")}
        others = [row for row in rows if row["side"] != OURS and "scratch_bytes" in row and work.items() <= row.items()]
        least = min(others, key=lambda row: row["scratch_bytes"])
        ratio = ours["scratch_bytes"] / least["scratch_bytes"]
        fused = f"{ours['fused']} of {LAYERS}"
        yield (
            f"| {work['shape']} | {work['precision']} | {work['batch']} | {_mb(ours)} | {fused} "
            f"| {_mb(least)} ({least['side']}) | {ratio:.2f} |"
        )


def _all(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line a side."""
    works = list(dict.fromkeys((row["shape"], row["precision"], row["batch"]) for row in rows))
    cells = {(row["side"], row["shape"], row["precision"], row["batch"]): _cell(row) for row in rows}
    yield f"| side | {' | '.join(f'{shape}, {precision}, batch {batch}' for shape, precision, batch in works)} |"
    yield "|-" * (1 + len(works)) + "|"
    for side in dict.fromkeys(row["side"] for row in rows):
        yield f"| {side} | {' | '.join(cells[side, *work] for work in works)} |"


def _cell(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return "no engine"
    return _mb(row) + ("" if row["fused"] or row["precision"] == "fp32" else " (unfused)")


def _failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line a reason, with the works and sides that it ended."""
    ended: dict[str, list[str]] = {}
    for row in (row for row in rows if "failed" in row):
        place = f"{row['shape']} {row['precision']}, {row['side']}"
        ended.setdefault(row["failed"], []).append(place)
    for reason, places in ended.items():
        yield f"- {'; '.join(dict.fromkeys(places))}: `{reason.removeprefix('no engine: ').replace('`', chr(39))}`"


def _deeper(rows: Sequence[Mapping[str, Any]], deeper: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What more layers change, from the rows that were measured with both numbers of layers."""
    names = ("shape", "precision", "side", "batch")
    few = {tuple(row[name] for name in names): row for row in rows}
    pairs = [(few[tuple(row[name] for name in names)], row) for row in deeper if "failed" not in row]
    ours = [f"{_mb(a)} and {_mb(b)} MB at batch {a['batch']}" for a, b in pairs if a["side"] == OURS]
    most = max(abs(b["scratch_bytes"] / a["scratch_bytes"] - 1) for a, b in pairs)
    yield f"attnport's engine of GPT-2 in fp16 takes with {LAYERS} layers and with {DEEPER}"
    yield f"{', '.join(ours)}. Over all sides the largest difference is {most:.2%}."


if __name__ == "__main__":
    main()
