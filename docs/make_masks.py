"""Makes the tables of `masks.md`: every mask on every attention, exported, fused and checked by the verbs themselves.

    python docs/make_masks.py [--json FILE] [--only KIND]... [--attention ATTENTION]...

With `--only` or `--attention` the tables of those are printed, and `masks.md` stays as it is.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnport.artifacts import FusionTable, ParityReport, RuntimeParity

HERE = Path(__file__).resolve().parent
PAGE = HERE / "masks.md"
MODULES = HERE.parent / "examples" / "masked_attention.py"
START, END = "<!-- table -->", "<!-- /table -->"

KINDS = {
    "none": "none",
    "padding": "padding, a mask",
    "padding_lengths": "padding, lengths",
    "causal": "causal",
    "causal_padding": "causal and padding",
    "causal_lower_right": "causal, lower right",
    "window": "window, both sides",
    "causal_window": "causal window",
    "prefix": "prefix",
    "documents": "documents",
    "documents_causal": "causal documents",
    "local_global": "window and global",
    "alibi": "ALiBi bias",
    "t5_bias": "T5 bias",
    "explicit": "explicit, bool input",
    "explicit_bias": "bias, float input",
}
ATTENTIONS = {
    "self": "Self-attention",
    "cross": "Cross-attention",
    "grouped": "Grouped heads",
    "cached": "Behind a cache",
}
MEANINGLESS = {
    ("cross", "documents"): "the queries' documents and those of the keys are two inputs",
    ("cross", "documents_causal"): "the queries' documents and those of the keys are two inputs",
    ("cross", "local_global"): "the queries' marks and those of the keys are two inputs",
    ("self", "causal_lower_right"): "with as many queries as keys it is `causal`",
    ("grouped", "causal_lower_right"): "with as many queries as keys it is `causal`",
    ("cached", "causal"): "new tokens would see the oldest keys alone; behind a cache `causal` is lower right",
}
RUNTIMES = {"ort_cpu": "ort_cpu", "openvino": "openvino", "reference": "onnx", "tensorrt_rtx": "tensorrt_rtx"}
"""The columns, and the target of each one's form."""
SIZES = ("batch=1:4:8", "seq=1:24:64", "mem=1:20:64", "past=1:20:64")
_VERSIONS = ("torch", "onnxruntime", "openvino", "onnx", "tensorrt-rtx")


@dataclass(frozen=True)
class Cell:
    """What became of one attention with one mask on one runtime.

    Attributes:
        mask: What the mask was read as in the graph.
        kernel: The kernel that covers it; None where it is not fused, or where nothing fuses.
        reason: Why it is not fused, or what failed.
        verdict: PASS, FAIL or NOT_RUN, of the runtime and of its form's graph together.
        share: The largest share that an error had of its bound, on the runtime itself, or of the form's graph where
            that cannot run here; None where nothing was compared.
    """

    attention: str
    kind: str
    runtime: str
    mask: str
    kernel: str | None
    reason: str
    verdict: str
    share: float | None


def measure(attention: str, kind: str, progress: Callable[[str], None] = lambda message: None) -> list[Cell]:
    """Exports, fuses and checks one attention in a folder of its own.

    Returns:
        A cell for each of `RUNTIMES`; what cannot even be exported is FAIL in all of them.
    """
    from attnport.errors import AttnportError
    from attnport.verbs.check import check
    from attnport.verbs.export import export
    from attnport.verbs.fuse import fuse

    inputs = _modules().declarations(attention, kind)
    dims = [size for size in SIZES if any(size.partition("=")[0] in declared for declared in inputs)]
    with tempfile.TemporaryDirectory(prefix="attnport-masks-") as scratch:
        folder = Path(scratch) / "out"
        try:
            export(f"{MODULES}:{attention}_{kind}", folder, inputs=inputs, dims=dims, progress=progress)
            fusion = fuse(folder, targets=list(RUNTIMES.values()), progress=progress)
            parity = check(folder, ["ort_cpu", "openvino", "onnx_reference", "tensorrt_rtx"], progress=progress)
        except AttnportError as err:
            return [Cell(attention, kind, runtime, "", None, err.message, "FAIL", None) for runtime in RUNTIMES]
    return [cell(attention, kind, runtime, fusion.targets, parity) for runtime in RUNTIMES]


