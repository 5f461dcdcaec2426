"""How long the commands themselves take: this tree, an earlier commit, and torch.onnx.export alone, in one run.

Each command is a process of its own, timed from outside; the sides take turns. An earlier commit is checked out into a
temporary folder and run with the same packages.

    python benchmarks/tool_speed.py --model FOLDER --before REV [--runs 3] [--only export] --json FILE --docs

`--docs` rewrites the table of docs/performance.md from the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SENTENCES = ROOT / "examples" / "sentences.txt"
PAGE = ROOT / "docs" / "performance.md"
ALONE = "torch.onnx alone"
BEFORE, NOW = "before", "now"
PROGRAM = f"""
import sys, torch
sys.path.insert(0, {str(ROOT)!r})
spec, out = sys.argv[1:]
ids = torch.ones(2, 7, dtype=torch.int64)
if spec.startswith("hf:"):
    from transformers import AutoModel
    module, names = AutoModel.from_pretrained(spec[3:]).eval(), ("input_ids", "attention_mask", "token_type_ids")
else:
    from attnport.models import base
    found = base.get(spec)
    module, names = found.make().eval(), [one.name for one in found.io.inputs]
torch.onnx.export(
    module, (), out, kwargs=dict.fromkeys(names, ids), dynamo=True, opset_version=23, verbose=False,
    dynamic_shapes={{name: {{0: "batch", 1: "seq"}} for name in names}}, external_data=True,
)
"""


@dataclass
class Row:
    """What is timed: by side, seconds and the most memory of one of its processes, a value a run."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    megabytes: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a side runs: a folder of its own, and the source that Python takes attnport from."""

    work: Path
    source: Path

    def run(self, command: Sequence[str], expected: Sequence[int] = (0,)) -> tuple[float, float]:
        """Seconds, and the megabytes of the largest process, of one command."""
        environment = {**os.environ, "PYTHONPATH": str(self.source), "HF_HUB_OFFLINE": "1"}
        environment["ATTNPORT_CACHE"] = str(self.work / "cache")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        with tempfile.TemporaryFile() as said:
            began = time.perf_counter()
            process = subprocess.Popen(command, cwd=self.work, env=environment, stdout=said, stderr=said)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode not in expected:
                said.seek(0)
                raise SystemExit(f"{' '.join(command)}: exit {process.returncode}\n{said.read().decode()[-2000:]}")
        return seconds, _peak(usage)


