"""The inside of a checked model: the files of its folder with tensors marked as outputs, and the module run by torch.

Every tensor of a graph that torch's own traced graph has by the same name can be compared. See docs/bisect.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.artifacts import MANIFEST, PLANS, Evidence, IOContract, Manifest, ParityReport, RuntimeParity, Session
from attnport.cases.inputs import Array, Case, validity
from attnport.dims import TensorSpec
from attnport.errors import AttnportError, UnavailableError
from attnport.exporter import storage
from attnport.exporter.probing import Tensor, mark, tensors
from attnport.folder.openings import model_openings
from attnport.folder.trust import reload
from attnport.jsonfile import to_json
from attnport.parity.comparing import FAST_EVALUATOR, TYPED_EVALUATOR
from attnport.parity.evaluate import Means
from attnport.processes.isolated import IsolatedSession, Limits
from attnport.runtimes import base
from attnport.runtimes.base import Opening, Runtime, external_files, read_graph
from attnport.runtimes.torch_eager import cast
from attnport.sources.onnx_file import is_onnx

if TYPE_CHECKING:
    import torch
    from torch import nn

    from attnport.runtimes.torch_eager import TracedModule

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
        from attnport.runtimes.torch_eager import TracedModule

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
            TensorSpec(name, "float32", tuple("?" if dim is None else dim for dim in self.made[name].dims or ()))
            for name in self.made
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
