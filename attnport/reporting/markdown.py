"""The report as GitHub-flavoured Markdown: the facts of the page without its pictures.

Names, reasons and evidence come from models, files and libraries; `escaped` keeps them from being markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from attnport.artifacts import FusionReport, LatencyReport, LayerReport, Manifest, ParityReport
from attnport.reporting.advice import BASIS
from attnport.reporting.along import LAYERS, SIZES
from attnport.reporting.facts import (
    BOUND,
    FUSED,
    UNCHECKED,
    again,
    by_median,
    count,
    embed,
    failed,
    fastest_right,
    matrix,
    not_counted,
    not_run,
    ran,
    tallies,
    times,
)
from attnport.reporting.findings import Findings
from attnport.reporting.markup import printable
from attnport.reporting.measures import NONE, megabytes, milliseconds, scientific, significant
from attnport.reporting.metrics import (
    ARGMAX,
    CENSUS,
    LEGEND,
    PADDED,
    ULPS,
    argmax,
    has,
    nonfinite,
    padded,
    ulps,
    worst_metrics,
)
from attnport.reporting.recommendation import Recommendation
from attnport.reporting.series import Series, first_beyond, layer_errors, scalings
from attnport.reporting.timings import CACHED, DEVICE, KEPT, MEMORY, PARTS, has_cached, has_memory, on_device, ratio

_MARKUP = re.compile(r"([\\`*_\[\]|<>~&$]|(?<=^)[-+#=]|(?<=^\d)[.)]|(?<=^\d\d)[.)]|:(?=//)|(?<=www)\.)")


def escaped(value: object) -> str:
    """Text in which nothing is markup, a table's border or a line's end."""
    return _MARKUP.sub(r"\\\1", " ".join(printable(str(value)).split()))


def code(value: str) -> str:
    """A name as code; one with a backtick or a table's border as plain text."""
    text = " ".join(printable(value).split())
    return f"`{text}`" if text and not set("`|") & set(text) else escaped(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A table of cells that are Markdown already; columns of `numbers` are aligned to the right."""
    right = set(numbers)
    lines = [head, ["--:" if place in right else ":--" for place in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def block(lines: Iterable[str]) -> str:
    """Commands as a fenced block, the fence longer than any in them."""
    text = "\n".join(printable(line) for line in lines)
    longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def bullets(items: Iterable[str]) -> str:
    """A list of Markdown items."""
    return "\n".join(f"- {item}" for item in items)


def render(found: Findings) -> str:
    """Makes the file; what has not run is named with its command."""
    manifest, folder = found.manifest, found.quoted
    dims = [f"{dim.name} {dim.min} to {dim.max}" for dim in manifest.io.dims]
    facts = [code(manifest.source.text), f"opset {manifest.opset}", count(len(manifest.attentions), "attention")]
    parts = [
        f"# {escaped(manifest.name)}",
        " · ".join([*facts, *map(escaped, dims)]),
        _verdict(found),
        *_recommendation(found.recommendation, found.latency),
        *_fusion(found.fusion, manifest, folder),
        *_parity(found.parity, folder),
        *_layers(found.layers, folder),
        *_latency(found.latency, manifest, folder),
        *_environment(found.environment, manifest),
        "## Run again, embed",
        block([*again(manifest, folder), *embed(folder)]),
        f"Made by attnport {escaped(manifest.attnport)}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _pending(command: str) -> str:
    return f"Not run yet: {code(command)}"


def _verdict(found: Findings) -> str:
    lines = []
    if found.parity is not None:
        lines.append(f"Parity: **{found.parity.verdict}**, {', '.join(tallies(found.parity))}")
        if wrong := failed(found.parity):
            lines.append(f"Outside: {', '.join(map(code, wrong))}")
    if found.fusion is not None:
        lines.append(
            "Attention fused: " + ", ".join(f"{code(target)} {proof}" for target, proof in found.fusion.targets.items())
        )
    if found.latency is not None:
        for workload, (runtime, row) in fastest_right(found.latency, found.parity).items():
            ratio = f", {row.ratio[1]:.2f} [{row.ratio[0]:.2f}, {row.ratio[2]:.2f}]" if row.ratio else ""
            lines.append(
                f"Fastest, {escaped(workload)}: {code(runtime)}, {milliseconds(row.median_ns)} ms{ratio}, "
                f"{escaped(row.verdict)}{f', {UNCHECKED}' if found.parity is None else ''}"
            )
        for why, names in not_counted(found.latency, found.parity).items():
            lines.append(f"Not counted as fastest: {', '.join(map(code, names))}, {escaped(why)}")
    reasons = not_run(found.parity, found.latency)
    lines += [f"NOT\\_RUN {code(key)}: {escaped(reason)}" for key, reason in reasons.items()]
    return bullets(lines)


def _recommendation(found: Recommendation | None, latency: LatencyReport | None) -> list[str]:
    if found is None:
        return []
    others = bullets(f"{code(key)}: {escaped(why)}" for key, why in found.others.items())
    rest = [f"Why not the others:\n\n{others}"] if others else []
    title = "## Recommendation"
    if found.choice is None:
        steps = [block(found.commands)] if found.commands else []
        return [title, f"Nothing can be recommended: {escaped(found.reason)}.", *steps, *rest]
    choice, baseline = found.choice, latency.baseline if latency else ""
    rows = [
        [
            escaped(timing.workload),
            milliseconds(timing.median_ns),
            *ratio(timing.ratio),
            escaped(timing.verdict),
        ]
        for timing in choice.timings
    ]
    head = ["Workload", "Median ms", f"Ratio to {code(baseline)}", "Interval", "Verdict"]
    notes = [f"No difference shown to {', '.join(map(code, found.ties))} on any workload."] if found.ties else []
    return [
        title,
        f"**{code(choice.runtime)}**, {choice.plan}, form {code(choice.form)} ({code(choice.file)}). {BASIS}",
        table(head, rows, numbers=(1, 2, 3)),
        bullets([*notes, *map(escaped, found.notes)]),
        block([choice.command]),
        *rest,
    ]


def _fusion(report: FusionReport | None, manifest: Manifest, folder: str) -> list[str]:
    title = "## Fusion"
    if report is None:
        return [title, _pending(f"attnport fuse {folder}")]
    rows = []
    for target, found in report.targets.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for item in found.items:
            unfused = "NOT PROVEN" if found.proved_by is None else "NOT FUSED"
            why = item.cost if item.fused else item.reason or "no reason was given"
            kernel = code(item.kernel) if item.kernel else NONE
            state = "FUSED" if item.fused else unfused
            key = (state, kernel, escaped(item.form), escaped(item.mask or NONE), escaped(why))
            alike.setdefault(key, []).append(item.attention)
        proof = code(found.proved_by) if found.proved_by else NONE
        rows += [[code(target), _some(names), *key[:-1], proof, key[-1]] for key, names in alike.items()]
    head = ["Target", "Attentions", "State", "Kernel", "Form", "Mask", "Proved by", "Reason or cost"]
    lead = f"{count(len(manifest.attentions), 'attention')} counted in the torch graph at export. {FUSED}"
    return [title, f"{lead} `fusion.json` has the evidence.", table(head, rows)]


def _some(names: Sequence[str]) -> str:
    """Names in one cell: all of up to two, else the first and the last."""
    if len(names) < 3:
        return ", ".join(map(code, names))
    return f"{len(names)}: {code(names[0])} to {code(names[-1])}"


def _parity(report: ParityReport | None, folder: str) -> list[str]:
    title = "## Parity"
    if report is None:
        return [title, _pending(f"attnport check {folder}")]
    found = matrix(report)
    head = ["Runtime or form", "Verdict"]
    head += [escaped(case) + (f" ({batches} batches)" if batches > 1 else "") for case, batches in found.columns]
    rows = []
    for each in found.rows:
        cells = [NONE if cell.verdict is None else f"{cell.verdict} {times(cell.share)}" for cell in each.cells]
        cells = cells or [escaped(each.reason), *[""] * (len(found.columns) - 1)][: len(found.columns)]
        label = code(each.key) if each.kind == "runtime" else f"form {code(each.key)}"
        rows.append([label, each.verdict, *(cell.replace("NOT_RUN", "NOT\\_RUN") for cell in cells)])
    notes = [*(f"{code(each.key)}: {escaped(each.reason)}" for each in found.rows if each.verdict == "FAIL")]
    return [
        title,
        BOUND,
        table(head, rows),
        bullets([*notes, *map(escaped, report.notes)]),
        *_metrics(report),
    ]


def _metrics(report: ParityReport) -> list[str]:
    """The worst of each metric by runtime and form; what none has is no column."""
    named = [(code(key), found.cases) for key, found in report.runtimes.items() if found.cases]
    named += [(f"form {code(key)}", found.cases) for key, found in report.forms.items() if found.cases]
    if not named:
        return []
    shown = has(case for _, cases in named for case in cases)
    head = ["Runtime or form", "Relative", "Least cosine", *(ULPS if shown.ulps else ())]
    head += [CENSUS, *[ARGMAX] * shown.argmax, *[PADDED] * shown.padded]
    rows = []
    for label, cases in named:
        worst = worst_metrics(cases)
        cells = [scientific(worst.relative), NONE if worst.cosine is None else f"{worst.cosine:.8f}"]
        cells += ulps(worst.ulps) if shown.ulps else ()
        cells += [nonfinite(worst.census) if worst.census else NONE]
        cells += [argmax(worst.argmax)] * shown.argmax + [padded(worst.padded)] * shown.padded
        rows.append([label, *cells])
    lead = f"The worst of each metric over all cases and outputs that could be compared; counts are sums. {LEGEND}"
    where = "`parity.json` has each case and output; so has the page, `report.html`, where it folds out."
    right = range(1, len(head) - shown.padded)
    return [f"{lead} {where}", table(head, rows, numbers=right)]


def _layers(report: LayerReport | None, folder: str) -> list[str]:
    title = "## Error by layer"
    if report is None or not report.layers:
        return [title, _pending(f"attnport check {folder} --bisect")]
    beyond = [f"{code(runtime)} leaves its bound at {code(layer)}" for runtime, layer in first_beyond(report).items()]
    reasons = [f"{code(key)}: {escaped(found.reason)}" for key, found in report.runtimes.items() if found.reason]
    lead = f"{LAYERS} Case: {escaped(report.case)}, the one that comes nearest to its bound."
    return [title, lead, bullets([*beyond, *reasons]), _along(layer_errors(report), "Layer", scientific)]


def _along(series: Series, heading: str, show: Callable[[float | None], str]) -> str:
    lines = list(series.lines.values())
    rows = [
        [code(place), *(NONE if line[index] is None else show(line[index]) for line in lines)]
        for index, place in enumerate(series.places)
    ]
    return table([heading, *map(code, series.lines)], rows, numbers=range(1, len(lines) + 1))


def _latency(report: LatencyReport | None, manifest: Manifest, folder: str) -> list[str]:
    title = "## Latency"
    if report is None:
        return [title, _pending(f"attnport bench {folder}")]
    cached = has_cached(report)
    rows = []
    for workload, timed in report.shapes.items():
        for runtime, row in by_median(timed):
            rows.append(
                [
                    escaped(workload),
                    code(runtime),
                    escaped(row.verdict),
                    milliseconds(row.median_ns),
                    *ratio(row.ratio, row.verdict),
                    milliseconds(row.p90_ns),
                    significant(row.tokens_per_s),
                    megabytes(row.peak_bytes),
                    milliseconds(row.load_ns),
                    milliseconds(row.first_ns),
                    *(milliseconds(again) for again in (row.cached_load_ns, row.cached_first_ns) if cached),
                    escaped("; ".join(part for part in (ran(row.ran) if row.ran else "", row.reason) if part)),
                ]
            )
    head = ["Workload", "Runtime", "Verdict", "Median ms", "Ratio", "Interval", "p90 ms", "Tokens/s", "Peak MB"]
    head += ["Load ms", "First call ms", *(CACHED if cached else ()), "Ran; what to know"]
    parts = [
        title,
        f"Time relative to {code(report.baseline)} in the same run; below 1 is faster.",
        table(head, rows, numbers=range(3, len(head) - 1)),
        " ".join([*[KEPT] * cached, *[MEMORY] * has_memory(report)]),
        *_device(report),
        bullets(map(escaped, report.notes)),
    ]
    varied = scalings(report)
    if not varied:
        more = again(manifest, folder)[-1]
        return [*parts, f"Time and memory against sizes: one size alone was timed. More: {code(more)}"]
    parts.append(SIZES)
    for scaling in varied:
        kept = f" at {scaling.kept}" if scaling.kept else ""
        parts += [
            f"Median ms by {escaped(scaling.dim + kept)}:",
            _along(scaling.times, escaped(scaling.dim), milliseconds),
            f"Peak MB by {escaped(scaling.dim + kept)}:",
            _along(scaling.memory, escaped(scaling.dim), megabytes),
        ]
    return parts


def _device(report: LatencyReport) -> list[str]:
    """What events on a device timed, where any did."""
    found = [(workload, runtime, row) for workload, rows in on_device(report).items() for runtime, row in rows]
    if not found:
        return []
    compared = any(row.device_ratio for _, _, row in found)
    head = ["Workload", "Runtime", *PARTS.values(), *(("Ratio", "Interval") if compared else ())]
    rows = [
        [
            escaped(workload),
            code(runtime),
            *(milliseconds(row.parts_ns.get(part)) for part in PARTS),
            *(ratio(row.device_ratio, row.verdict) if compared else ()),
        ]
        for workload, runtime, row in found
    ]
    return [DEVICE, table(head, rows, numbers=range(2, len(head)))]


def _environment(facts: Mapping[str, str], manifest: Manifest) -> list[str]:
    rows = [[escaped(key), escaped(value)] for key, value in {**facts, **manifest.versions}.items()]
    return ["## Environment", table(["What", "Value"], rows)] if rows else []