def _peak(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def attnport(*arguments: str) -> list[str]:
    """A command line of attnport, with this Python."""
    return [sys.executable, "-m", "attnport.cli", *arguments]


def rows(model: str) -> dict[str, Callable[[Place], list[tuple[str, float, float]]]]:
    """By the name of a group, what it does in a place: it returns names, seconds and megabytes."""

    def timed(name: str, place: Place, *arguments: str, expected: Sequence[int] = (0,)) -> tuple[str, float, float]:
        return (name, *place.run(attnport(*arguments), expected))

    def start(place: Place) -> list[tuple[str, float, float]]:
        place.run(attnport("--help"))
        wrong = ("export", model, "-o", "typo", "--input", "x=flaot32[batch]")
        return [timed("`--help`", place, "--help"), timed("a typo in `--input`", place, *wrong, expected=[2])]

    def doctor(place: Place) -> list[tuple[str, float, float]]:
        return [timed("`doctor`, the first time", place, "doctor"), timed("`doctor`", place, "doctor")]

    def export(place: Place) -> list[tuple[str, float, float]]:
        return [
            timed("`export` of MiniLM", place, "export", model, "-o", "minilm", "--force"),
            timed("`export` of a 2-layer model", place, "export", "bert_encoder", "-o", "tiny", "--force"),
        ]

    def check(place: Place) -> list[tuple[str, float, float]]:
        for folder, spec in (("tiny", "bert_encoder"), ("minilm", model)):
            if not (place.work / folder).is_dir():
                place.run(attnport("export", spec, "-o", folder))
            place.run(attnport("fuse", folder))
        text = ("--text", str(SENTENCES))
        return [
            timed("`check --runtime ort_cpu` of a 2-layer model", place, "check", "tiny", "--runtime", "ort_cpu"),
            timed("`check` of MiniLM, 200 sentences", place, "check", "minilm", *text),
            timed("`check` again, nothing changed", place, "check", "minilm", *text),
        ]

    def ship(place: Place) -> list[tuple[str, float, float]]:
        folder = f"shipped{len(list(place.work.glob('shipped*')))}"
        found = timed(
            "`ship` of a 2-layer model, `--budget 20`", place, "ship", "bert_encoder", "-o", folder, "--budget", "20"
        )
        stages = json.loads((place.work / folder / "attnport.json").read_text())["stages"]
        return [found, ("of these `bench`", float(stages["bench"]["seconds"]), 0.0)]

    return {"start": start, "doctor": doctor, "export": export, "check": check, "ship": ship}


def alone(place: Place, model: str) -> list[tuple[str, float, float]]:
    """torch.onnx.export by itself, as a process."""
    program = place.work / "alone.py"
    program.write_text(PROGRAM)
    named = {"`export` of MiniLM": model, "`export` of a 2-layer model": "bert_encoder"}
    return [
        (name, *place.run([sys.executable, str(program), spec, str(place.work / "alone.onnx")]))
        for name, spec in named.items()
    ]


def measure(model: str, before: str, runs: int, only: Sequence[str], scratch: Path) -> list[Row]:
    """All rows; the sides take turns within each group."""
    earlier = scratch / "earlier"
    subprocess.run(
        ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(earlier), before], check=True, capture_output=True
    )
    try:
        places = {
            BEFORE: Place(scratch / "a", earlier),
            NOW: Place(scratch / "b", ROOT),
            ALONE: Place(scratch / "c", ROOT),
        }
        for place in places.values():
            place.work.mkdir()
        found: dict[str, Row] = {}
        for group, work in rows(model).items():
            if only and group not in only:
                continue
            for run in range(runs if group in ("start", "export") else 1):
                sides: dict[str, Callable[[Place], list[tuple[str, float, float]]]] = {BEFORE: work, NOW: work}
                if group == "export":
                    sides[ALONE] = lambda place: alone(place, model)
                for side in list(sides)[:: 1 if run % 2 == 0 else -1]:
                    for name, seconds, megabytes in sides[side](places[side]):
                        row = found.setdefault(name, Row(name))
                        row.seconds.setdefault(side, []).append(round(seconds, 3))
                        if megabytes:
                            row.megabytes.setdefault(side, []).append(round(megabytes))
                        print(f"{side}: {name}: {seconds:.2f} s", file=sys.stderr, flush=True)
        return list(found.values())
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(earlier)], check=False)


def table(result: dict[str, object], measured: Sequence[Row]) -> str:
    """The table of the page."""
    lines = [
        f"Measured by `{result['command']}` on {result['machine']}, {result['cores']} cores, beside nothing else;",
        f"before is commit {result['before']}. Medians.",
        "",
        f"| | before, s | now, s | ratio | {ALONE}, s | now against it | memory, MB: before, now, alone |",
        "|-|-|-|-|-|-|-|",
    ]
    for row in measured:
        of = {side: median(values) for side, values in row.seconds.items()}
        memory = [f"{median(row.megabytes[side]):.0f}" for side in (BEFORE, NOW, ALONE) if row.megabytes.get(side)]
        single = f"{of[ALONE]:.2f} | {of[NOW] / of[ALONE]:.2f}x" if ALONE in of else "| "
        both = f"{of[BEFORE]:.2f} | {of[NOW]:.2f} | {of[NOW] / of[BEFORE]:.2f}"
        lines.append(f"| {row.name} | {both} | {single} | {', '.join(memory)} |")
    return "\n".join(lines)


def write_page(text: str) -> None:
    """Puts the table between the page's marks."""
    begin, end = "<!-- tool speed: begin -->", "<!-- tool speed: end -->"
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(begin)
    PAGE.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    """Measures, prints the table, and writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--before", required=True, metavar="REV")
    parser.add_argument("--runs", type=int, default=3, help="of the short commands and of export")
    parser.add_argument("--only", action="append", default=[], choices=["start", "doctor", "export", "check", "ship"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="rewrite the table of docs/performance.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attnport-tool-speed-") as scratch:
        measured = measure(f"hf:{given.model}", given.before, given.runs, given.only, Path(scratch))
    from attnport.folder.machine import machine

    here = machine()
    result: dict[str, object] = {
        "command": f"python benchmarks/tool_speed.py --model FOLDER --before {given.before}",
        "before": given.before,
        "machine": here.cpu,
        "cores": here.cores,
        "python": platform.python_version(),
    }
    text = table(result, measured)
    print(text)
    if given.json is not None:
        given.json.write_text(json.dumps(result | {"rows": [asdict(row) for row in measured]}, indent=1) + "\n")
    if given.docs:
        write_page(text)


if __name__ == "__main__":
    main()
