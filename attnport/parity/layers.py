"""Errors inside a module: from layer to layer (`layers.json`), and where a runtime that failed goes wrong.

`Probes` are the inside of a checked model: the files of its folder with tensors marked as outputs, and the module run
by torch. Every tensor of a graph that torch's own traced graph has by the same name can be compared, and is judged as
outputs are: against the float64 run, by eager's error at that very tensor. The search marks the last tensor of each
layer in one run, and in a second one all tensors from which the first wrong layer is computed. See docs/bisect.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.artifacts import (
    MANIFEST,
    PLANS,
    UNKNOWN_SIZE,
    Evidence,
    IOContract,
    Layer,
    LayerError,
    LayerReport,
    LayerSeries,
    Manifest,
    ParityReport,
    RuntimeParity,
    Session,
    TensorSpec,
    Verdict,
)
from attnport.cases.inputs import Array, Case, validity
from attnport.errors import ArtifactError, AttnportError, UnavailableError
from attnport.exporter import storage
from attnport.exporter.probing import Tensor, before, mark, tensors
from attnport.folder.loading import reload
from attnport.folder.portable import portable
from attnport.folder.workspace import change, fresh, model_openings, read_report
from attnport.jsonfile import digest_text, to_json
from attnport.parities import FILE as PARITY
from attnport.parities import Finding
from attnport.parity.bound import FACTORS_OF_ONE_RUN, Errors, Yardstick, judge, measure
from attnport.parity.comparing import EAGER, FAST_EVALUATOR, TYPED_EVALUATOR
from attnport.parity.evaluate import Means
from attnport.parity.metrics import rms
from attnport.processes.isolated import IsolatedSession, Limits
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime, external_files, read_graph
from attnport.runtimes.torch_eager import cast
from attnport.sources.onnx_file import is_onnx

if TYPE_CHECKING:
    import torch
    from torch import nn

    from attnport.runtimes._torch_values import TracedModule


FORM = "form "
"""What stands before a form's name, where runtimes and forms are told in one list."""
_PROBE, _WEIGHTS = "probe.onnx", "probe.bin"


