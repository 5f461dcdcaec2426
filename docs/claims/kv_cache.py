"""Decoding with a cache of keys and values against computing every token again."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from attnport.artifacts import LatencyRow
from attnport.reporting.document import milliseconds
from claims._artifacts import BOTH, ORT, absent, exported, here, model
from claims._findings import Findings, Progress, Verdict, of_order, of_ratio, shown, table
from claims._fit import exponent
from claims._lines import lines
from claims._models import DECODER
from claims._runs import Effort, Feeds, Model, median_ms, race, ratio

TITLE = "KV cache against recomputing"
CLAIM = """With the keys and values of earlier tokens kept, a new token costs one pass of one token; without, a pass of
all tokens. So time per token hardly grows with the context in place of growing faster than in proportion (Shazeer,
"Fast Transformer Decoding", 2019; Pope et al., "Efficiently Scaling Transformer Inference", 2022)."""
AGAIN, CACHED = "recomputed", "cached"
Rows = Mapping[int, Mapping[str, LatencyRow]]
"""By context, then by way."""


@dataclass(frozen=True)
class Sizes:
    """`contexts` are numbers of tokens, the new one included."""

    runtimes: tuple[str, ...]
    contexts: tuple[int, ...]
    effort: Effort


FULL = Sizes(BOTH, (64, 128, 256, 512, 1024), Effort(3.0))
TOY = Sizes((ORT,), (2, 4, 8), Effort(0.0, 2, 2))


def measure(sizes: Sizes, progress: Progress) -> Findings:
    """Times the same decoder both ways on every runtime."""
    longest = max(sizes.contexts)
    dims = ("batch=1:1:2", *(f"{dim}=1:{min(16, longest)}:{longest}" for dim in ("seq", "past")))
    timed: dict[str, Rows] = {}
    with tempfile.TemporaryDirectory(prefix="attnport-claims-") as scratch:
        folder = exported("decoder", Path(scratch), dims, here(sizes.runtimes), progress)
        for runtime in here(sizes.runtimes):
            decoder = model(folder, runtime)
            feeds = {f"{runtime}, {context} tokens": both_ways(decoder, context) for context in sizes.contexts}
            rows = race(feeds, {AGAIN: decoder, CACHED: decoder}, sizes.effort, progress)
            timed[runtime] = dict(zip(sizes.contexts, rows.values(), strict=True))
    return _findings(timed, absent(sizes.runtimes))


def both_ways(decoder: Model, context: int) -> dict[str, Feeds]:
    """The feeds of the last of `context` tokens: all as new ones behind an empty cache, or one behind the others."""
    again = dict(decoder.feeds({"batch": 1, "seq": context, "past": 1}))
    again["cache_mask"] = np.zeros_like(again["cache_mask"])
    return {AGAIN: again, CACHED: decoder.feeds({"batch": 1, "seq": 1, "past": context - 1})}


def _findings(timed: Mapping[str, Rows], missing: Sequence[Verdict]) -> Findings:
    cells, panels, verdicts = [], {}, list(missing)
    for runtime, rows in timed.items():
        panels[runtime] = {
            way: {context: median_ms(row[way]) for context, row in rows.items()} for way in (AGAIN, CACHED)
        }
        for context, row in rows.items():
            times = (milliseconds(row[way].median_ns) for way in (AGAIN, CACHED))
            cells.append((runtime, str(context), *times, shown(ratio(row[CACHED]))))
        verdicts += _verdicts(runtime, panels[runtime], rows)
    return Findings(
        how=_how(),
        tables=(table(("runtime", "context", f"{AGAIN}, ms", f"{CACHED}, ms", f"{CACHED} / {AGAIN}"), cells),),
        pictures={"kv_cache": lines(panels, "tokens of context", "ms per new token")},
        verdicts=verdicts,
        figures={
            runtime: {str(context): {way: asdict(row) for way, row in pair.items()} for context, pair in rows.items()}
            for runtime, rows in timed.items()
        },
    )


def _how() -> str:
    E, L, V = (DECODER[size] for size in ("width", "layers", "vocabulary"))
    return f"""`gpt_decoder` with {L} layers of E = {E} and a vocabulary of {V}, one sequence. *Cached*: one new token
behind a cache of all others, which the caller passes in; the time has the copy that the runtime makes of it.
*Recomputed*: all tokens as new ones, behind a cache of one empty place. It computes the logits of all tokens, of which
a caller needs the last alone: at most {100 * V / (V + 12 * L * E):.0f} % of its work."""


def _verdicts(runtime: str, ms: Mapping[str, Mapping[int, float]], rows: Rows) -> list[Verdict]:
    """Less time at the shortest and the longest context, and slower growth between them."""
    ends = (min(rows), max(rows))
    found = [of_ratio(f"{runtime}, time at {context} tokens", ratio(rows[context][CACHED])) for context in ends]
    growth = {way: exponent(list(series), list(series.values())) for way, series in ms.items()}
    return [*found, of_order(f"{runtime}, exponent of time by context", growth[CACHED], growth[AGAIN])]
