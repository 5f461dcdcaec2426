"""Measures the memory that each command takes for a model of gigabytes, and that of torch.onnx.export alone.

A Llama shape with random weights is written shard by shard, as safetensors. Each command is a process of its own. Of
its whole process tree, twenty times a second: anonymous memory, which the system cannot take back, and resident
memory, in which pages of mapped files are counted too, once for each process and file that maps them.

    python benchmarks/large_models.py --gb 3 [--folder DIR] [--only export] --json FILE --docs

`--docs` rewrites the table of docs/performance.md from the JSON, in which a model of another size keeps its rows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- large models: begin -->", "<!-- large models: end -->"
ALONE = "torch.onnx.export alone"
SHARD_BYTES = 1 << 29
EVERY_S = 0.05
TARGETS = ("ort_cpu", "openvino", "tensorrt_rtx")
PROGRAM = """
import sys, torch, transformers
folder, out = sys.argv[1:]
model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="float32").eval()
model.config.use_cache = False
ids = torch.ones(3, 7, dtype=torch.int64)
torch.onnx.export(
    model, (), out, kwargs={"input_ids": ids, "attention_mask": ids}, dynamo=True, opset_version=23, verbose=False,
    dynamic_shapes={name: {0: "batch", 1: "seq"} for name in ("input_ids", "attention_mask")}, external_data=True,
)
"""


@dataclass(frozen=True)
class Row:
    """What one command took: seconds, and the most memory at once, in megabytes."""

    name: str
    seconds: float
    anonymous_mb: float
    resident_mb: float


def write_model(folder: Path, gigabytes: float) -> float:
    """Writes a model of about this size in float32, holding one shard at a time; returns its gigabytes."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    wide: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16}
    layer_bytes = 4 * (4 * 2048 * 2048 + 3 * 2048 * 5632)
    config = LlamaConfig(
        **wide,
        vocab_size=1000,
        num_key_value_heads=16,
        num_hidden_layers=max(1, round(gigabytes * 1e9 / layer_bytes)),
        max_position_embeddings=256,
        architectures=["LlamaForCausalLM"],
    )
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    places: dict[str, str] = {}
    for number, names in enumerate(_shards(shapes)):
        file = f"model-{number:05}.safetensors"
        tensors = {name: torch.randn(shapes[name], generator=generator) * 0.02 for name in names}
        tensors |= {name: torch.ones(shapes[name]) for name in names if "norm" in name}
        save_file(tensors, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9


def _shards(shapes: dict[str, tuple[int, ...]]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        names.append(name)
        elements = 1
        for length in shape:
            elements *= length
        size += 4 * elements
        if size >= SHARD_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names


def measured(name: str, command: Sequence[str], work: Path) -> Row:
    """Runs a command to its end and watches it and its children; stops with what it printed if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "ATTNPORT_CACHE": str(work / "cache")}
    with tempfile.TemporaryFile() as said:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=work, env=environment, stdout=said, stderr=said)
        anonymous = resident = 0
        while process.poll() is None:
            sizes = [_memory(child) for child in _tree(process.pid)]
            anonymous = max(anonymous, sum(size[0] for size in sizes))
            resident = max(resident, sum(size[1] for size in sizes))
            time.sleep(EVERY_S)
        if process.returncode != 0:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit {process.returncode}\n{said.read().decode()[-2000:]}")
    row = Row(name, round(time.monotonic() - began, 1), round(anonymous / 1e3), round(resident / 1e3))
    print(f"{name}: {row.seconds} s, {row.anonymous_mb} MB anonymous, {row.resident_mb} MB resident", flush=True)
    return row


def _tree(process: int) -> list[int]:
    found = [process]
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _tree(int(child))
    return found


def _memory(process: int) -> tuple[int, int]:
    """Anonymous and resident memory of a process in kilobytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        values = {name: value for name, _, value in (line.partition(":") for line in lines)}
        if "RssAnon" in values:
            return int(values["RssAnon"].split()[0]), int(values["VmRSS"].split()[0])
    return 0, 0


def measure(gigabytes: float, only: Sequence[str], work: Path) -> dict[str, Any]:
    """The rows of one size, and what became of the file of weights."""
    model, folder = work / "model", work / "out"
    size = write_model(model, gigabytes)
    cli = [sys.executable, "-m", "attnport.cli"]
    program = work / "alone.py"
    program.write_text(PROGRAM)
    rows = [measured(ALONE, [sys.executable, str(program), str(model), str(work / "alone.onnx")], work)]
    for file in work.glob("alone.onnx*"):
        file.unlink()
    rows.append(measured("export", [*cli, "export", f"hf:{model}", "-o", str(folder)], work))
    weights = folder / "weights.bin"
    before = weights.stat().st_ino, weights.stat().st_mtime_ns
    for target in TARGETS if not only or "fuse" in only else ():
        rows.append(measured(f"fuse --target {target}", [*cli, "fuse", str(folder), "--target", target], work))
        assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == before, f"fuse for {target} wrote the weights"
    if not only or "check" in only:
        rows.append(measured("check --runtime ort_cpu", [*cli, "check", str(folder), "--runtime", "ort_cpu"], work))
    return {"gigabytes": round(size, 1), "rows": [asdict(row) for row in rows]}


def table(result: dict[str, Any]) -> str:
    """The tables of the page."""
    commands = ", ".join(f"`{each['command']}`" for each in result["models"])
    lines = [f"Measured by {commands} on {result['machine']}."]
    for each in result["models"]:
        alone = next(row for row in each["rows"] if row["name"] == ALONE)
        lines += [
            "",
            f"{each['gigabytes']} GB of float32 weights:",
            "",
            "| | s | anonymous, MB | to torch alone | resident, with mapped files, MB | to torch alone |",
            "|-|-|-|-|-|-|",
        ]
        for row in each["rows"]:
            ratios = [f"{row[key] / alone[key]:.2f}" for key in ("anonymous_mb", "resident_mb")]
            lines.append(
                f"| {row['name']} | {row['seconds']:.0f} | {row['anonymous_mb']:.0f} | {ratios[0]} "
                f"| {row['resident_mb']:.0f} | {ratios[1]} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the tables, and writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=3)
    parser.add_argument("--folder", type=Path, help="where there is room for five times the model; default: TMPDIR")
    parser.add_argument("--only", action="append", default=[], choices=["export", "fuse", "check"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="rewrite the table of docs/performance.md")
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="attnport-large-", dir=given.folder))
    try:
        found = measure(given.gb, given.only, work)
    finally:
        shutil.rmtree(work)
    chosen = "".join(f" --only {stage}" for stage in given.only)
    found["command"] = f"python benchmarks/large_models.py --gb {given.gb:g}{chosen}"
    from attnport.folder.machine import machine

    old = json.loads(given.json.read_text())["models"] if given.json is not None and given.json.is_file() else []
    models = sorted([found, *(each for each in old if each["command"] != found["command"])],
                    key=lambda each: float(each["gigabytes"]))  # fmt: skip
    result = {"machine": machine().cpu, "models": models}
    print(table(result))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    if given.docs:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{table(result)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
