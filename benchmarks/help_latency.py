"""How long `attnport --help` takes, warm, beside a Python that does nothing: the floor of any command in Python.

    python benchmarks/help_latency.py [--runs 41] [-o FILE.json]

The two are run in turns, in random order, so that a slow moment of the machine hits both. Each sample is the wall time
of a whole process, in ns. The target is a median of 150 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

TARGET_NS = 150_000_000
WARM_UP = 3


def sample_ns(command: list[str]) -> int:
    """The wall time of one process that must succeed."""
    began = time.perf_counter_ns()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter_ns() - began


def measure(commands: dict[str, list[str]], runs: int, seed: int = 0) -> dict[str, list[int]]:
    """Samples of every command, in ns; the first runs, which fill the caches, are left out."""
    for command in commands.values():
        for _ in range(WARM_UP):
            sample_ns(command)
    order = [name for name in commands for _ in range(runs)]
    random.Random(seed).shuffle(order)
    samples: dict[str, list[int]] = {name: [] for name in commands}
    for name in order:
        samples[name].append(sample_ns(commands[name]))
    return samples


def main() -> int:
    """Measures, prints the medians, writes the JSON; exit 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=41, help="samples a command")
    parser.add_argument("-o", "--output", type=Path, help="where to write the JSON; default: standard output")
    options = parser.parse_args()
    beside = Path(sys.executable).with_name("attnport")
    script = str(beside) if beside.exists() else shutil.which("attnport")
    if script is None:
        print("attnport is not installed in this environment: pip install -e .", file=sys.stderr)
        return 3
    samples = measure({"attnport --help": [script, "--help"], "python": [sys.executable, "-c", "pass"]}, options.runs)
    medians = {name: int(statistics.median(values)) for name, values in samples.items()}
    result = {
        "target_ns": TARGET_NS,
        "median_ns": medians,
        "samples_ns": samples,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    else:
        print(text, end="")
    for name, median_ns in medians.items():
        print(f"{name}: median {median_ns / 1e6:.1f} ms of {options.runs}", file=sys.stderr)
    return 0 if medians["attnport --help"] <= TARGET_NS else 1


if __name__ == "__main__":
    sys.exit(main())
