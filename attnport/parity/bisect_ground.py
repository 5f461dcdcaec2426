"""What the searches of `check --bisect` stand on: a folder's files in runtimes, and the module traced by torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.artifacts import PLANS, Manifest, ParityReport, RuntimeParity
from attnport.cases.inputs import Array, Case, validity
from attnport.dims import TensorSpec
from attnport.errors import UnavailableError
from attnport.folder.openings import model_openings
from attnport.folder.trust import reload
from attnport.parity.comparing import FAST_EVALUATOR, TYPED_EVALUATOR
from attnport.parity.evaluate import Progress
from attnport.parity.probes import Probes
from attnport.parity.searching import Budget
from attnport.processes.isolated import Limits
from attnport.runtimes import base
from attnport.runtimes.base import Opening
from attnport.runtimes.torch_eager import cast
from attnport.sources.onnx_file import is_onnx

if TYPE_CHECKING:
    import torch
    from torch import nn

    from attnport.runtimes._torch_values import TracedModule

SAMPLES = 3
FORM = "form "
"""What stands before a form's name, where runtimes and forms are told in one list."""


@dataclass
class Ground:
    """What all searches of one folder share: what failed in it, the cases that showed it, the traced module.

    Attributes:
        cases: Every case of the check.
        samples: The most cases that one search runs.
        budget: Probes and bytes a run; its sizes are filled in here.
    """

    folder: Path
    manifest: Manifest
    cases: Sequence[Case]
    report: ParityReport
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    samples: int = SAMPLES
    progress: Progress = lambda message: None

    def __post_init__(self) -> None:
        self.io = self.manifest.io
        self._traced: dict[tuple[str, bool], TracedModule] = {}
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
            opening = Opening(self.io, plan=row.plan, model=self.folder / form.file, threads=self.threads)
            return Probes(name, runtime, opening, self.manifest, scratch, self.limits)
        runtime = base.get(base.Key.parse(name).runtime)
        opened = self.openings().get(name)
        if opened is None:
            what = "module" if runtime.opens == "module" else runtime.opens
            raise UnavailableError(
                f"{name} runs a whole {what}, in which no tensor can be marked; bisect the form that it is made of."
            )
        return Probes(name, runtime, opened, self.manifest, scratch, self.limits)

    def openings(self) -> dict[str, Opening]:
        """Of every row of the report that an ONNX file stands behind."""
        found: dict[str, Opening] = {}
        for name, row in self.report.runtimes.items():
            runtime = base.get(base.Key.parse(name).runtime)
            if runtime.opens == "onnx" and row.verdict != "NOT_RUN":
                found |= model_openings(runtime, self.folder, self.manifest, (row.plan,), self.threads)
        return {name: opening for name, opening in found.items() if name in self.report.runtimes}

    def traced(self, plan: str, *, float64: bool = False) -> TracedModule:
        """The module's own graph at a plan, or in float64."""
        from attnport.exporter.capture import named_program
        from attnport.runtimes._torch_values import TracedModule

        if is_onnx(self.manifest.source.text):
            raise UnavailableError(
                "bisect follows the trace of a module, and a file of ONNX has none.",
                hint="Export the module that the file was made of, and bisect that.",
            )
        if (plan, float64) not in self._traced:
            # As it was exported: with the outputs that are left out later, or the names would be others.
            whole = reload(self.manifest.source)
            cast = "" if float64 or PLANS[plan].cast == "float32" else plan
            if cast not in self._programs:
                self.progress(f"tracing the module {cast}")
                module = whole.make()
                self._programs[cast] = named_program(_cast(module, cast) if cast else module, whole.io)
            names = [spec.name for spec in whole.io.outputs]
            self._traced[plan, float64] = TracedModule(self._programs[cast], names, plan, float64=float64)
        return self._traced[plan, float64]

    def valid(self, case: Case, name: str, probes: Probes, shape: tuple[int, ...]) -> Array:
        """Which elements of a tensor count, over its leading dims; all where its dims do not tell which rows are
        padding."""
        if name in case.valid:
            return case.valid[name]
        dims, known = probes.made[name].dims, {dim.name for dim in self.io.dims}
        if dims and all(isinstance(dim, int) or dim in known for dim in dims):
            spec = TensorSpec(name, "float32", tuple(dim for dim in dims if dim is not None))
            # A form may give zero in items without any key where the module gives other numbers.
            found = validity(dataclasses.replace(self.io, outputs=(spec,)), case.feeds, empty_items=False)[name]
            if found.shape == shape[: found.ndim]:
                return found
        return np.ones(shape[:1], dtype=bool)


def _cast(module: nn.Module, plan: str) -> nn.Module:
    import torch

    return cast(module, getattr(torch, PLANS[plan].cast))
