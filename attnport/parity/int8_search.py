"""Which linear layers of a form can be int8 within a metric, found by measuring; see docs/tune.md."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from attnport.artifacts import Int8Plan, IOContract, Manifest, Score, Session, drop
from attnport.cases.inputs import Array, Case
from attnport.dims import TensorSpec
from attnport.exporter import storage
from attnport.exporter.int8 import PREFIX, Seen, layers, observe, quantize
from attnport.exporter.lowering.base import Lowering
from attnport.folder.openings import MODEL
from attnport.parity import islands
from attnport.parity.candidates import copy_weights
from attnport.parity.evaluate import Progress
from attnport.parity.scoring import Metric
from attnport.runtimes.base import Opening, Runtime

MOST = 60
"""The most graphs that a search scores."""


class Int8Graphs:
    """One model, lowered for a target, with any of its linear layers in int8.

    Attributes:
        layers: The names of the layers, in topological order.
        seen: What each layer reads, by the name of that tensor.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        lowering: Lowering,
        runtime: Runtime,
        plan: str,
        items: Sequence[Case],
        scratch: Path,
        threads: int | None,
    ) -> None:
        """Lowers the model, and runs it in float32 on `items` for the ranges.

        Args:
            plan: One of `lowering.int8`.
            scratch: An empty folder, which the caller deletes.
        """
        self._io, self._runtime, self._plan = manifest.io, runtime, plan
        self._scratch, self._threads = scratch, threads
        copy_weights(folder, scratch)
        model = storage.load(folder / MODEL)
        usual = manifest.io.profile().sizes("opt")
        lowering.lower(model, manifest.attentions, plan="fp32", masks=manifest.io.masks, sizes=usual)
        self._lowered = scratch / "lowered.onnx"
        storage.save_form(model, self._lowered, "lowered.bin")
        self._layers = layers(model)
        self.layers = tuple(layer.name for layer in self._layers)
        self.seen = self._ranges(items) if self._layers else {}

    def open(self, kept: Collection[str]) -> contextlib.closing[Session]:
        """A session with every layer in int8 but `kept`."""
        model = storage.load(self._lowered)
        quantize(model, self.seen, kept)
        path = self._scratch / "candidate.onnx"
        path.unlink(missing_ok=True)
        storage.save_form(model, path, "candidate.bin")
        return contextlib.closing(self._runtime.open(Opening(self._io, self._plan, path, threads=self._threads)))

    def _ranges(self, items: Sequence[Case]) -> dict[str, Seen]:
        model = storage.load(self._lowered)
        names = observe(model, self._layers)
        path = self._scratch / "seen.onnx"
        storage.save_form(model, path, "seen.bin")
        outputs = (*self._io.outputs, *(TensorSpec(name, "float32", ("channels",)) for name in names))
        io: IOContract = dataclasses.replace(self._io, outputs=outputs)
        found: dict[str, list[Array]] = {name: [] for name in names}
        with contextlib.closing(self._runtime.open(Opening(io, "fp32", path, threads=self._threads))) as session:
            for item in items:
                made = session.run(item.feeds)
                for name in names:
                    found[name].append(made[name])
        every = {name: np.stack(rows) for name, rows in found.items()}
        return {
            layer.reads: Seen(
                every[f"{PREFIX}ReduceMin/{layer.reads}"].min(0),
                every[f"{PREFIX}ReduceMax/{layer.reads}"].max(0),
                every[f"{PREFIX}ReduceMean/{layer.reads}"].mean(0),
            )
            for layer in self._layers
        }


def search(
    graphs: Int8Graphs,
    metric: Metric,
    reference: Score,
    *,
    max_drop: float,
    items: tuple[int, int],
    inputs: str,
    until_s: float = math.inf,
    most: int = MOST,
    progress: Progress = lambda message: None,
) -> Int8Plan | str:
    """The plan with the fewest layers kept in float32, or why there is none.

    Args:
        reference: The score of the same target's form in float32.
        items: How many inputs the ranges are of, and how many are scored.
        inputs: See `Int8Plan`.
        until_s: The time (of `time.monotonic`) after which what was found is not made smaller any more.
    """
    scores: dict[frozenset[str], Score] = {}
    began_s, rest = time.monotonic(), max(3, most)

    def share(kept: islands.Parts) -> float:
        progress(f"int8: graph {len(scores) + 1}, {len(kept)} of {len(graphs.layers)} layers in float32")
        with graphs.open(kept) as session:
            scores[kept] = metric(session)
        return drop(scores[kept], reference) / max_drop if max_drop else math.inf * drop(scores[kept], reference)

    if not graphs.layers:
        return "it has no linear layer with a weight of its own"
    all_of_them = frozenset(graphs.layers)
    first = share(frozenset())
    each_s = time.monotonic() - began_s
    if math.isfinite(until_s):
        rest = max(3, min(rest, int((until_s - time.monotonic()) / max(each_s, 1e-3))))
    known = {frozenset[str](): first, all_of_them: 0.0}
    found = islands.search(graphs.layers, lambda kept: known[kept] if kept in known else share(kept), most=rest)
    kept = frozenset(found.parts)
    if kept == all_of_them or kept not in scores:
        fall = drop(scores[frozenset()], reference)
        return f"{metric.name} falls by {fall:.2%} with all in int8, and by more than {max_drop:.2%} with any layer"
    return Int8Plan(
        metric=metric.name,
        score=scores[kept],
        reference=reference,
        max_drop=max_drop,
        layers=len(graphs.layers),
        kept=found.parts,
        drop_of_all=drop(scores[frozenset()], reference),
        items=items,
        evaluations=len(scores),
        inputs=inputs,
    )