@dataclass
class Traced:
    """A checked folder: what failed in it, the cases that showed it, and the module traced by torch.

    Attributes:
        cases: Every case of the check.
        cap_bytes: The most that the tensors of one run may take.
    """

    folder: Path
    manifest: Manifest
    cases: Sequence[Case]
    report: ParityReport
    means: Means = field(default_factory=Means)
    cap_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        self.io = self.manifest.io
        self._graphs: dict[tuple[str, bool], TracedModule] = {}
        self._programs: dict[str, torch.export.ExportedProgram] = {}

    def probes(self, name: str, row: RuntimeParity, scratch: Path) -> Probes:
        """What to mark tensors in, for a row of the parity report.

        Raises:
            UnavailableError: it is no runtime that opens ONNX files.
        """
        if name.startswith(FORM):
            form = self.manifest.forms[name.removeprefix(FORM)]
            typed = row.ran is not None and row.ran.provider.startswith("onnx.reference")
            runtime = base.get(TYPED_EVALUATOR if typed else FAST_EVALUATOR)
            opening = Opening(self.io, plan=row.plan, model=self.folder / form.file, threads=self.means.threads)
            return Probes(runtime, opening, self.manifest, scratch, self.means.limits)
        runtime = base.get(base.Key.parse(name).runtime)
        opened = self.openings().get(name)
        if opened is None:
            what = "module" if runtime.opens == "module" else runtime.opens
            raise UnavailableError(
                f"{name} runs a whole {what}, in which no tensor can be marked; bisect the form that it is made of."
            )
        return Probes(runtime, opened, self.manifest, scratch, self.means.limits)

    def openings(self) -> dict[str, Opening]:
        """Of every row of the report that an ONNX file stands behind."""
        found: dict[str, Opening] = {}
        for name, row in self.report.runtimes.items():
            runtime = base.get(base.Key.parse(name).runtime)
            if runtime.opens == "onnx" and row.verdict != "NOT_RUN":
                found |= model_openings(runtime, self.folder, self.manifest, (row.plan,), self.means.threads)
        return {name: opening for name, opening in found.items() if name in self.report.runtimes}

    def graph(self, plan: str, *, float64: bool = False) -> TracedModule:
        """The module's own graph at a plan, or in float64.

        Raises:
            UnavailableError: the source is a file of ONNX.
            ExportError: torch no longer traces the module.
        """
        from attnport.exporter.capture import named_program
        from attnport.runtimes._torch_values import TracedModule

        if is_onnx(self.manifest.source.text):
            raise UnavailableError(
                "bisect follows the trace of a module, and a file of ONNX has none.",
                hint="Export the module that the file was made of, and bisect that.",
            )
        if (plan, float64) not in self._graphs:
            # As it was exported: with the outputs that are left out later, or the names would be others.
            whole = reload(self.manifest.source)
            dtype = "float32" if float64 else PLANS[plan].cast
            if dtype not in self._programs:
                self.means.progress(f"tracing the module in {dtype}")
                module = whole.make()
                cast_module = module if dtype == "float32" else _cast(module, dtype)
                self._programs[dtype] = named_program(cast_module, whole.io)
            names = [spec.name for spec in whole.io.outputs]
            self._graphs[plan, float64] = TracedModule(self._programs[dtype], names, plan, float64=float64)
        return self._graphs[plan, float64]

    def valid(self, case: Case, tensor: Tensor, shape: tuple[int, ...]) -> Array:
        """Which elements of a tensor count, over its leading dims; all where its dims do not tell which rows are
        padding."""
        if tensor.name in case.valid:
            return case.valid[tensor.name]
        dims, known = tensor.dims, {dim.name for dim in self.io.dims}
        if dims and all(isinstance(dim, int) or dim in known for dim in dims):
            spec = TensorSpec(tensor.name, "float32", tuple(dim for dim in dims if dim is not None))
            # A form may give zero in items without any key where the module gives other numbers.
            io = dataclasses.replace(self.io, outputs=(spec,))
            found = validity(io, case.feeds, empty_items=False)[tensor.name]
            if found.shape == shape[: found.ndim]:
                return found
        return np.ones(shape[:1], dtype=bool)


def _cast(module: nn.Module, dtype: str) -> nn.Module:
    import torch

    return cast(module, getattr(torch, dtype))


class Probes:
    """A runtime on a file, whatever is marked in it.

    Attributes:
        made: The file's tensors by name, in topological order.
    """

    def __init__(self, runtime: Runtime, opening: Opening, manifest: Manifest, scratch: Path, limits: Limits) -> None:
        """Reads the file.

        Args:
            opening: The file and its plan, without marks.
            scratch: A folder for the files with marks, which the caller deletes; those of other files of the artifact
                may lie there too, so that all share one copy of the weights.

        Raises:
            ArtifactError, IntegrityError: it is no model.
        """
        assert opening.model is not None
        self.runtime, self.opening, self.file = runtime, opening, opening.model
        self._manifest, self._scratch, self._limits = manifest, scratch, limits
        self.made: Mapping[str, Tensor] = tensors(storage.load(self.file))
        scratch.mkdir(parents=True, exist_ok=True)
        for weights in external_files(read_graph(self.file)):
            place = scratch / weights
            if not place.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                # A copy: readers refuse a link, soft or hard, as an attack.
                shutil.copyfile(self.file.parent / weights, place)

    def open(self, names: Collection[str]) -> contextlib.closing[Session]:
        """A session that returns the tensors called `names` behind the outputs; without names, on the file as it is.

        Raises:
            AttnportError: what the runtime raises while opening.
        """
        io = self._io(names)
        opening = dataclasses.replace(self.opening, io=io, model=self._write(names))
        if not self.runtime.isolated and not self._limits.every:
            return contextlib.closing(self.runtime.open(opening))
        manifest = dataclasses.replace(
            self._manifest, io=io, files={_PROBE: ""}, forms={}, engines={}, stages={}, tokenizer=None
        )
        (self._scratch / MANIFEST).write_text(to_json(manifest), encoding="utf-8")
        session: Session = IsolatedSession(self.runtime, opening, self._scratch, manifest, self._limits)
        return contextlib.closing(session)

    def unfused_by(self, names: Collection[str]) -> list[str]:
        """The attentions that one kernel covers in the file as it is, and no longer with `names` marked.

        Empty too where the runtime gives no evidence.
        """
        anchors = next((form.anchors for form in self._manifest.forms.values() if form.file == self.file.name), {})
        try:
            unmarked = self._evidence((), anchors)
            return sorted(set(unmarked) - set(self._evidence(names, anchors)))
        except AttnportError:
            return []

    def _evidence(self, names: Collection[str], anchors: Mapping[str, tuple[str, ...]]) -> dict[str, Evidence]:
        return self.runtime.fusion_evidence(self._write(names), anchors, self.opening.plan, self.opening.io)

    def _io(self, names: Collection[str]) -> IOContract:
        known = {spec.name for spec in self.opening.io.outputs}
        # The dims are for the reader of an error alone: nothing checks outputs by them.
        added = [
            TensorSpec(name, "float32", tuple(UNKNOWN_SIZE if dim is None else dim for dim in made.dims or ()))
            for name, made in self.made.items()
            if name in names and name not in known
        ]
        return dataclasses.replace(self.opening.io, outputs=(*self.opening.io.outputs, *added))

    def _write(self, names: Collection[str]) -> Path:
        model = storage.load(self.file)
        mark(model, names)
        path = self._scratch / _PROBE
        path.unlink(missing_ok=True)  # never written over: an open session may still have it mapped
        (self._scratch / _WEIGHTS).unlink(missing_ok=True)
        storage.save_form(model, path, _WEIGHTS)
        return path


