"""Makes the table of `coverage.md`: every model of attnport on every target, by the verbs themselves.

    python docs/make_coverage.py [--json FILE] [MODEL ...]

With models named, their rows are printed and `coverage.md` stays as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from make_masks import made_on, place

from attnport.artifacts import FusionTable

PAGE = Path(__file__).resolve().parent / "coverage.md"
COLUMNS = {
    "ort_cpu": ("ort_cpu", "fp32"),
    "openvino": ("openvino", "fp32"),
    "onnx_18": ("onnx_18", "fp32"),
    "tensorrt_rtx fp16": ("tensorrt_rtx", "fp16"),
    "tensorrt_rtx bf16": ("tensorrt_rtx", "bf16"),
    "tensorrt_rtx fp16_islands": ("tensorrt_rtx", "fp16_islands"),
}


@dataclass(frozen=True)
class Cell:
    """One model on one target: how many attentions are fused of those counted, in which kernels, and why not all."""

    model: str
    column: str
    attentions: int
    fused: int
    kernels: tuple[str, ...]
    reasons: tuple[str, ...]


def measure(model: str, progress: Callable[[str], None] = lambda message: None) -> list[Cell]:
    """Exports a model and fuses it for every column; what a verb refuses is a reason in the cell."""
    from attnport.errors import AttnportError
    from attnport.pipeline.export import export
    from attnport.pipeline.fuse import fuse

    cells = []
    with tempfile.TemporaryDirectory(prefix="attnport-coverage-") as folder:
        out = Path(folder) / "out"
        progress(f"{model}: export")
        counted = len(export(model, out).attentions)
        for column, (target, plan) in COLUMNS.items():
            progress(f"{model}: {column}")
            try:
                report = fuse(out, targets=[target], plans={target: plan})
                usual = target != "tensorrt_rtx" or plan == "fp16"
                cells.append(_cell(model, column, report.targets[target if usual else f"{target}.{plan}"]))
            except AttnportError as err:
                cells.append(Cell(model, column, counted, 0, (), (err.message,)))
    return cells


def _cell(model: str, column: str, table: FusionTable) -> Cell:
    kernels = sorted({item.kernel for item in table.items if item.kernel})
    reasons = dict.fromkeys(item.reason for item in table.items if not item.fused)
    return Cell(model, column, table.attentions, table.fused, tuple(kernels), tuple(reasons))


def written(cells: Sequence[Cell]) -> str:
    """The table, and the reasons below it by number."""
    reasons: dict[str, int] = {}
    lines = [f"| model | {' | '.join(COLUMNS)} |", f"|-{'|-' * len(COLUMNS)}|"]
    for model in dict.fromkeys(cell.model for cell in cells):
        row = [_text(cell, reasons) for cell in cells if cell.model == model]
        lines.append(f"| `{model}` | {' | '.join(row)} |")
    lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items())]
    return "\n".join(lines)


def _text(cell: Cell, reasons: dict[str, int]) -> str:
    if not cell.attentions:
        return "no softmax" if not cell.reasons else _numbers(cell, reasons)
    known = f"{cell.fused}/{cell.attentions}"
    kernels = f" `{'`, `'.join(cell.kernels)}`" if cell.kernels else ""
    return f"{known}{kernels}{_numbers(cell, reasons)}"


def _numbers(cell: Cell, reasons: dict[str, int]) -> str:
    found = [str(reasons.setdefault(" ".join(reason.split()), len(reasons) + 1)) for reason in cell.reasons]
    return f" ({', '.join(found)})" if found else ""


def main() -> None:
    """Measures and writes."""
    from attnport.models import base

    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="*", metavar="MODEL")
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    cells = [
        cell
        for model in chosen.models or base.names()
        for cell in measure(model, lambda message: print(message, file=sys.stderr, flush=True))
    ]
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    if chosen.models:
        print(written(cells))
    else:
        PAGE.write_text(place(PAGE.read_text(), written(cells), made_on("docs/make_coverage.py")))


if __name__ == "__main__":
    main()