def cell(attention: str, kind: str, runtime: str, tables: Mapping[str, FusionTable], parity: ParityReport) -> Cell:
    """The cell of one runtime: its form's only attention, and parity of the runtime and of the form's graph."""
    target = RUNTIMES[runtime]
    item = tables[target].items[0]
    ran = {"reference": "onnx_reference", "tensorrt_rtx": ""}.get(runtime, runtime)  # an engine needs its GPU
    found = [parity.runtimes[ran]] if ran in parity.runtimes else []
    found += [form for name, form in parity.forms.items() if name.partition(".")[0] == target]
    if not found:
        raise ValueError(f"{attention} {kind}: nothing was compared for {runtime}")
    bad = next((one for one in found if one.verdict != "PASS"), None)
    fuses = runtime != "reference"
    return Cell(
        attention,
        kind,
        runtime,
        item.mask,
        item.kernel if fuses else None,
        bad.reason if bad else item.reason if fuses else "",
        bad.verdict if bad else "PASS",
        max(shares(found[0]), default=None),
    )


def shares(found: RuntimeParity) -> Iterable[float]:
    """Of each result the shares of its bounds, of RMS and of the largest error; none where nothing may differ."""
    for case in found.cases:
        pairs = ((case.rms_error, case.rms_bound), (case.max_error, case.max_bound))
        yield from (error / bound for error, bound in pairs if error is not None and bound > 0)


def written(
    cells: Sequence[Cell], attentions: Iterable[str] = tuple(ATTENTIONS), kinds: Sequence[str] = tuple(KINDS)
) -> str:
    """The tables, one for each attention, with the reasons numbered below."""
    reasons: dict[str, int] = {}
    parts = []
    for attention in attentions:
        rows = [row(attention, kind, cells, reasons) for kind in kinds]
        head = f"| mask | read as | {' | '.join(RUNTIMES)} |\n|{'-|' * (2 + len(RUNTIMES))}"
        parts.append("\n".join([f"### {ATTENTIONS[attention]}", head, *rows]))
    if reasons:
        parts.append("\n".join(f"{number}. {reason}" for reason, number in reasons.items()))
    return "\n\n".join(parts)


def row(attention: str, kind: str, cells: Sequence[Cell], reasons: dict[str, int]) -> str:
    """One line of an attention's table."""
    if (attention, kind) in MEANINGLESS:
        number = reasons.setdefault(f"Not made: {MEANINGLESS[attention, kind]}.", len(reasons) + 1)
        return f"| {KINDS[kind]} | ({number}) |{' - |' * len(RUNTIMES)}"
    found = {one.runtime: one for one in cells if (one.attention, one.kind) == (attention, kind)}
    masks = dict.fromkeys(f"`{one.mask}`" for one in found.values() if one.mask)
    return f"| {KINDS[kind]} | {', '.join(masks)} | {' | '.join(text(found[name], reasons) for name in RUNTIMES)} |"


def text(found: Cell, reasons: dict[str, int]) -> str:
    """A cell as it is shown: "fused `Attention` 0.27", or with the number of its reason "not fused (1) 0.27"."""
    share = "" if found.share is None else f"{found.share:.2f}"
    number = reasons.setdefault(found.reason, len(reasons) + 1) if found.reason else 0
    if found.verdict != "PASS":
        return f"**{found.verdict}** ({number})"
    if found.runtime == "reference":
        return share
    return f"fused `{found.kernel}` {share}" if found.kernel else f"not fused ({number}) {share}"


def place(page: str, tables: str, machine: str) -> str:
    """The page with what stands between its markers replaced."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise SystemExit(f"{PAGE} has no {START} ... {END}.")
    return f"{before}{START}\n{tables}\n\n{machine}\n{END}{after}"


def made_on(script: str = "docs/make_masks.py") -> str:
    """The script, the date, the processor and the versions that the tables were made with."""
    from attnport.folder.machine import machine, versions

    known = ", ".join(f"{name} {version}" for name, version in versions(_VERSIONS).items())
    return f"Made by `{script}` on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}: {machine().cpu}; {known}."


def _modules() -> Any:
    spec = importlib.util.spec_from_file_location(MODULES.stem, MODULES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Measures, writes, and exits with 1 where something fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write every cell here as well")
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind of mask alone")
    parser.add_argument("--attention", action="append", choices=ATTENTIONS, help="this attention alone")
    options = parser.parse_args()
    attentions, kinds = options.attention or tuple(ATTENTIONS), options.only or tuple(KINDS)
    wanted = [(attention, kind) for attention in attentions for kind in kinds if (attention, kind) not in MEANINGLESS]
    cells: list[Cell] = []
    for number, (attention, kind) in enumerate(wanted, start=1):
        print(f"{number}/{len(wanted)} {attention} {kind}", file=sys.stderr)
        cells += measure(attention, kind)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in cells], indent=1) + "\n")
    if options.only or options.attention:
        print(written(cells, attentions, kinds))
    else:
        PAGE.write_text(place(PAGE.read_text(), written(cells), made_on()))
    failed = [one for one in cells if one.verdict != "PASS"]
    for one in failed:
        print(f"{one.attention} {one.kind} {one.runtime}: {one.verdict}: {one.reason}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