STAGE = "layers"
FILE = "layers.json"
MOST_LAYERS = 200
"""Deeper models are sampled evenly."""
_BYTES = 24  # an element of a tensor at most: in float64, of eager, and of the runtime, all int64
_NOT_COMPARED = LayerError("NOT_RUN", "it cannot be compared")


def layers(traced: Traced) -> LayerReport:
    """Measures every runtime of a parity report from layer to layer, and writes `layers.json`.

    The case is the one that comes nearest to its bound.

    Raises:
        ArtifactError: the report has none of the cases.
        UnavailableError, ExportError: as `Traced.graph`.
    """
    with change(traced.folder) as edit:
        with tempfile.TemporaryDirectory(prefix="attnport-layers-") as scratch:
            made = _measured(traced, Path(scratch))
        edit.write(FILE, made)
        edit.finish(STAGE, _digest(traced.manifest))
    return made


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


def findings(traced: Traced) -> tuple[Finding, ...]:
    """Where each runtime and form that failed goes wrong; a form that one of these runtimes opens is left out.

    The module cast to half precision is also searched where it overflows only in cases that have no bound for it.
    """
    failed = {
        name: row for name, row in traced.report.runtimes.items() if row.verdict == "FAIL" or _overflows(name, row)
    }
    searched = {opening.model for name, opening in traced.openings().items() if name in failed}
    failed |= {
        f"{FORM}{name}": row
        for name, row in traced.report.forms.items()
        if row.verdict == "FAIL" and traced.folder / traced.manifest.forms[name].file not in searched
    }
    found = []
    for name, row in failed.items():
        try:
            if _is_cast(name, row):
                found.append(_overflow(traced, name, row))
                continue
            with tempfile.TemporaryDirectory(prefix="attnport-bisect-") as scratch:
                found.append(_Search(traced, name, row, Path(scratch)).finding())
        except (AttnportError, MemoryError) as err:
            found.append(Finding(name, reason=portable(str(err), traced.folder)))
    return tuple(found)


def _is_cast(name: str, row: RuntimeParity) -> bool:
    return name == EAGER and row.plan != "fp32"


def _overflows(name: str, row: RuntimeParity) -> bool:
    return _is_cast(name, row) and any(result.nonfinite for result in row.cases)


