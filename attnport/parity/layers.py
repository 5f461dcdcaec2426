"""Errors from layer to layer, of each runtime, on the case that comes nearest to its bound: `layers.json`.

What `check --bisect` searches by, measured along the whole module once, so that a report can show how errors grow in a
model that is fine. A runtime runs its own form with the layers' last tensors marked as outputs.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import Layer, LayerError, LayerReport, LayerSeries, Manifest, ParityReport, RuntimeParity
from attnport.cases.choosing import cases_of
from attnport.cases.inputs import Array, Case
from attnport.cases.text import read_sentences
from attnport.errors import ArtifactError, AttnportError
from attnport.folder.openings import model_files
from attnport.folder.portable import portable
from attnport.folder.workspace import change, check_files, fresh, read_report
from attnport.jsonfile import digest_text
from attnport.parities import FILE as PARITY
from attnport.parity.bisect_ground import Ground
from attnport.parity.bound import FACTORS_OF_ONE_RUN, Errors, Yardstick, share_of_bound
from attnport.parity.eager import EAGER
from attnport.parity.evaluate import Progress
from attnport.parity.probes import Probes
from attnport.parity.searching import Budget, Reading, errors_at, reading
from attnport.processes.isolated import TIMEOUT_S, Limits

STAGE = "layers"
FILE = "layers.json"
MOST_LAYERS = 200
"""Deeper models are sampled evenly."""
_BYTES = 16  # an element of a tensor: in float64, of eager, and of the runtime


def layers(
    folder: Path,
    report: ParityReport,
    *,
    text: Path | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    batch: int = 8,
    sizes: Sequence[Mapping[str, int]] = (),
    threads: int | None = None,
    timeout_s: float = TIMEOUT_S,
    isolate: bool = False,
    cap_bytes: int = Budget.cap_bytes,
    force: bool = False,
    progress: Progress = lambda message: None,
) -> LayerReport:
    """Measures and writes `layers.json`; returns the earlier one when neither parity nor the folder changed.

    Args:
        folder: The artifact folder.
        report: What `check` gave, with the same arguments.
        sizes: Those of the further cases that its `shapes` name.
        cap_bytes: The most that the tensors of one run may take.

    Raises:
        ArtifactError, IntegrityError, SpecError, UsageError: as `check`.
        ExportError: torch no longer traces the module.
    """
    sentences = read_sentences(text) if text else []
    with change(folder) as edit:
        manifest = edit.manifest
        if not force and (found := read_layers(folder, manifest)) is not None:
            return found
        check_files(folder, manifest, *model_files(manifest))
        cases = cases_of(folder, manifest, sentences, inputs, seed, batch, sizes)
        limits = Limits(timeout_s, every=isolate)
        ground = Ground(folder, manifest, cases, report, threads, limits, Budget(cap_bytes=cap_bytes), 1, progress)
        with tempfile.TemporaryDirectory(prefix="attnport-layers-") as scratch:
            made = _Measuring(ground, Path(scratch)).report()
        edit.write(FILE, made)
        edit.finish(STAGE, _digest(manifest))
    return made


def why_no_layers(folder: Path, report: ParityReport, **given: Any) -> str:
    """Measures as `layers` does, for a report; why that was not possible, which takes no verdict from the check."""
    try:
        layers(folder, report, **given)
    except (AttnportError, MemoryError) as err:
        return f"errors by layer were not measured: {err}"
    return ""


def read_layers(folder: Path, manifest: Manifest) -> LayerReport | None:
    """What was measured last; None where nothing was, or where parity was checked anew since.

    Raises:
        IntegrityError, ArtifactError: the file is not the one that was written, or is no such report.
    """
    return (
        read_report(LayerReport, folder, manifest, FILE) if fresh(folder, manifest, STAGE, _digest(manifest)) else None
    )


def _digest(manifest: Manifest) -> str:
    return digest_text(manifest.files.get(PARITY, ""))


class _Measuring:
    """One measurement: the case, its layers, and every runtime's errors there."""

    def __init__(self, ground: Ground, scratch: Path) -> None:
        self._ground = ground
        self._case = nearest(ground.report, ground.cases)
        rows = ground.report.runtimes
        self._rows = {name: rows[name] for name in ground.openings()}
        self._probes = {name: ground.probes(name, row, scratch) for name, row in self._rows.items()}
        self._places = self._chosen()
        tensors = [tensor for _, tensor in self._places]
        ground.progress(f"errors from layer to layer, case {self._case.name}")
        self._truth = ground.traced("fp32", float64=True).run(self._case.feeds, tensors)
        self._eager: dict[str, dict[str, Errors]] = {}

    def report(self) -> LayerReport:
        """Runs everything; a runtime that cannot be measured says why."""
        found = {}
        for name, row in self._ground.report.runtimes.items():
            if name == EAGER:
                own = self._eager_errors(row.plan)
                found[name] = LayerSeries(row.plan, errors=tuple(self._judged(name, row.plan, own)))
            elif name in self._rows:
                found[name] = self._series(name, row)
            elif row.verdict != "NOT_RUN":
                found[name] = LayerSeries(row.plan, "no tensor can be marked in what it runs")
        known = self._eager_errors("fp32")
        layers = tuple(
            Layer(name, tensor, known[tensor].reference_rms if tensor in known else 0.0)
            for name, tensor in self._places
        )
        return LayerReport(self._case.name, layers, found)

    def _chosen(self) -> list[tuple[str, str]]:
        """Layers with their tensors, as many as the budget has room for, evenly spaced."""
        ground = self._ground
        traced = ground.traced("fp32", float64=True)
        modules, outputs = traced.modules(), [spec.name for spec in ground.io.outputs]
        found = layers_of([_comparable(probes, modules, outputs) for probes in self._probes.values()], modules, outputs)
        sizes = {name: int(np.prod(shape)) * _BYTES for name, shape in traced.shapes(self._case.feeds).items()}
        found = [(name, tensor) for name, tensor in found if tensor in sizes]
        count = min(len(found), MOST_LAYERS)
        while count > 1:
            places = np.unique(np.linspace(0, len(found) - 1, count).round().astype(int))
            kept = [found[place] for place in places]
            if sum(sizes[tensor] for _, tensor in kept) <= ground.budget.cap_bytes:
                return kept
            count -= 1
        return found[-1:]

    def _series(self, name: str, row: RuntimeParity) -> LayerSeries:
        self._ground.progress(f"{name}: errors from layer to layer")
        try:
            with self._probes[name].open(()) as session:
                plain = session.run(self._case.feeds)
            with self._probes[name].open([tensor for _, tensor in self._places]) as session:
                got = session.run(self._case.feeds)
        except (AttnportError, MemoryError) as err:
            return LayerSeries(row.plan, portable(str(err), self._ground.folder))
        changed = any(not np.array_equal(array, got[output], equal_nan=True) for output, array in plain.items())
        errors = {tensor: self._errors(tensor, got.get(tensor)) for _, tensor in self._places}
        return LayerSeries(row.plan, errors=tuple(self._judged(name, row.plan, errors)), changed=changed)

    def _judged(self, name: str, plan: str, errors: Mapping[str, Errors | None]) -> list[LayerError]:
        eager = self._eager_errors(plan)
        by = Yardstick(plan, {self._case.name: eager}, factors=FACTORS_OF_ONE_RUN)
        # What eager has no tensor of at this plan has no bound, which is no fault of the runtime.
        known = {tensor: errors.get(tensor) if tensor in eager else None for _, tensor in self._places}
        return [_error(reading(name, self._case.name, tensor, found, by)) for tensor, found in known.items()]

    def _eager_errors(self, plan: str) -> dict[str, Errors]:
        """PyTorch eager's at a plan: what the others are judged by."""
        if plan not in self._eager:
            own = self._ground.traced(plan).run(self._case.feeds, [tensor for _, tensor in self._places])
            measured = {tensor: self._errors(tensor, array) for tensor, array in own.items()}
            self._eager[plan] = {tensor: errors for tensor, errors in measured.items() if errors is not None}
        return self._eager[plan]

    def _errors(self, tensor: str, got: Array | None) -> Errors | None:
        expected = self._truth[tensor]
        probes = next(iter(self._probes.values()))
        return errors_at(got, expected, self._ground.valid(self._case, tensor, probes, expected.shape), tensor)


