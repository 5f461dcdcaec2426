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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from make_masks import made_on, place, shares

from attnport.artifacts import FusionTable, ParityReport

PAGE = Path(__file__).resolve().parent / "coverage.md"
COLUMNS = {
    "ort_cpu": ("ort_cpu", "fp32"),
    "openvino": ("openvino", "fp32"),
    "onnx_18": ("onnx_18", "fp32"),
    "tensorrt_rtx fp16": ("tensorrt_rtx", "fp16"),
    "tensorrt_rtx bf16": ("tensorrt_rtx", "bf16"),
    "tensorrt_rtx fp16_islands": ("tensorrt_rtx", "fp16_islands"),
}
CHECKED = ("ort_cpu", "openvino", "onnx_reference")
"""The runtimes that every model must compute right on; the graph of every form is checked beside them."""
NARROW = ("fp16", "bf16")
"""How a plan begins that has half precision in it."""


@dataclass(frozen=True)
class Cell:
    """One model on one target: how many attentions are fused of those counted, in which kernels, and why not all.

    `wrong`: why the graph of a form in half precision failed parity, "" where it passed.
    """

    column: str
    attentions: int
    fused: int
    kernels: tuple[str, ...]
    reasons: tuple[str, ...]
    wrong: str = ""


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        parity: PASS, FAIL or NOT_RUN of all runtimes in `CHECKED` and of the graphs of all forms in float32.
        reason: What failed.
        cases: How many sizes and layouts of its masks were compared.
        share: The largest share that an error had of its bound; above 1 fails.
        cells: What became of its attentions, one for each of `COLUMNS`.
    """

    model: str
    parity: str
    reason: str
    cases: int
    share: float
    cells: tuple[Cell, ...]


def measure(model: str, progress: Callable[[str], None] = lambda message: None) -> Row:
    """Exports a model, fuses it for every column and checks it; what `fuse` refuses is a reason in the cell."""
    from attnport.errors import AttnportError
    from attnport.verbs.check import check
    from attnport.verbs.export import export
    from attnport.verbs.fuse import fuse

    cells = []
    with tempfile.TemporaryDirectory(prefix="attnport-coverage-") as folder:
        out = Path(folder) / "out"
        progress(f"{model}: export")
        counted = len(export(model, out).attentions)
        for column, (target, plan) in COLUMNS.items():
            progress(f"{model}: {column}")
            try:
                report = fuse(out, targets=[f"{target}.{plan}"])
                usual = target != "tensorrt_rtx" or plan == "fp16"
                cells.append(_cell(column, report.targets[target if usual else f"{target}.{plan}"]))
            except AttnportError as err:
                cells.append(Cell(column, counted, 0, (), (err.message,)))
        progress(f"{model}: check")
        return judged(model, check(out, CHECKED), cells)


def judged(model: str, parity: ParityReport, cells: Sequence[Cell]) -> Row:
    """The row of a model: one verdict and the worst share over all runtimes and float32 forms; others by their cell."""
    narrow = {name: form for name, form in parity.forms.items() if form.plan.startswith(NARROW)}
    every = {**parity.runtimes, **{name: form for name, form in parity.forms.items() if name not in narrow}}
    failed = {name.replace(".", " "): form.reason for name, form in narrow.items() if form.verdict != "PASS"}
    cells = [replace(cell, wrong=failed.get(cell.column, "")) for cell in cells]
    bad = next(((name, one) for name, one in every.items() if one.verdict != "PASS"), None)
    cases = {case.case for one in every.values() for case in one.cases}
    share = max((share for one in every.values() for share in shares(one)), default=0.0)
    verdict, reason = (bad[1].verdict, f"{bad[0]}: {bad[1].reason}") if bad else ("PASS", "")
    return Row(model, verdict, reason, len(cases), share, tuple(cells))


def _cell(column: str, table: FusionTable) -> Cell:
    kernels = sorted({item.kernel for item in table.items if item.kernel})
    reasons = dict.fromkeys(item.reason for item in table.items if not item.fused)
    return Cell(column, table.attentions, table.fused, tuple(kernels), tuple(reasons))


def written(rows: Sequence[Row]) -> str:
    """The table, and the reasons below it by number."""
    reasons: dict[str, int] = {}
    lines = [f"| model | parity | {' | '.join(COLUMNS)} |", f"|-|-{'|-' * len(COLUMNS)}|"]
    for row in rows:
        parity = f"{row.share:.2f} of {row.cases} cases" if row.parity == "PASS" else f"**{row.parity}**"
        shown = [parity + _numbers((row.reason,) if row.reason else (), reasons)]
        shown += [_text(cell, reasons) for cell in row.cells]
        lines.append(f"| `{row.model}` | {' | '.join(shown)} |")
    lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items())]
    return "\n".join(lines)


def _text(cell: Cell, reasons: dict[str, int]) -> str:
    wrong = f", parity **FAIL**{_numbers([cell.wrong], reasons)}" if cell.wrong else ""
    if not cell.attentions:
        return f"no softmax{_numbers(cell.reasons, reasons)}{wrong}"
    kernels = f" `{'`, `'.join(cell.kernels)}`" if cell.kernels else ""
    return f"{cell.fused}/{cell.attentions}{kernels}{_numbers(cell.reasons, reasons)}{wrong}"


def _numbers(given: Sequence[str], reasons: dict[str, int]) -> str:
    found = [str(reasons.setdefault(" ".join(reason.split()), len(reasons) + 1)) for reason in given]
    return f" ({', '.join(found)})" if found else ""


def main() -> None:
    """Measures and writes."""
    from attnport.models import base

    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", nargs="*", metavar="MODEL")
    arguments.add_argument("--json", type=Path)
    chosen = arguments.parse_args()
    rows = [
        measure(model, lambda message: print(message, file=sys.stderr, flush=True))
        for model in chosen.models or base.names()
    ]
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if chosen.models:
        print(written(rows))
    else:
        PAGE.write_text(place(PAGE.read_text(), written(rows), made_on("docs/make_coverage.py")))


if __name__ == "__main__":
    main()
