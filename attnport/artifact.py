"""An artifact folder as an object: the verbs of the command line as methods, and values that print as its tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import Manifest, ModelSpec
from attnport.printed import Printed
from attnport.verbs import _arguments
from attnport.verbs._arguments import public

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from attnport.artifacts import (
        EngineRecord,
        FusionReport,
        FusionTable,
        LatencyReport,
        ParityReport,
        Session,
        TuneReport,
    )
    from attnport.verbs.audit import AuditReport
    from attnport.verbs.inspect import Inspection
    from attnport.verbs.verify import VerifyResult
    from attnport_bundle.decoding.generate import Prompts

Names = str | Sequence[str]
Place = str | Path


def export(
    model: str | nn.Module | ModelSpec,
    folder: Place,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    inputs: Names | Mapping[str, str] = (),
    outputs: Names = (),
    dims: Names | Mapping[str, Any] = (),
    dynamic_shapes: Any = None,
    examples: Place | None = None,
    task: str = "",
    part: str = "",
    with_past: bool = False,
    with_weights: bool = False,
    trust_remote_code: bool = False,
    force: bool = False,
    timeout_s: float | None = None,
    memory_gib: float | None = None,
    progress: Callable[[str], None] = lambda message: None,
    tell: Callable[[str], None] | None = None,
) -> Artifact:
    """Exports a model into a folder; an earlier export there is replaced all at once.

    Args:
        model: An `nn.Module`, a SPEC as of the command line, or a `ModelSpec`. A module is copied, and stays as it is.
        args, kwargs: Examples of what the module's forward is called with: tensors, structures of tensors, and values
            that are the same in every call. Names and dims are found from them.
        inputs: Declarations, `{"ids": "int64[batch,seq]:high=30522"}` or as of `--input`. Beside examples, one replaces
            what was found for its input, and marks alone, `{"mask": ":padding"}`, are added to it; `":example"` gives
            it the values of its example in every test, as where random values do not fit.
        outputs: The outputs to export; none = all.
        dims: Sizes of dims, `{"seq": (1, 128, 512)}` or as of `--dim`: least, usual, largest.
        dynamic_shapes: Beside examples, which dims are dynamic, as torch.export takes it; None = all that can be.
        examples: An `.npz` with more examples, by name.
        task: For `hf:`, the head: a pipeline's name such as `text-classification`, or an auto class.
        part: For `hf:`, `encoder` or `decoder`, or one tower: `text`, `vision`, ...
        with_past: For `hf:`, a decoder with its cache, which `generate` runs token by token.
        with_weights: Keep outputs that are attention weights, which are left out otherwise.
        trust_remote_code: For `hf:`, run the Python code that the model's `config.json` names.
        force: Export even if nothing has changed.
        timeout_s: For `onnx:`, which is read in a process of its own, seconds for each step; None = 120, and more for
            large files.
        memory_gib: For `onnx:`, what the process may hold; None = nine tenths of what is free.
        progress: Called with what is being done.
        tell: Called with each line on how the module is taken: dims that are fixed, outputs that are left out, ...;
            None = they are warnings of the logger `attnport`, which Python prints on stderr.

    Raises:
        UsageError, SpecError, ExportError: as `attnport.verbs.export.export`.
    """
    from attnport.cases.choosing import read_feeds
    from attnport.folder.given import Given, part_of
    from attnport.verbs.export import exported

    named = {**(read_feeds(Path(examples)) if examples is not None else {}), **(kwargs or {})}
    chosen = part_of(part, with_past)
    given = Given(model, args, named, inputs, outputs, dims, dynamic_shapes, trust_remote_code, task, chosen)
    say = logging.getLogger("attnport").warning if tell is None else tell
    options: Any = {"with_weights": with_weights, "force": force, "timeout_s": timeout_s, "memory_gib": memory_gib}
    manifest, spec = exported(given, Path(folder), **options, progress=progress, tell=lambda note: say(note))
    return Artifact(Path(folder), manifest, spec)


def open(folder: Place) -> Artifact:  # noqa: A001  # called as attnport.open
    """The artifact in a folder.

    Raises:
        ArtifactError, IntegrityError: it is not an artifact folder, or its manifest was changed.
    """
    from attnport.folder.workspace import open_folder

    return Artifact(Path(folder), open_folder(Path(folder)))


class Artifact:
    """An artifact folder. Each method is the verb of that name, for this folder.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, folder: Path, manifest: Manifest, spec: ModelSpec | None = None) -> None:
        self.folder = folder
        self._manifest = manifest
        self._spec = spec  # a module in memory is found by later verbs for as long as somebody holds it

    @property
    def manifest(self) -> Manifest:
        """The folder's manifest as it is now."""
        from attnport.folder.workspace import open_folder

        return open_folder(self.folder)

    @property
    def verdict(self) -> str:
        """The verdict of the last `check`; NOT_RUN before one."""
        report = self._report()
        return report.verdict if report is not None else "NOT_RUN"

    def fuse(self, targets: Names | None = None, **options: Any) -> FusionReport:
        """Writes attention as each target fuses it, and proves that it does; as `attnport.verbs.fuse.fuse`."""
        from attnport.verbs.fuse import fuse

        return public(fuse)(self.folder, **_given(options, targets=targets))

    def build(self, target: str, plan: str | None = None, **options: Any) -> tuple[EngineRecord, FusionTable]:
        """Builds a TensorRT engine; as `attnport.verbs.build.build`."""
        from attnport.verbs.build import build

        return public(build)(self.folder, target, **_given(options, plan=plan))

    def check(self, runtimes: Names | None = None, *, module: nn.Module | None = None, **options: Any) -> ParityReport:
        """Compares runtimes with a float64 run of the module; as `attnport.verbs.check.check`.

        Args:
            module: The module, where the artifact was made of one in the memory of another process.

        Raises:
            SpecError: `module` is not the one that was exported.
        """
        from attnport.verbs.check import check

        if module is not None:
            self._give(module)
        return public(check)(self.folder, **_given(options, runtimes=runtimes))

    def bench(self, runtimes: Names | None = None, shapes: Names | None = None, **options: Any) -> LatencyReport:
        """Measures the latency of runtimes; as `attnport.verbs.bench.bench`."""
        from attnport.verbs.bench import bench

        return public(bench)(self.folder, **_given(options, runtimes=runtimes, shapes=shapes))

    def tune(self, runtimes: Names | None = None, shapes: Names | None = None, **options: Any) -> TuneReport:
        """Tries every runtime and precision, and keeps the fastest; as `attnport.verbs.tune.tune`."""
        from attnport.verbs.tune import tune

        return public(tune)(self.folder, **_given(options, runtimes=runtimes, shapes=shapes))

    def bundle(self, out: Place, lang: Names | None = None, forms: Names | None = None, **options: Any) -> Path:
        """Packs a folder that runs without PyTorch and re-checks itself; as `attnport.verbs.bundle.bundle`."""
        from attnport.verbs.bundle import bundle

        return public(bundle)(self.folder, out, **_given(options, lang=lang, forms=forms))

    def report(self, **options: Any) -> Page:
        """Writes the report page; as `attnport.verbs.report.report`. A notebook shows the page itself."""
        from attnport.verbs.report import report

        return Page(public(report)(self.folder, **options))

    def inspect(self) -> Inspection:
        """Describes the folder; as `attnport.verbs.inspect.inspect`."""
        from attnport.verbs.inspect import inspect

        return inspect(self.folder)

    def verify(self, **options: Any) -> VerifyResult:
        """Checks the folder's files; as `attnport.verbs.verify.verify`."""
        from attnport.verbs.verify import verify

        return public(verify)(self.folder, **options)

    def audit(self, **options: Any) -> AuditReport:
        """Finds what the folder's files give away; as `attnport.verbs.audit.audit`."""
        from attnport.verbs.audit import audit

        return public(audit)(self.folder, **options)

    def open(self, runtime: str = "ort_cpu", *, threads: int | None = None) -> Running:
        """Opens the artifact in a runtime, until it is closed, as at the end of a `with` block.

        Raises:
            UsageError: there is no such runtime.
            UnavailableError: it is not available here, or the folder holds nothing for it, which says what makes it.
        """
        from attnport.folder.openings import opened

        return Running(opened(self.folder, self.manifest, runtime, threads))

    def generate(
        self,
        prompts: Prompts,
        runtime: str = "ort_cpu",
        *,
        encoder: Artifact | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> Any:
        """Continues prompts in a runtime, in which an encoder runs too.

        As `attnport_bundle.Model.generate`; raises as that, and as `open`.
        """
        from attnport.verbs.generate import generating

        with generating(self.folder, runtime, encoder.folder if encoder else None, threads) as (generate, _):
            return generate(prompts, **options)

    def __repr__(self) -> str:
        return f"Artifact({str(self.folder)!r})"

    def __str__(self) -> str:
        return str(self.manifest)

    def _repr_html_(self) -> str:
        """A short table for a notebook."""
        from attnport.reporting import document as doc
        from attnport.reporting.fusion import total
        from attnport.reporting.html import html
        from attnport.verbs.fuse import FILE

        manifest = self.manifest
        rows: list[tuple[doc.Line, doc.Line]] = [("folder", doc.Name(str(self.folder)))]
        for side, specs in (("inputs", manifest.io.inputs), ("outputs", manifest.io.outputs)):
            rows.append((side, doc.Name(", ".join(map(str, specs)))))
        rows.append(("dims", ", ".join(map(str, manifest.io.dims)) or "none"))
        rows.append(("attentions", str(len(manifest.attentions))))
        if (fusion := self._read(FILE, "FusionReport")) is not None:
            rows += [(f"fused, {target}", total(table)) for target, table in fusion.targets.items()]
        rows.append(("parity", doc.Verdict(self.verdict)))
        if (parity := self._report()) is not None:
            rows += [(doc.Name(key), doc.Verdict(row.verdict)) for key, row in parity.runtimes.items()]
        return str(html([doc.Table(manifest.name, doc.words("what", "value"), doc.rows(rows))]))

    def _report(self) -> ParityReport | None:
        from attnport.folder.verdicts import read_parity

        return read_parity(self.folder, self.manifest)

    def _read(self, file: str, kind: str) -> Any:
        from attnport import artifacts
        from attnport.folder.workspace import read_report

        return read_report(getattr(artifacts, kind), self.folder, self.manifest, file)

    def _give(self, module: nn.Module) -> None:
        from attnport.sources.memory import given_again

        self._spec = given_again(module, self.manifest.source)


class Running:
    """An artifact that is open in a runtime.

    Attributes:
        ran: The device, provider and precision that it runs in.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ran = session.ran

    def run(self, **feeds: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name, for an array or tensor for each input.

        Raises:
            FeedError: an input is missing, or does not fit.
        """
        return self._session.run({name: _array(value) for name, value in feeds.items()})

    def close(self) -> None:
        """Frees what the runtime holds."""
        self._session.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Page(type(Path())):  # type: ignore[misc]  # a path that a notebook shows as the page at its end
    """The path of a report."""

    def _repr_html_(self) -> str | None:
        """The page itself, in a frame of its own."""
        from attnport.reporting.markup import el

        if self.suffix != ".html":
            return None
        page = self.read_text(encoding="utf-8")
        return str(el("iframe", srcdoc=page, style="width:100%;height:40em;border:0"))


def _array(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):
        from attnport.runtimes.torch_eager import to_array

        return to_array(value)
    return value if isinstance(value, np.ndarray) else np.asarray(value)


def _given(options: Mapping[str, Any], **named: Any) -> dict[str, Any]:
    """The arguments of a verb, without those that nobody gave."""
    return {**options, **{name: value for name, value in named.items() if value is not None}}


def _as_text(value: Any) -> str:
    from attnport.console.terminal import shown

    return shown(value).rstrip("\n")


def _line() -> Any:
    from attnport.console.progress import line

    return line()


Printed.as_text = _as_text
_arguments.showing = _line