def _overflow(traced: Traced, name: str, row: RuntimeParity) -> Finding:
    """Where the module itself, cast to half precision, has no finite numbers any more though float64 has."""
    case = _failing(traced, row) or _failing(traced, row, "NOT_RUN")
    if case is None:
        return Finding(name, reason=f"no case failed by its numbers ({row.reason})")
    exact, own = traced.graph("fp32", float64=True), traced.graph(row.plan)
    modules, fine, part, size = exact.modules(), "", list[str](), 0
    sizes = {each: math.prod(shape) * _BYTES for each, shape in exact.shapes(case.feeds).items() if each in modules}
    for number, each in enumerate(sizes, start=1):
        part, size = [*part, each], size + sizes[each]
        if number < len(sizes) and size <= traced.cap_bytes:
            continue
        traced.means.progress(f"{name}: bisecting, {len(part)} tensors of the case {case.name}")
        wanted, got = exact.run(case.feeds, part), own.run(case.feeds, part)
        for tensor in part:
            if tensor not in got or not np.isfinite(wanted[tensor]).all():
                continue
            if np.isfinite(got[tensor].astype(np.float64)).all():
                fine = tensor
                continue
            largest = float(np.abs(wanted[tensor].astype(np.float64)).max(initial=0.0))
            return Finding(
                name,
                tensor=tensor,
                module=modules[tensor],
                line=own.line(tensor),
                between=(tensor.rstrip("_0123456789"),),
                fine=(fine,) if fine else (),
                case=case.name,
                readings={name: LayerError("FAIL", "NaN or Inf")},
                notes=(f"in float64 its largest value is {largest:.3g}; {PLANS[row.plan].cast} computes NaN or Inf",),
            )
        part, size = [], 0
    return Finding(name, reason="no tensor of the module overflows; it is less exact than float32 throughout")


class _Module:
    """The module's own tensors on one case, and the verdicts on those of a runtime.

    Attributes:
        sizes: What each tensor takes, in bytes.
        modules: The module path of each tensor, in the order of torch's graph.
        line: See `TracedModule.line`.
    """

    def __init__(self, traced: Traced, case: Case, made: Mapping[str, Tensor]) -> None:
        """`made`: the tensors of a form, whose dims tell which elements are padding."""
        self._traced, self._case, self._made = traced, case, made
        self._held: dict[str, tuple[Collection[str], dict[str, Array]]] = {}
        graph = traced.graph("fp32", float64=True)
        self.modules, self.line = graph.modules(), graph.line
        self.sizes = {name: math.prod(shape) * _BYTES for name, shape in graph.shapes(case.feeds).items()}

    def judged(self, plan: str, names: Sequence[str], got: Mapping[str, Array] | None = None) -> dict[str, LayerError]:
        """The errors of a runtime's tensors; without `got`, those of PyTorch eager at the plan."""
        expected, own = self._run("fp32", names, float64=True), self._run(plan, names)
        got = own if got is None else got
        return {name: self._error(plan, name, got.get(name), expected[name], own.get(name)) for name in names}

    def scale(self, name: str) -> float:
        """The RMS of a tensor's float64 values; 0 if one is not finite."""
        expected = self._run("fp32", [name], float64=True)[name]
        finite = np.isfinite(expected).all()
        return rms(expected[self._traced.valid(self._case, self._made[name], expected.shape)]) if finite else 0.0

    def _run(self, plan: str, names: Sequence[str], *, float64: bool = False) -> dict[str, Array]:
        """Tensors of the module; those of the last call are kept, for the next runtime."""
        key = "fp64" if float64 else plan
        asked, found = self._held.get(key, ((), {}))
        if not set(names) <= set(asked):
            found = self._traced.graph(plan, float64=float64).run(self._case.feeds, names)
            self._held[key] = names, found
        return found

    def _error(self, plan: str, name: str, got: Array | None, expected: Array, own: Array | None) -> LayerError:
        valid = self._traced.valid(self._case, self._made[name], expected.shape)
        if self._made[name].exact:
            return difference(got, expected, own, valid)
        eager, errors = errors_at(own, expected, valid, name), errors_at(got, expected, valid, name)
        # What eager has no such tensor of has no bound, which is no fault of the runtime.
        if eager is None or errors is None:
            return _NOT_COMPARED
        by = Yardstick(plan, {self._case.name: {name: eager}}, factors=FACTORS_OF_ONE_RUN)
        found = judge(self._case.name, name, errors, by)
        return LayerError(
            found.verdict, found.reason, found.rms_error, found.rms_bound, found.max_error, found.max_bound
        )


