"""Facts that all formats of the report share: tallies, what was not run, the fastest runtimes, commands."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from attnport.artifacts import (
    CaseResult,
    InvarianceResult,
    LatencyReport,
    LatencyRow,
    Manifest,
    ParityReport,
    Ran,
    Verdict,
)
from attnport.parities import FACTORS
from attnport.reporting import document as doc
from attnport.reporting.document import NONE, significant

T = TypeVar("T")
_WORDS = {2.0: "twice", 3.0: "three times", 4.0: "four times"}
BOUND = (
    "Every output is compared with a float64 run of the module over its valid elements. The bound is "
    f"{_WORDS[FACTORS[0]]} the RMS error of PyTorch eager at the same precision and {_WORDS[FACTORS[1]]} its largest "
    "error, plus 4 eps of the reference’s RMS. "
    "The number in a cell is the larger of the two errors divided by its bound."
)

PROGRAM = "source/program.py"
"""The trace of a module in memory, in its artifact folder."""


def count(number: int, what: str) -> str:
    """`1 runtime`, `2 runtimes`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def ran(ran_as: Ran | None) -> str:
    """What really ran, in one line."""
    return ", ".join(part for part in (ran_as.provider, ran_as.device, ran_as.precision) if part) if ran_as else NONE


def times(value: float | None) -> str:
    """A share of a bound with two decimals, or fewer above ten; `not finite` for NaN."""
    if value is None:
        return NONE
    if math.isnan(value):
        return "not finite"
    return f"{value:.2f}" if value < 10 else significant(value)


def short_shape(shape: str) -> str:
    """The name of a workload for the head of a column: `8x128` for `batch=8,seq=128`."""
    return re.sub(r"(^|,)\w+=", lambda match: "x" if match[1] else "", shape)


def tallies(report: ParityReport) -> list[str]:
    """How many runtimes and forms are within the bound."""
    lines = []
    for members, what in ((report.runtimes, "runtime"), (report.forms, "form")):
        passed = sum(item.verdict == "PASS" for item in members.values())
        run = sum(item.verdict != "NOT_RUN" for item in members.values())
        lines.append(f"{passed} of {count(run, what)} within the bound")
    return lines


def worst(verdicts: list[Verdict]) -> Verdict:
    """FAIL if any fails, else PASS if one passes, else NOT_RUN."""
    return "FAIL" if "FAIL" in verdicts else "PASS" if "PASS" in verdicts else "NOT_RUN"


def part_compared(results: Iterable[InvarianceResult]) -> str:
    """`1 of 2 outputs` where not every output was compared with other padding; else ""."""
    results = list(results)
    every = {result.output for result in results}
    left_out = {result.output for result in results if result.verdict == "NOT_RUN"}
    return f"{len(every - left_out)} of {len(every)} outputs" if left_out else ""


def largest(results: Iterable[CaseResult | InvarianceResult]) -> float | None:
    """The largest error of some results, divided by its bound.

    NaN where a result fails by NaN or Inf, and None where one fails that has no error: no error of others is the worst.
    """
    results = list(results)
    bad = [result for result in results if result.verdict == "FAIL"]
    if any(isinstance(result, CaseResult) and result.nonfinite for result in bad):
        return math.nan
    if any(result.used is None for result in bad):
        return None
    return max((result.used for result in results if result.used is not None), default=None)


def failed(report: ParityReport) -> list[str]:
    """The runtimes and forms that failed."""
    return [key for key, result in (*report.runtimes.items(), *report.forms.items()) if result.verdict == "FAIL"]


def not_run(parity: ParityReport | None, latency: LatencyReport | None) -> dict[str, str]:
    """What did not run and why, without duplicates and what is `absent`; a form named as a runtime has its own line."""
    reasons: dict[str, str] = {}
    if parity is not None:
        reasons |= {key: result.reason for key, result in parity.runtimes.items() if result.verdict == "NOT_RUN"}
        reasons |= {
            f"{key} (form)": result.reason for key, result in parity.forms.items() if result.verdict == "NOT_RUN"
        }
    if latency is not None:
        for rows in latency.shapes.values():
            for key, row in rows.items():
                if row.kind and key not in reasons:
                    reasons[f"{key} (latency)"] = row.reason
    return {key: reason or "no reason was given" for key, reason in without(absent(parity, latency), reasons).items()}


def fastest(rows: Mapping[str, LatencyRow]) -> tuple[str, LatencyRow] | None:
    """The runtime with the smallest median, or None if nothing was measured."""
    timed = [(runtime, row) for runtime, row in rows.items() if row.median_ns is not None]
    return min(timed, key=lambda pair: pair[1].median_ns or 0.0) if timed else None


def fastest_right(latency: LatencyReport, parity: ParityReport | None) -> dict[str, tuple[str, LatencyRow]]:
    """The fastest runtime of each workload, of those that passed parity.

    Without a parity report, of all that were timed; it must then be shown with `UNCHECKED`.
    """
    left = {name for names in not_counted(latency, parity).values() for name in names}
    by_workload = {
        workload: fastest({runtime: row for runtime, row in timed.items() if runtime not in left})
        for workload, timed in latency.shapes.items()
    }
    return {workload: best for workload, best in by_workload.items() if best is not None}


