"""The backends of a bundle: a form of an artifact, or an engine with the form that it was built from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attnport.artifacts import EngineRecord, Form, FusionReport, FusionTable, Manifest
from attnport.bundling.model_file import external_files
from attnport.errors import ArtifactError, UsageError
from attnport_bundle.format.manifest import ENGINES, RUNTIMES, Runtime

RUNS: dict[str, tuple[Runtime, str | None]] = {
    **{runtime: (runtime, None) for runtime in RUNTIMES if runtime != "onnxruntime"},
    "ort_cpu": ("onnxruntime", "CPUExecutionProvider"),
    "ort_cuda": ("onnxruntime", "CUDAExecutionProvider"),
    "onnx": ("onnxruntime", "CPUExecutionProvider"),
    "onnx_18": ("onnxruntime", "CPUExecutionProvider"),
}
"""For each lowering target, the runtime that opens its forms or engines, and ONNX Runtime's execution provider.

A target is named as its runtime; those that are not have a line here."""

_STANDARD = ("onnx", "onnx_18")


@dataclass(frozen=True)
class Backend:
    """One entry of a bundle's order.

    Attributes:
        form: The form, or the one from which the engine was built.
        engine: The engine; None for a form.
        measured_as: Its name among the runtimes in `parity.json`; None if no runtime there opens such a form.
    """

    name: str
    form: Form
    engine: EngineRecord | None
    measured_as: str | None

    @property
    def file(self) -> str:
        """The file that the runtime opens."""
        return self.engine.file if self.engine else self.form.file

    @property
    def runtime(self) -> Runtime:
        """The runtime that opens it."""
        return RUNS[self.form.target][0]

    @property
    def provider(self) -> str | None:
        """ONNX Runtime's execution provider; None for other runtimes."""
        return RUNS[self.form.target][1]

    def copied(self, folder: Path) -> list[str]:
        """The artifact's files that go into the bundle; raises as `model_file.external_files`."""
        return [self.engine.file] if self.engine else [self.form.file, *external_files(folder, self.form.file)]

    def table(self, report: FusionReport | None) -> FusionTable | None:
        """Its fusion table; None if there is none for this file."""
        for table in report.targets.values() if report else ():
            if table.proved_by == self.engine.file if self.engine else table.file == self.form.file:
                return table
        return None


def choose(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[Backend]:
    """The backends of these names, in order and without duplicates.

    Args:
        names: Keys of forms and engines, or targets that have one engine.

    Raises:
        ArtifactError: there is no such form or engine.
        UsageError: no runtime opens the form, or a target has several engines.
    """
    backends = {backend.name: backend for backend in (_backend(folder, manifest, name) for name in names)}
    return list(backends.values())


def _backend(folder: Path, manifest: Manifest, name: str) -> Backend:
    if name in manifest.engines:
        return _engine(folder, manifest, name)
    key = name.replace("-", "_")
    engines = [engine_name for engine_name, record in manifest.engines.items() if record.target == key]
    if len(engines) == 1:
        return _engine(folder, manifest, engines[0])
    if engines:
        raise UsageError(f"target {key} has {len(engines)} engines.", hint=f"Name one of {', '.join(engines)}.")
    form = manifest.forms.get(key)
    if form is None:
        raise ArtifactError(
            f"{folder} has no form {key!r}; it has {', '.join((*manifest.forms, *manifest.engines)) or 'none'}.",
            hint=f"Make it with: attnport fuse {folder}",
        )
    if form.target not in RUNS or form.target in ENGINES:
        raise UsageError(
            f"form {key!r} is for {form.target}; a bundle's reader opens an engine of it, not its ONNX file."
            if form.target in ENGINES
            else f"form {key!r} is for {form.target}; a bundle's reader runs {', '.join(RUNS)}.",
            hint=f"Build one with: attnport build {folder} --target {form.target} --precision {form.plan}"
            if form.target in ENGINES
            else "Bundle a form for one of these targets.",
        )
    measured_as = form.target if form.plan == "fp32" else f"{form.target}.{form.plan}"
    return Backend(key, form, None, None if form.target in _STANDARD else measured_as)


def _engine(folder: Path, manifest: Manifest, name: str) -> Backend:
    record = manifest.engines[name]
    form = manifest.forms.get(record.form)
    if form is None or record.target not in ENGINES:
        raise ArtifactError(
            f"{folder}: engine {name} was built from the form {record.form!r} for {record.target}, which is not there.",
            hint=f"Build it again with: attnport build {folder} --target {record.target}",
        )
    alone = sum(other.target == record.target for other in manifest.engines.values()) == 1
    return Backend(name, form, record, record.target if alone else f"{record.target}.{name}")
