"""An artifact folder as an object: the verbs of the command line as methods, and values that print as its tables."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attnport.artifacts import FusionReport, Manifest, ModelSpec
from attnport.folder.given import Given
from attnport.folder.workspace import open_folder, opened, read_parity, read_report
from attnport.options import Output, Progress, Tell
from attnport.reporting import document as doc
from attnport.reporting.fusion import total
from attnport.reporting.html import html
from attnport.reporting.markup import el
from attnport.runtimes.torch_eager import to_array
from attnport.sources.memory import given_again
from attnport.verbs._arguments import hinting, verb_of_fields
from attnport.verbs.audit import audit
from attnport.verbs.bench import bench
from attnport.verbs.build import build
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import How, exported
from attnport.verbs.fuse import FILE, fuse
from attnport.verbs.inspect import inspect
from attnport.verbs.report import report
from attnport.verbs.tune import tune
from attnport.verbs.verify import verify

if TYPE_CHECKING:
    from torch import nn

    from attnport.artifacts import ParityReport, Session
    from attnport_bundle.decoding.generate import Prompts

Place = str | Path
T = TypeVar("T")
_LOG = logging.getLogger("attnport")
"""Of what export tells of the model: dims that are fixed, outputs that are left out."""


@verb_of_fields
def export(
    given: Given,
    folder: Output,
    how: How,
    *,
    progress: Progress = lambda message: None,
    tell: Tell = _LOG.warning,
) -> Artifact:
    """Exports a model into a folder; an earlier export there is replaced all at once.

    `inputs` may be a dict, `{"ids": "int64[batch,seq]:high=30522"}`, and `dims` too, `{"seq": (1, 128, 512)}`. Beside
    examples, a declaration replaces what was found for its input, and marks alone, `{"mask": ":padding"}`, are added to
    it; `":example"` gives it the values of its example in every test, as where random values do not fit.

    Raises:
        UsageError, SpecError, ExportError: as `attnport.verbs.export.export`.
    """
    return Artifact(folder, *exported(given, folder, how, progress=progress, tell=tell))


def open(folder: Place) -> Artifact:  # noqa: A001  # called as attnport.open
    """The artifact in a folder.

    Raises:
        ArtifactError, IntegrityError: it is not an artifact folder, or its manifest was changed.
    """
    with hinting(Path(folder)):
        return Artifact(Path(folder), open_folder(Path(folder)))


def _method(verb: Callable[..., T]) -> Callable[..., T]:
    """A verb as a method of an artifact, whose folder it is for."""

    @wraps(verb)
    def method(self: Artifact, *args: Any, **options: Any) -> T:
        return verb(self.folder, *args, **options)

    _take_signature(method, verb)
    return method


def _take_signature(method: Callable[..., Any], verb: Callable[..., Any], *more: Parameter) -> None:
    """Gives a method the signature of its verb, without the folder and with further parameters."""
    taken = signature(verb)
    _, *others = taken.parameters.values()
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [own, *others, *more]
    method.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]  # what help() reads


class Artifact:
    """An artifact folder. Each method is the verb of that name, for this folder.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, folder: Path, manifest: Manifest, spec: ModelSpec | None = None) -> None:
        self.folder = folder
        self._manifest = manifest
        self._spec = spec  # while it is held, later verbs use the module in memory, not its stored program

    @property
    def manifest(self) -> Manifest:
        """The folder's manifest as it is now."""
        return open_folder(self.folder)

    @property
    def verdict(self) -> str:
        """The verdict of the last `check`; NOT_RUN before one."""
        report = read_parity(self.folder, self.manifest)
        return report.verdict if report is not None else "NOT_RUN"

    fuse = _method(fuse)
    build = _method(build)
    bench = _method(bench)
    tune = _method(tune)
    bundle = _method(bundle)
    inspect = _method(inspect)
    verify = _method(verify)
    audit = _method(audit)

    def check(self, *args: Any, module: nn.Module | None = None, **options: Any) -> ParityReport:
        """Compares runtimes with a float64 run of the module; as `attnport.check`.

        Args:
            module: The module, where the artifact was made of one in the memory of another process.

        Raises:
            SpecError: `module` is not the one that was exported.
        """
        if module is not None:
            self._spec = given_again(module, self.manifest.source)
        return check(self.folder, *args, **options)

    def report(self, **options: Any) -> Page:
        """Writes the report page; as `attnport.report`. A notebook shows the page itself."""
        return Page(report(self.folder, **options))

    def open(self, runtime: str = "ort_cpu", *, threads: int | None = None) -> Running:
        """Opens the artifact in a runtime, until it is closed, as at the end of a `with` block.

        Raises:
            UsageError: there is no such runtime.
            UnavailableError: it is not available here, or the folder holds nothing for it, which says what makes it.
        """
        with hinting(self.folder):
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

        opening = generating(self.folder, runtime, encoder.folder if encoder else None, threads)
        with hinting(self.folder), opening as (generate, _):
            return generate(prompts, **options)

    def __repr__(self) -> str:
        return f"Artifact({str(self.folder)!r})"

    def __str__(self) -> str:
        return str(self.manifest)

    def _repr_html_(self) -> str:
        """A short table for a notebook."""
        manifest = self.manifest
        rows: list[tuple[doc.Line, doc.Line]] = [("folder", doc.Name(str(self.folder)))]
        for side, specs in (("inputs", manifest.io.inputs), ("outputs", manifest.io.outputs)):
            rows.append((side, doc.Name(", ".join(map(str, specs)))))
        rows.append(("dims", ", ".join(map(str, manifest.io.dims)) or "none"))
        rows.append(("attentions", str(len(manifest.attentions))))
        if (fusion := read_report(FusionReport, self.folder, manifest, FILE)) is not None:
            rows += [(f"fused, {target}", total(table)) for target, table in fusion.targets.items()]
        rows.append(("parity", doc.Verdict(self.verdict)))
        if (parity := read_parity(self.folder, manifest)) is not None:
            rows += [(doc.Name(key), doc.Verdict(row.verdict)) for key, row in parity.runtimes.items()]
        return str(html([doc.Table(manifest.name, doc.columns("what", "value"), doc.rows(rows))]))


_take_signature(Artifact.check, check, Parameter("module", Parameter.KEYWORD_ONLY, default=None))
_take_signature(Artifact.report, report)


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
        if self.suffix != ".html":
            return None
        page = self.read_text(encoding="utf-8")
        return str(el("iframe", srcdoc=page, style="width:100%;height:40em;border:0"))


def _array(value: Any) -> Any:
    if hasattr(value, "detach"):
        return to_array(value)
    return value if isinstance(value, np.ndarray) else np.asarray(value)