def errors_at(got: Array | None, expected: Array, valid: Array, name: str) -> Errors | None:
    """A tensor's errors against the float64 run; None where the two cannot be compared.

    They cannot where the float64 run itself is not finite (a mask of -inf), where a form keeps the name for a tensor of
    another shape, or where all of it is padding.
    """
    if got is None or got.shape != expected.shape or not expected[valid].size or not np.isfinite(expected).all():
        return None
    # A cosine is for embeddings that somebody uses as such.
    spec = TensorSpec(name, "float32", tuple(expected.shape))
    return dataclasses.replace(measure(got, expected, valid, spec), cosine=None)


def difference(got: Array | None, expected: Array, own: Array | None, valid: Array) -> LayerError:
    """The verdict on a tensor of integers or booleans, which have no rounding: they must be equal where valid.

    Args:
        own: The module's at the precision plan. Where it differs from `expected`, the module's own integers depend on
            rounding, and nobody can say which are right.
    """
    if got is None or got.shape != expected.shape or expected.dtype.kind not in "iub" or not expected[valid].size:
        return _NOT_COMPARED
    if own is not None and not np.array_equal(own, expected):
        return _NOT_COMPARED
    result, reference = got[valid], expected[valid]
    differing = np.flatnonzero(result != reference)
    if not differing.size:
        return LayerError("PASS", f"all {result.size} elements are equal")
    first = differing[0]
    told = (
        f"{expected.dtype}: {differing.size} of {result.size} elements differ, first {result.flat[first]} instead of "
        f"{reference.flat[first]}; integers must be exact"
    )
    return LayerError("FAIL", told)


def _comparable(made: Mapping[str, Tensor], modules: Mapping[str, str], outputs: Collection[str]) -> list[str]:
    """The tensors of a file that torch's graph has too, in the same module.

    Integers that were made of floats, such as an argmax, are left out: a rounding may change them, and no bound says
    how many of them.
    """
    return [
        name
        for name, tensor in made.items()
        if name in modules
        and (tensor.floating or tensor.exact)
        and (name in outputs or tensor.module in (None, modules[name]))
    ]


def _ends(traced: Traced, module: _Module, files: Sequence[Mapping[str, Tensor]]) -> list[tuple[str, str]]:
    """Layers with their last tensors, evenly spaced if there are more than `MOST_LAYERS`."""
    outputs = [spec.name for spec in traced.io.outputs]
    shared = [[name for name in _comparable(made, module.modules, outputs) if made[name].floating] for made in files]
    return _sample([one for one in layers_of(shared, module.modules, outputs) if one[1] in module.sizes], MOST_LAYERS)