def nearest(report: ParityReport, cases: Sequence[Case]) -> Case:
    """The case on which a runtime comes nearest to its bound, or goes farthest beyond; extreme ones only if no other.

    Raises:
        ArtifactError: the report has none of the cases.
    """
    known = {case.name: case for case in cases}
    shares: dict[tuple[bool, float], str] = {}
    for row in report.runtimes.values():
        for result in row.cases:
            if result.case in known:
                share = math.inf if result.nonfinite else share_of_bound(result)
                usual = known[result.case].group != "extremes"
                shares.setdefault((usual, share), result.case)
    if not shares:
        raise ArtifactError("no case of the parity report is there.", hint="Check with the same --text and --inputs.")
    return known[shares[max(shares)]]


def layers_of(
    comparable: Sequence[Collection[str]], modules: Mapping[str, str], outputs: Collection[str]
) -> list[tuple[str, str]]:
    """The layers of a module in the order of its graph, each with the last tensor that everybody has; outputs too.

    A layer is a module's path up to the first number that not all paths share; without one, the module itself.

    Args:
        comparable: Of each file, the tensors that can be compared.
        modules: The module path of each tensor of torch's graph, in its order.
        outputs: Tensors that stand for themselves.
    """
    shared = [name for name in modules if comparable and all(name in each for each in comparable)]
    paths = [modules[name].split(".") for name in shared if modules[name]]
    levels = [set(level) for level in zip(*paths, strict=False)] if len(paths) > 1 else []
    common = next((place for place, level in enumerate(levels) if len(level) > 1), len(levels))
    last: dict[str, str] = {}
    for tensor in shared:
        parts = modules[tensor].split(".")
        number = next((place for place, part in enumerate(parts) if place >= common and part.isdecimal()), len(parts))
        name = tensor if tensor in outputs else ".".join(parts[: number + 1])
        if name:
            last.pop(name, None)
            last[name] = tensor
    return list(last.items())


def _comparable(probes: Probes, modules: Mapping[str, str], outputs: Collection[str]) -> set[str]:
    """The tensors of a file that torch's graph has too, in the same module."""
    return {
        name
        for name, tensor in probes.made.items()
        if tensor.floating and name in modules and (name in outputs or tensor.module in (None, modules[name]))
    }


def _error(found: Reading) -> LayerError:
    return LayerError(found.verdict, found.reason, found.rms_error, found.rms_bound, found.max_error, found.max_bound)
