"""Which linear layers of a form can be in integers within a metric, found by measuring; see docs/tune.md."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.artifacts import FINER, IntegerPlan, IOContract, Manifest, Score, Session, drop
from attnport.cases.inputs import Array, Case
from attnport.dims import TensorSpec
from attnport.exporter import int4, int8, storage
from attnport.exporter.int8 import PREFIX, Seen
from attnport.exporter.linear import layers
from attnport.exporter.lowering.base import Lowering
from attnport.folder.openings import MODEL
from attnport.parity.candidates import copy_weights
from attnport.parity.evaluate import Progress
from attnport.parity.scoring import Metric
from attnport.runtimes.base import Opening, Runtime

if TYPE_CHECKING:
    import onnx_ir as ir


def bits_of(plan: str) -> int:
    """8 or 4, of one of `artifacts.INTEGERS`."""
    return int(plan[3])


class IntegerGraphs:
    """One model, lowered for a target, with any of its linear layers in int8, or with weights of 4 bits.

    Attributes:
        bits: 8 or 4. Layers that are kept are then in float32, or have weights of 8 bits.
        layers: The names of the layers, in topological order.
        weights: The number of weights by layer.
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
        """Lowers the model; for int8 runs it in float32 on `items` for the ranges.

        Args:
            plan: One of `lowering.integers`.
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
        self.weights = {layer.name: layer.weights for layer in self._layers}
        self.bits = bits_of(plan)
        self._seen = self._ranges(items) if self._layers and self.bits == 8 else {}
        self._packed = int4.pack_all(model) if self.bits == 4 else {}

    def rewrite(self, model: ir.Model, kept: Collection[str]) -> None:
        """Writes the layers of the lowered graph in integers, in place, but `kept` as `bits` says."""
        if self.bits == 8:
            int8.quantize(model, self._seen, kept)
        else:
            int4.quantize(model, self._packed, kept)

    def open(self, kept: Collection[str]) -> contextlib.closing[Session]:
        """A session of the graph that `rewrite` writes."""
        model = storage.load(self._lowered)
        self.rewrite(model, kept)
        path = self._scratch / "candidate.onnx"
        path.unlink(missing_ok=True)
        storage.save_form(model, path, "candidate.bin")
        return contextlib.closing(self._runtime.open(Opening(self._io, self._plan, path, threads=self._threads)))

    def _ranges(self, items: Sequence[Case]) -> dict[str, Seen]:
        model = storage.load(self._lowered)
        names = int8.observe(model, self._layers)
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
    graphs: IntegerGraphs,
    metric: Metric,
    reference: Score,
    *,
    max_drop: float,
    near: Metric,
    items: tuple[int, int],
    inputs: str,
    until_s: float = math.inf,
    progress: Progress = lambda message: None,
) -> IntegerPlan | str:
    """The plan that keeps as few layers as it can and loses no more than is allowed, or why there is none.

    If the drop with no layer kept is too large, each is tried alone, and those with the largest error for their work
    are kept: as many as bisection finds to be enough. Errors of layers add up, so that their order hardly depends on
    the others.

    Args:
        reference: The score of the same target's form in float32.
        near: 1 - the error of a session, to order layers by; it was called with that form already.
        items: How many inputs the ranges are of, and how many are scored.
        inputs: See `IntegerPlan`.
        until_s: The time (of `time.monotonic`) after which no layer is tried alone any more; the others are kept.
    """
    if not graphs.layers:
        return "it has no linear layer with a weight of its own"
    scores: dict[int, Score] = {}
    order: list[str] = []

    every, finer = len(graphs.layers), FINER[graphs.bits]

    def holds(count: int) -> bool:
        progress(f"int{graphs.bits}: {count} of {every} layers in {finer}")
        with graphs.open(order[:count]) as session:
            scores[count] = metric(session)
        return drop(scores[count], reference) <= max_drop

    if not holds(0):
        order = _by_error(graphs, near, until_s, progress)
        too_few, enough = 0, every
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if holds(middle) else (middle, enough)
        if enough == every and (finer == "float32" or not holds(every)):
            fall = drop(scores[0], reference)
            rest = f"and by more than {max_drop:.2%} with any layer in int{graphs.bits}"
            return f"{metric.name} is worse by {fall:.2%}, {rest}"
    kept = min(count for count in scores if drop(scores[count], reference) <= max_drop)
    return IntegerPlan(
        bits=graphs.bits,
        metric=metric.name,
        score=scores[kept],
        reference=reference,
        max_drop=max_drop,
        layers=every,
        kept=tuple(layer for layer in graphs.layers if layer in order[:kept]),
        drop_of_all=drop(scores[0], reference),
        items=items,
        evaluations=len(scores),
        inputs=inputs,
    )


def _by_error(graphs: IntegerGraphs, near: Metric, until_s: float, progress: Progress) -> list[str]:
    """The layers, those with the largest error for their work first; before them those that there was no time for."""
    errors: dict[str, float] = {}
    for number, layer in enumerate(graphs.layers, start=1):
        if time.monotonic() > until_s:
            break
        progress(f"int{graphs.bits}: layer {number} of {len(graphs.layers)} alone")
        with graphs.open([name for name in graphs.layers if name != layer]) as session:
            errors[layer] = (1 - near(session).value) ** 2 / graphs.weights[layer]
    return sorted(graphs.layers, key=lambda layer: -errors.get(layer, math.inf))