def _sample(layers: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """Layers that are evenly spaced, the last among them."""
    places = np.linspace(len(layers) - 1, 0, min(len(layers), most)).round().astype(int)
    return [layers[place] for place in places[::-1]]


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
                share = math.inf if result.nonfinite else result.used or 0.0
                usual = known[result.case].group != "extremes"
                shares.setdefault((usual, share), result.case)
    if not shares:
        raise ArtifactError("no case of the parity report is there.", hint="Check with the same --text and --inputs.")
    return known[shares[max(shares)]]


def _measured(traced: Traced, scratch: Path) -> LayerReport:
    """Runs everything; a runtime that cannot be measured says why."""
    case, rows = nearest(traced.report, traced.cases), traced.report.runtimes
    probes = {name: traced.probes(name, rows[name], scratch) for name in traced.openings()}
    files = [one.made for one in probes.values()]
    module = _Module(traced, case, files[0] if files else {})
    every = ends = _ends(traced, module, files)
    while len(ends) > 1 and sum(module.sizes[tensor] for _, tensor in ends) > traced.cap_bytes:
        ends = _sample(every, len(ends) - 1)
    tensors = [tensor for _, tensor in ends]
    traced.means.progress(f"errors from layer to layer, case {case.name}")

    def series(name: str, plan: str) -> LayerSeries:
        traced.means.progress(f"{name}: errors from layer to layer")
        try:
            with probes[name].open(()) as session:
                plain = session.run(case.feeds)
            with probes[name].open(tensors) as session:
                got = session.run(case.feeds)
        except (AttnportError, MemoryError) as err:
            return LayerSeries(plan, portable(str(err), traced.folder))
        changed = any(not np.array_equal(array, got[output], equal_nan=True) for output, array in plain.items())
        return LayerSeries(plan, errors=tuple(module.judged(plan, tensors, got).values()), changed=changed)

    found = {}
    for name, row in rows.items():
        if name == EAGER:
            found[name] = LayerSeries(row.plan, errors=tuple(module.judged(row.plan, tensors).values()))
        elif name in probes:
            found[name] = series(name, row.plan)
        elif row.verdict != "NOT_RUN":
            found[name] = LayerSeries(row.plan, "no tensor can be marked in what it runs")
    return LayerReport(case.name, tuple(Layer(name, tensor, module.scale(tensor)) for name, tensor in ends), found)


class _Search:
    """The search for one row of the report, on the smallest case that failed."""

    def __init__(self, traced: Traced, name: str, row: RuntimeParity, scratch: Path) -> None:
        self._traced, self._name, self._row, self._scratch = traced, name, row, scratch
        self._probes = traced.probes(name, row, scratch)
        self._outputs = [spec.name for spec in traced.io.outputs if spec.name in self._probes.made]
        self._errors: dict[str, LayerError] = {}
        self._start = ""

    def finding(self) -> Finding:
        """Searches; says why where there is nothing to search."""
        traced, made = self._traced, self._probes.made
        case = _failing(traced, self._row)
        if case is None:
            return Finding(self._name, reason=f"no case failed by its numbers ({self._row.reason})")
        self._case, self._module = case, _Module(traced, case, made)
        modules, sizes = self._module.modules, self._module.sizes
        self._errors = self._run(())
        self._start = next((one for one in self._outputs if self._errors[one].verdict == "FAIL"), "")
        if not self._start:
            alone = "no output diverges when a failing case is run again by itself"
            return Finding(self._name, reason=f"{alone}; calls before it may change what the runtime computes")
        comparable = [one for one in _comparable(made, modules, self._outputs) if one in sizes]
        large = [one for one in comparable if sizes[one] > traced.cap_bytes]
        ends = {tensor: layer for layer, tensor in _ends(traced, self._module, [made]) if tensor not in large}
        marked = list(ends)
        fused, place = self._heals(marked), ""
        tensor = first_wrong(made, self._start, self._errors)
        if not fused:
            place = ends.get(tensor, modules.get(tensor, ""))
            inside = {*before(made, tensor, _fine(self._errors))[1]} - {*self._errors, *large}
            marked = [one for one in comparable if one in inside]
            if not (fused := self._heals(marked)):
                tensor = first_wrong(made, self._start, self._errors)
                place = modules.get(tensor, "")
        fine, between = before(made, tensor, _fine(self._errors))
        readings, notes = self._readings(tensor)
        if large:
            cap = f"{traced.cap_bytes / 2**20:.0f} MiB"
            notes.append(f"{len(large)} tensors over {cap} were not measured, such as {large[0]}")
        if fused and (lost := self._probes.unfused_by(marked)):
            notes.append(f"marking tensors there ends the fusion of {', '.join(lost)}")
        return Finding(
            self._name,
            tensor=tensor,
            module=place,
            line=self._module.line(tensor),
            fused=fused,
            between=tuple(made[one].operator for one in (*between, tensor)),
            fine=fine,
            case=case.name,
            readings=readings,
            notes=tuple(notes),
        )

    def _run(self, names: Sequence[str]) -> dict[str, LayerError]:
        """The errors of the outputs, and of tensors that are marked."""
        self._traced.means.progress(f"{self._name}: bisecting, {len(names)} tensors of the case {self._case.name}")
        with self._probes.open(names) as session:
            got = session.run(self._case.feeds)
        return self._module.judged(self._row.plan, list(dict.fromkeys((*self._outputs, *names))), got)

    def _heals(self, names: Sequence[str]) -> bool:
        """Measures tensors, in runs that there is memory for; whether the output is right with them marked."""
        sizes, part, todo = self._module.sizes, list[str](), list(names)
        while todo:
            part.append(todo.pop(0))
            if todo and sum(sizes[name] for name in (*part, todo[0])) <= self._traced.cap_bytes:
                continue
            found, part = self._run(part), []
            if found[self._start].verdict != "FAIL":
                return True
            self._errors |= found
        return False

    def _readings(self, tensor: str) -> tuple[dict[str, LayerError], list[str]]:
        """The errors of every runtime of this precision at a tensor, and whether the file or the runtime is wrong."""
        traced, probes = self._traced, self._probes
        found = {EAGER: self._module.judged(self._row.plan, [tensor])[tensor], self._name: self._errors[tensor]}
        for name in traced.openings():
            row = traced.report.runtimes[name]
            if row.plan == self._row.plan and name not in found:
                found[name] = self._read(tensor, partial(traced.probes, name, row, self._scratch))
        evaluator, file = base.get(TYPED_EVALUATOR), probes.file.name
        if probes.runtime.name == evaluator.name:
            return found, []
        of_file = self._read(
            tensor, lambda: Probes(evaluator, probes.opening, traced.manifest, self._scratch, traced.means.limits)
        )
        found[f"{file} in {TYPED_EVALUATOR}"] = of_file
        wrong = f"{file} itself is wrong there: ONNX's reference evaluator diverges too"
        right = f"{file} is right there, evaluated by ONNX's reference: the runtime is wrong"
        return found, {"FAIL": [wrong], "PASS": [right], "NOT_RUN": []}[of_file.verdict]

    def _read(self, tensor: str, probes: Callable[[], Probes]) -> LayerError:
        """A tensor of another runtime or file; NOT_RUN where it has none."""
        try:
            opened = probes()
            if tensor not in opened.made:
                return LayerError("NOT_RUN", "its form has no such tensor")
            with opened.open([tensor]) as session:
                got = session.run(self._case.feeds)
        except (AttnportError, MemoryError) as err:
            return LayerError("NOT_RUN", portable(str(err), self._traced.folder))
        return self._module.judged(self._row.plan, [tensor], got)[tensor]


def first_wrong(made: Mapping[str, Tensor], output: str, errors: Mapping[str, LayerError]) -> str:
    """The first tensor that diverges and from which a wrong output is computed, but for what fine tensors mend.

    All that it is computed from, back to fine tensors, does not diverge: errors do not simply grow along a graph, and a
    tensor may stand behind it in the file and beside it in the graph.

    Args:
        made: Every tensor by name, in topological order.
        errors: Of those that were measured, among them the output's.
    """
    behind = {*before(made, output, _fine(errors))[1], output}
    return next(name for name in made if name in behind and name in errors and errors[name].verdict == "FAIL")


def _fine(errors: Mapping[str, LayerError]) -> set[str]:
    return {name for name, error in errors.items() if error.verdict == "PASS"}


def _failing(traced: Traced, row: RuntimeParity, verdict: Verdict = "FAIL") -> Case | None:
    """The smallest case that failed by its numbers; extreme ones last: users seldom meet them, and errors are large.

    Args:
        verdict: NOT_RUN for a case without a bound.
    """
    # NaN has no error, but it diverges too.
    failing = {
        result.case
        for result in row.cases
        if result.verdict == verdict and (result.rms_error is not None or result.nonfinite)
    }
    found = [case for case in traced.cases if case.name in failing]
    return min(
        found,
        key=lambda case: (case.group == "extremes", sum(array.size for array in case.feeds.values())),
        default=None,
    )