def not_counted(latency: LatencyReport, parity: ParityReport | None) -> dict[str, list[str]]:
    """By reason, the timed runtimes that cannot count as the fastest, as their numbers were not shown to be right.

    Other ways to run a call, `NAME (graph)`, are among them: parity only checks plain calls, not the outputs of a
    captured graph. Empty without a parity report.
    """
    if parity is None:
        return {}
    timed = dict.fromkeys(
        name for rows in latency.shapes.values() for name, row in rows.items() if row.median_ns is not None
    )
    reasons: dict[str, list[str]] = {}
    for name in timed:
        if reason := _unproved(name, parity):
            reasons.setdefault(reason, []).append(name)
    return reasons


def _unproved(name: str, parity: ParityReport) -> str:
    """Why the numbers of a latency row were not shown to be right; "" if they were."""
    plain, way, mode = name.partition(" (")
    own = parity.runtimes.get(name)
    judged = own or parity.runtimes.get(plain)
    if judged is None:
        return "parity was not checked"
    if own is None and judged.verdict == "PASS":
        return f"parity judged its calls as they are, without {way.strip()}{mode}"
    return {"PASS": "", "FAIL": "parity failed", "NOT_RUN": "parity was not run"}[judged.verdict]


def never_timed(report: LatencyReport) -> dict[str, str]:
    """The runtimes without figures for any workload, and why, if the reason is always the same."""
    reasons: dict[str, set[str]] = {}
    for rows in report.shapes.values():
        for name, row in rows.items():
            reasons.setdefault(name, set()).add(row.reason if row.kind else "")
    return {name: why for name, (why, *others) in reasons.items() if why and not others}


def by_median(rows: Mapping[str, LatencyRow]) -> list[tuple[str, LatencyRow]]:
    """Measured rows by their median, then the others."""
    return sorted(rows.items(), key=lambda pair: (pair[1].median_ns is None, pair[1].median_ns or 0.0))


def grid(manifest: Manifest) -> str:
    """A `--shape` grid over the first two dims that can vary: smallest and usual size of one, a series of the other.

    "" if no dim of the model can vary.
    """
    varying = [dim for dim in manifest.io.dims if dim.min < dim.max][:2]
    parts = []
    for place, dim in enumerate(varying):
        coarse = place == 0 and len(varying) == 2
        wanted = (dim.min, dim.opt) if coarse else (dim.opt // 4, dim.opt // 2, dim.opt, 2 * dim.opt)
        sizes = sorted({dim.at_least(size) for size in wanted})
        parts.append(f"{dim.name}={'/'.join(map(str, sizes))}")
    return ",".join(parts)


def reference(manifest: Manifest) -> list[str]:
    """What the float64 reference of a module in memory is; nothing for others, whose SPEC says it."""
    if not manifest.source.in_memory:
        return []
    if PROGRAM in manifest.files:
        return [f"reference: the module in the process that exported it, elsewhere its trace, {PROGRAM}"]
    return ["reference: the module in the process that exported it"]


def again(manifest: Manifest, folder: str) -> list[str]:
    """The commands that make the folder again and examine it; `folder` is quoted for a shell."""
    shape = grid(manifest)
    ship = f"attnport ship {shlex.join([manifest.source.text, *manifest.source.options])} -o {folder}"
    return [
        *([] if manifest.source.in_memory else [ship]),
        f"attnport fuse {folder} --explain",
        f"attnport check {folder} --bisect",
        f"attnport bench {folder}" + (f" --shape {shape}" if shape else ""),
    ]


def embed(folder: str) -> list[str]:
    """The commands that embed the recommended form, or that for ONNX Runtime on CPU."""
    return [f"attnport bundle {folder} -o app/ --lang python", "attnport verify app/"]


def absent(parity: ParityReport | None, latency: LatencyReport | None) -> dict[str, str]:
    """Those that both reports lack, as far as there are any, and why."""
    sides = [report.absent for report in (parity, latency) if report is not None]
    return {name: why for name, why in (sides[0] if sides else {}).items() if all(name in side for side in sides)}


def of_absent(names: Sequence[str]) -> doc.Line:
    """One line for all of them."""
    return (f"{len(names)} more {wanting(names)}: ", doc.listed(map(doc.Name, names)))


def lacking(names: Sequence[str]) -> Iterator[doc.Block]:
    """That line below a table, and where to read why; nothing for none."""
    if names:
        yield doc.Text((of_absent(names), "; why: ", doc.Code("attnport doctor")))


def wanting(names: Sequence[str]) -> str:
    """What they want."""
    return f"want{'s' if len(names) == 1 else ''} a GPU or a package"


def without(names: Iterable[str], by_name: Mapping[str, T]) -> dict[str, T]:
    """What has a name, but for these names."""
    left_out = set(names)
    return {name: value for name, value in by_name.items() if name not in left_out}
