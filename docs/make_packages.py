"""Makes `packages.md` of the results of `benchmarks/sweep_packages.py`.

python docs/make_packages.py
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from make_models import brief, named_versions  # noqa: E402  # it lies beside this file

RESULTS = HERE.parent / "benchmarks" / "sweep_packages.json"
PAGE = HERE / "packages.md"
SIDES = {"torch": "torch.onnx alone", "examples": "from an example", "declared": "with declarations"}
OURS = ("examples", "declared")
TARGETS = {"ort_cpu": "ONNX Runtime", "openvino": "OpenVINO"}

INTRODUCTION = """\
# Modules of other packages

Measured with {versions}, on one core.

Each module below is of a package that people publish, made small with random weights, and exported by
`torch.onnx.export` alone (with the axes that vary, at its own opset and at 23: the better counts), by
`attnport.export(module, folder, args=...)` with an example alone, and with its inputs declared. Which dims vary is
found by running the module. **right**: ONNX Runtime on CPU, and of attnport's graphs OpenVINO too, gives the module's
numbers at the sizes of the example and at five others, within 1e-3 of their RMS. **limited**: the graph is right and
takes fewer sizes than the module, which a note says. **fused**: attentions that one kernel covers, of those counted, on
ONNX Runtime and on OpenVINO. The seconds are the processor's, of the export by itself. Rows are of the code of their
day, which the JSON names; those from before 2026-11-29 were judged on ONNX Runtime alone.

`make .cache/published/.made` installs the packages, in the releases of `benchmarks/packages.txt`.
`python benchmarks/sweep_packages.py` measures what is not known yet, `python docs/make_packages.py` makes this page of
`benchmarks/sweep_packages.json`.

"""

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]


def page(found: Results) -> str:
    """The page of these results, by module and side."""
    made = {name: sides for name, sides in found.items() if all(side["made"] for side in sides.values())}
    ran = [side for sides in made.values() for side in sides.values()]
    versions = sorted({word for side in ran for word in named_versions(side["of"])})
    parts = [*counts(made), "", *table(made), *reasons(made)]
    return INTRODUCTION.format(versions=", ".join(versions)) + "\n".join(parts) + "\n"


def counts(made: Results) -> Iterator[str]:
    """How many are right on each side, what is missing, what is fused, and how long it takes."""
    packages = {side["package"] for sides in made.values() for side in sides.values()}
    yield f"- {len(made)} modules of {len(packages)} packages were tried."
    for side, title in SIDES.items():
        tried = [sides[side] for sides in made.values() if side in sides]
        yield f"- {title}: {sum(each['right'] for each in tried)} of {len(tried)} are right."
    for side in OURS:
        lost = [name for name, sides in made.items() if {"torch", side} <= sides.keys() and sides["torch"]["right"] and
                not sides[side]["right"]]  # fmt: skip
        yield f"- Right with torch.onnx alone and not {SIDES[side]}: {len(lost)}{listed(lost)}."
    ours = [(name, sides[side]) for name, sides in made.items() for side in OURS if side in sides]
    silent = list(dict.fromkeys(name for name, side in ours if side.get("silent")))
    passed = list(dict.fromkeys(name for name, side in ours if side.get("verdict") == "PASS"))
    yield f"- Sizes that the graph does not take, without a note: {len(silent)}{listed(silent)}."
    yield f"- Wrong, and PASS in `check`: {len(passed)}{listed(passed)}."
    tables = list({name: side for name, side in ours if side.get("fused")}.values())
    counted = sum(side["attentions"] for side in tables)
    for target, title in TARGETS.items():
        fused = sum(side["fused"][target] for side in tables)
        none = sum(side.get("no_kernel", {}).get(target, 0) for side in tables)
        share = f" ({fused / (counted - none):.0%} without {none} that no fused kernel computes)" if none else ""
        yield f"- Fused on {title}: {fused} of {counted} attentions{share}."
    for side in OURS:
        both = [(sides["torch"], sides[side]) for sides in made.values() if {"torch", side} <= sides.keys()]
        times = [own["export_s"] / peer["export_s"] for peer, own in both if own["exported"] and peer["exported"]]
        if times:
            yield (
                f"- {SIDES[side]}, an export takes {statistics.median(times):.1f} times torch.onnx's seconds alone "
                f"in the median, and {max(times):.1f} times at most."
            )


def listed(names: list[str]) -> str:
    """Names behind a number."""
    return f": {', '.join(names)}" if names else ""


def table(made: Results) -> Iterator[str]:
    """A row for each module."""
    yield f"| module |{''.join(f' {title} | s |' for title in SIDES.values())} fused: ONNX Runtime, OpenVINO | memory |"
    yield f"|{'-|' * (3 + 2 * len(SIDES))}"
    for name, sides in made.items():
        cells = [name]
        for side in SIDES:
            cells += [cell(sides[side]), f"{sides[side].get('export_s', 0):.1f}"] if side in sides else ["", ""]
        tables = [sides[side] for side in OURS if sides.get(side, {}).get("fused")]
        fused = (
            [f"{number}/{tables[-1]['attentions']}" for number in map(tables[-1]["fused"].get, TARGETS)]
            if tables
            else []
        )
        peak = max((side.get("peak_mib", 0) for name, side in sides.items() if name in OURS), default=0)
        yield f"| {' | '.join([*cells, ' '.join(fused), f'{peak} MiB'])} |"


def cell(result: Mapping[str, Any]) -> str:
    """right, limited, wrong or refused."""
    if result["right"]:
        return "right"
    if not result["exported"]:
        return "refused"
    return "limited" if result.get("limited") and result["reason"] == "; ".join(result["limited"]) else "**wrong**"


def reasons(made: Results) -> Iterator[str]:
    """For each side, the reasons of the modules that are not right there."""
    for side, title in SIDES.items():
        rows = [f"- {name}: {brief(sides[side]['reason'])}" for name, sides in made.items()
                if side in sides and not sides[side]["right"]]  # fmt: skip
        if rows:
            yield from ("", f"## Not right: {title}", "", *rows)
    causes: dict[str, None] = {}
    for name, sides in made.items():
        for side in OURS:
            causes |= {f"- {name}: {brief(reason)}": None for reason in sides.get(side, {}).get("reasons", ())}
    if causes:
        yield from ("", "## Not fused", "", *causes)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(json.loads(RESULTS.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
