"""Full attention's growth with the length against window, linear and low-rank forms, in time and in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attnport.artifacts import LatencyRow
from attnport.errors import AttnportError
from attnport.reporting.document import significant
from attnport.verbs.build import build
from claims._artifacts import BOTH, ORT, absent, exported, here, model
from claims._findings import Findings, Progress, Verdict, both, of_exponent, of_ratio, table, unmeasured
from claims._fit import exponent
from claims._lines import lines
from claims._models import FEATURES, HEADS, MIXTURES, WIDTH, WINDOW
from claims._runs import Effort, median_ms, peaks, race, ratio

TITLE = "Full attention against window, linear and low-rank forms"
CLAIM = """Time and memory of full attention grow with the square of the length n (Vaswani et al., 2017); those of a
window (Beltagy et al., "Longformer", 2020), of kernel features ("Transformers are RNNs", Katharopoulos et al., 2020;
"Performers", Choromanski et al., 2021) and of a low rank ("Linformer", Wang et al., 2020) grow in proportion to it. A
fused kernel keeps the n x n scores out of memory ("FlashAttention", Dao et al., 2022)."""
WHOLE, WRITTEN_OUT, MASKED = "full", "full, written out", "window as a mask"
FORMS = {
    WHOLE: "full",
    WRITTEN_OUT: "full",
    MASKED: "window_as_mask",
    "window in chunks": "window",
    "linear": "linear",
    "Performer": "performer",
    "Linformer": "linformer",
}
"""The factory of each form; `WRITTEN_OUT` is `full` with its product, softmax and product as operators of their own."""
ENGINE, SINGLE, HALF = "tensorrt_rtx", "fp32", "fp16"
UNFUSED = f"full, {SINGLE}"
"""Full attention in an engine that runs it as several kernels: those of TensorRT that fuse it take half precision."""
SQUARE = (WHOLE, WRITTEN_OUT)
"""The forms whose time grows with n²."""
Series = Mapping[str, Mapping[int, float]]
"""By form, then by length."""


@dataclass(frozen=True)
class Sizes:
    """`lengths` are what is measured; `first` is the length of the run that memory is counted from."""

    runtimes: tuple[str, ...]
    forms: tuple[str, ...]
    lengths: tuple[int, ...]
    first: int
    effort: Effort


FULL = Sizes(BOTH, tuple(FORMS), (512, 1024, 1536, 2048, 3072, 4096), 16, Effort(4.0))
TOY = Sizes((ORT,), (WHOLE, "linear"), (4, 8, 16), 2, Effort(0.0, 2, 2))


@dataclass(frozen=True)
class Figures:
    """One runtime: time by length and form, peak memory in bytes by form and length."""

    time: Mapping[int, Mapping[str, LatencyRow]]
    memory: Mapping[str, Mapping[int, int]]


def measure(sizes: Sizes, progress: Progress) -> Findings:
    """Times every form in turns, then takes memory, then builds engines."""
    longest = max(sizes.lengths)
    dims = (f"seq=1:{min(16, longest)}:{longest}",)
    with tempfile.TemporaryDirectory(prefix="attnport-claims-") as scratch:
        folders = {
            factory: exported(factory, Path(scratch) / factory, dims, [*here(sizes.runtimes), "onnx_18"], progress)
            for factory in dict.fromkeys(FORMS[form] for form in sizes.forms)
        }
        found = {runtime: _measured(runtime, folders, sizes, progress) for runtime in here(sizes.runtimes)}
        scratches, missing = _scratches(folders, sizes, progress)
    return _findings(found, scratches, [*missing, *absent(sizes.runtimes)])


def _measured(runtime: str, folders: Mapping[str, Path], sizes: Sizes, progress: Progress) -> Figures:
    """Time and memory of every form on one runtime."""
    models = {
        form: model(folders[FORMS[form]], runtime, target="onnx_18" if form == WRITTEN_OUT else None)
        for form in sizes.forms
        # OpenVINO fuses what is written out; ONNX Runtime runs it as it stands.
        if form != WRITTEN_OUT or runtime == ORT
    }
    feeds = {
        form: {f"{runtime}, n = {length}": one.feeds({"batch": 1, "seq": length}) for length in sizes.lengths}
        for form, one in models.items()
    }
    settings = {setting: {form: each[setting] for form, each in feeds.items()} for setting in feeds[WHOLE]}
    timed = race(settings, models, sizes.effort, progress)
    memory = {}
    for form, one in models.items():
        progress(f"{runtime}: memory of {form}")
        taken = peaks(one, one.feeds({"batch": 1, "seq": sizes.first}), feeds[form])
        memory[form] = dict(zip(sizes.lengths, taken.values(), strict=True))
    return Figures(dict(zip(sizes.lengths, timed.values(), strict=True)), memory)


def _scratches(
    folders: Mapping[str, Path], sizes: Sizes, progress: Progress
) -> tuple[dict[str, dict[int, int]], list[Verdict]]:
    """By form and length, the scratch memory of an engine above that of one for `first`; or why there are none."""
    plans = {form: (FORMS[form], HALF) for form in sizes.forms if form != WRITTEN_OUT}
    plans[UNFUSED] = (FORMS[WHOLE], SINGLE)
    found: dict[str, dict[int, int]] = {}
    for form, (factory, plan) in plans.items():
        progress(f"engines of {form}")
        for length in (sizes.first, *sizes.lengths):
            try:
                record, _ = build(folders[factory], ENGINE, plan, [f"batch=1:1:1,seq=1:{length}:{length}"])
            except AttnportError as err:
                return {}, [unmeasured(f"{ENGINE}, scratch memory", err.message)]
            found.setdefault(form, {})[length] = record.scratch_bytes
    return {form: {n: each[n] - each[sizes.first] for n in sizes.lengths} for form, each in found.items()}, []


def _findings(
    found: Mapping[str, Figures], scratches: Mapping[str, Mapping[int, int]], missing: Sequence[Verdict]
) -> Findings:
    times = {
        f"{runtime}, time": {form: {n: median_ms(row[form]) for n, row in one.time.items()} for form in one.memory}
        for runtime, one in found.items()
    }
    memories = {f"{runtime}, peak memory": _megabytes(one.memory) for runtime, one in found.items()}
    if scratches:
        memories[f"{ENGINE} {HALF}, scratch memory"] = _megabytes(scratches)
    verdicts = [
        verdict
        for (what, series), one in zip(times.items(), found.values(), strict=True)
        for verdict in _time_verdicts(what, series, one)
    ]
    verdicts += [verdict for what, series in memories.items() for verdict in _memory_verdicts(what, series)]
    return Findings(
        how=_how(),
        tables=(*(_table(f"{what}, ms", each) for what, each in times.items()),
                *(_table(f"{what}, MB", each) for what, each in memories.items())),
        pictures={
            "quadratic_time": lines(times, "length n", "ms"),
            "quadratic_memory": lines(memories, "length n", "MB"),
        },
        verdicts=[*verdicts, *missing],
        figures={runtime: asdict(one) for runtime, one in found.items()} | {ENGINE: dict(scratches)},
    )  # fmt: skip


def _megabytes(bytes_by_form: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, float]]:
    return {form: {n: taken / 1e6 for n, taken in each.items()} for form, each in bytes_by_form.items()}


def _table(what: str, series: Series) -> str:
    lengths = list(next(iter(series.values())))
    rows = [(form, *(significant(each[n]) for n in lengths)) for form, each in series.items()]
    return table((what, *(f"n = {n}" for n in lengths)), rows)


def _time_verdicts(what: str, series: Series, figures: Figures) -> list[Verdict]:
    """n² for full attention; for the others n, and less time than full attention at the longest."""
    longest = max(figures.time)
    found = []
    for form, each in series.items():
        growth = _grows(f"{what}: {form}", each, 2 if form in SQUARE else 1)
        if form not in SQUARE:
            growth = both(growth, of_ratio(f"against {WHOLE} at n = {longest}", ratio(figures.time[longest][form])))
        found.append(growth)
    return found


def _memory_verdicts(what: str, series: Series) -> list[Verdict]:
    """n² where scores are written, n for every other form and for full attention in one kernel."""
    return [
        _grows(f"{what}: {form}", each, 2 if form in (WRITTEN_OUT, UNFUSED) else 1) for form, each in series.items()
    ]


def _grows(what: str, series: Mapping[int, float], claimed: int) -> Verdict:
    if min(series.values()) <= 0:
        return unmeasured(what, "a run takes nothing that could be measured")
    return of_exponent(what, exponent(list(series), list(series.values())), claimed)


def _how() -> str:
    return f"""A self-attention layer of E = {WIDTH} and H = {HEADS}, one sequence of n tokens without padding, so that
the terms of n² pass those of E² from n = {2 * WIDTH} on. *Full* is lowered to one kernel where the runtime has one;
*written out*, its two products and its softmax are operators of their own (OpenVINO fuses these by itself, so there is
no such row). The *window* has {WINDOW} tokens on either side, once as a mask over full attention and once in chunks
(`sliding_window_attention`); `linear_attention`; `performer_attention` with {FEATURES} features;
`linformer_attention` with {MIXTURES} mixtures. *Peak memory* is what a run takes above a process that ran a short
sequence before; *scratch memory* is what an engine of TensorRT-RTX wants beside weights, inputs and outputs, above that
of one for a short sequence; in {HALF}, and for *{UNFUSED}*, which runs as several kernels. Exponents are fitted over
all lengths, with the 95 % interval of the slope; one counts as 2, or as at most 1, where its interval lies on that side
of 1.5."""
