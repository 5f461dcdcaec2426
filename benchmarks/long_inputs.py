"""Long inputs: time and peak memory of the forms for CPU runtimes, torch, and torch's plain export, fp32 on one thread.

    python benchmarks/long_inputs.py --make FOLDER
    attnport export hf:FOLDER/torch -o FOLDER && attnport fuse FOLDER
    python benchmarks/long_inputs.py FOLDER [--before FOLDER] [--sizes 1x512,1x2048,1x8192] [--pad 0]
        [--sides ort_cpu,...] [--rounds 9] [-o FILE.json]

`--make` saves a ModernBERT of random weights (768 wide, 6 layers, a window of 128 in two of three layers) in
FOLDER/torch. `--before` is another artifact folder of the same model, fused by an earlier release.

Each side is a child process, and the children take turns in random order. A sample is the CPU time of the child's
process, so that what other processes take away does not count. Peak memory is VmHWM of a child of its own, above what
it had before its first call.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIDES = ("torch", "plain_ort", "plain_openvino", "ort_cpu", "openvino")


def make(folder: Path) -> None:
    """Saves the model."""
    import torch
    from transformers import ModernBertConfig, ModernBertModel

    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=1000, hidden_size=768, intermediate_size=1152, num_hidden_layers=6, num_attention_heads=12,
        max_position_embeddings=8192, local_attention=128, global_attn_every_n_layers=3, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    ModernBertModel(config).eval().save_pretrained(folder / "torch")


def _module(folder: Path) -> Any:
    """The torch model of an artifact folder."""
    import torch
    from transformers import AutoModel

    torch.set_num_threads(1)
    return AutoModel.from_pretrained(folder / "torch", attn_implementation="sdpa", trust_remote_code=False).eval()


def _plain(folder: Path) -> Path:
    """torch's own export of the model with dynamic dims, made once."""
    import torch

    path = folder / "plain" / "model.onnx"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        # Longer than the window and with padding, as transformers leaves out a mask that hides nothing of the example.
        ids = torch.ones(2, 300, dtype=torch.int64)
        mask = torch.ones_like(ids)
        mask[1, 200:] = 0
        torch.onnx.export(
            _module(folder), (), str(path), dynamo=True, verbose=False, external_data=True,
            kwargs={"input_ids": ids, "attention_mask": mask},
            dynamic_shapes={"input_ids": dims, "attention_mask": dims},
        )  # fmt: skip
    return path


def _runner(side: str, folder: Path) -> Any:
    """A function from feeds to the first output."""
    if side == "torch":
        import torch

        module = _module(folder)

        def run(feeds: dict[str, Any]) -> Any:
            with torch.inference_mode():
                return module(**{name: torch.from_numpy(array) for name, array in feeds.items()})[0].numpy()

        return run
    path = folder / "plain" / "model.onnx" if side.startswith("plain") else folder / f"model.{side}.onnx"
    if side.endswith("openvino"):
        import openvino

        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        return lambda feeds: compiled(feeds)[0]
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    taken = [each.name for each in session.get_inputs()]
    return lambda feeds: session.run(None, {name: feeds[name] for name in taken})[0]


def _peak_mb() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _cpu_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def child(side: str, folder: Path) -> None:
    """Answers each line, `BxT:real`, with the CPU time, the peak memory, and a checksum of the real rows."""
    run = _runner(side, folder)
    before = _peak_mb()
    print("ready", flush=True)
    for line in sys.stdin:
        shape, real = line.strip().split(":")
        batch, length = map(int, shape.split("x"))
        ids = np.random.default_rng(length).integers(5, 1000, (batch, length))
        mask = np.zeros((batch, length), np.int64)
        mask[:, : int(real)] = 1
        began, cpu = time.perf_counter_ns(), _cpu_ns()
        output = run({"input_ids": ids, "attention_mask": mask})
        spent, wall = _cpu_ns() - cpu, time.perf_counter_ns() - began
        rows = np.asarray(output)[:, : int(real)]
        answer = {"cpu_ns": spent, "wall_ns": wall, "peak_mb": _peak_mb() - before}
        answer["values"] = [float(value) for value in rows[:, :: max(1, int(real) // 7)].reshape(-1)[::97][:64]]
        print(json.dumps(answer), flush=True)


class Child:
    """A process of one side."""

    def __init__(self, side: str, folder: Path) -> None:
        command = [sys.executable, __file__, str(folder), "--child", side]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready"

    def ask(self, shape: str) -> dict[str, Any]:
        """One call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{shape}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)} ended; was it out of memory? Leave it out by --sides.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Ends the process."""
        self.process.communicate()


def measure(sides: dict[str, tuple[str, Path]], shape: str, rounds: int) -> dict[str, Any]:
    """By side: median CPU time, its ratios, peak memory, and the largest difference from the first side."""
    peaks = {}
    for name, (side, folder) in sides.items():
        alone = Child(side, folder)
        peaks[name] = alone.ask(shape)["peak_mb"]
        alone.end()
    children = {name: Child(*side) for name, side in sides.items()}
    values = {name: np.array(each.ask(shape)["values"]) for name, each in children.items()}
    samples: dict[str, list[int]] = {name: [] for name in sides}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(sides), len(sides)):
            samples[name].append(children[name].ask(shape)["cpu_ns"])
    for each in children.values():
        each.end()
    first = next(iter(values.values()))
    return {
        name: {
            "median_ns": int(statistics.median(samples[name])),
            "peak_mb": round(peaks[name]),
            "difference": float(np.abs(values[name] - first).max()),
            "samples_ns": samples[name],
        }
        for name in sides
    }


def main() -> None:
    """Measures every size, prints a table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--make", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--sizes", default="1x512,1x2048,1x8192")
    parser.add_argument("--pad", type=float, default=0.0, help="the share of padding, at the right")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.make:
        make(options.make)
        return
    if options.child:
        child(options.child, options.folder)
        return
    if "plain" in options.sides:
        _plain(options.folder)
    sides = {side: (side, options.folder) for side in options.sides.split(",")}
    if options.before:
        sides |= {f"{side} before": (side, options.before) for side in ("ort_cpu", "openvino") if side in sides}
    rows = {}
    for size in options.sizes.split(","):
        length = int(size.split("x")[1])
        rows[size] = measure(sides, f"{size}:{length - round(length * options.pad)}", options.rounds)
        base = next(iter(rows[size].values()))["samples_ns"]
        print(size, flush=True)
        for name, row in rows[size].items():
            ratio = statistics.median(a / b for a, b in zip(row["samples_ns"], base, strict=True))
            row["ratio"] = round(ratio, 4)
            print(
                f"  {row['median_ns'] / 1e6:10.1f} ms  {ratio:6.3f}  {row['peak_mb']:6d} MB  {row['difference']:.0e}  "
                f"{name}",
                flush=True,
            )
    if options.output:
        options.output.write_text(json.dumps({"pad": options.pad, "threads": 1, "sizes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
